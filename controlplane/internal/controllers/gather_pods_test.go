package controllers

import (
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/infracontract"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// ours is an object of our infrastructure provider.
func ours(kind, name string, object map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: object}
	u.SetGroupVersionKind(infrav1.GroupVersion.WithKind(kind))
	u.SetNamespace(testNamespace)
	u.SetName(name)

	return u
}

// talosTemplate is a TalosMachineTemplate of a kind of machine, metal or container.
func talosTemplate(of string) *unstructured.Unstructured {
	machine := map[string]any{of: map[string]any{"talos": map[string]any{"version": "v1.13.9"}}}

	return ours(infrav1.TalosMachineTemplateKind, of, map[string]any{
		"spec": map[string]any{"template": map[string]any{"spec": machine}},
	})
}

// talosTemplates are the templates of both kinds, and what they need.
func talosTemplates() []client.Object {
	metal, container := talosTemplate("metal"), talosTemplate("container")

	return []client.Object{metal, container, newCRD(metal.GroupVersionKind()), newCRD(infrav1.GroupVersion.WithKind(infrav1.TalosMachineKind))}
}

func refTo(object *unstructured.Unstructured) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{
		APIGroup: object.GroupVersionKind().Group, Kind: object.GetKind(), Name: object.GetName(),
	}
}

// inPods is a world that has settled with a number of control plane machines in
// Pods. The peer URLs of their members have the lasting addresses.
func inPods(t *testing.T, replicas int32) (*world, *Reconciler) {
	t.Helper()
	controlPlane := newControlPlane()
	controlPlane.Spec.Replicas = ptr.To(replicas)
	controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef = refTo(talosTemplate("container"))
	w := newWorld(t, append(talosTemplates(), newCluster(), controlPlane)...)
	r := w.manager()
	for range replicas {
		w.settle(r)
	}
	w.giveLastingAddresses()

	return w, r
}

func lastingAddress(number int) string { return fmt.Sprintf("10.96.0.%d", number+1) }

// giveLastingAddresses plays the infrastructure provider and etcd.
func (w *world) giveLastingAddresses() {
	w.t.Helper()
	for i, machine := range w.machines() {
		infraMachine := ours(infrav1.TalosMachineKind, machine.Name, map[string]any{})
		NewWithT(w.t).Expect(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(machine), infraMachine)).To(Succeed())
		before := infraMachine.DeepCopy()
		NewWithT(w.t).Expect(unstructured.SetNestedField(infraMachine.Object, lastingAddress(i), "spec", "pod", "etcdAddress")).To(Succeed())
		NewWithT(w.t).Expect(w.client.Patch(w.t.Context(), infraMachine, client.MergeFrom(before))).To(Succeed())
		w.editMembers(func(member *talosclient.EtcdMember) {
			if member.Hostname == machine.Name {
				member.PeerURLs = []string{"https://" + lastingAddress(i) + ":2380"}
			}
		})
	}
}

// editMembers edits the member list of all nodes.
func (w *world) editMembers(edit func(*talosclient.EtcdMember)) {
	for _, node := range w.running() {
		node.Update(func(state *talosfake.State) {
			state.Members = slices.Clone(state.Members)
			for i := range state.Members {
				edit(&state.Members[i])
			}
		})
	}
}

// forgetMember takes the record of its etcd member from a Machine, as if its node
// had never told which one it is.
func (w *world) forgetMember(machine *clusterv1.Machine) {
	w.t.Helper()
	before := machine.DeepCopy()
	delete(machine.Annotations, controlplanev1.EtcdMemberAnnotation)
	NewWithT(w.t).Expect(w.client.Patch(w.t.Context(), machine, client.MergeFrom(before))).To(Succeed())
}

func TestMembersAtLastingAddressesBelongToTheirMachines(t *testing.T) {
	// onlyListed is a node that is a member, and cannot say so.
	onlyListed := func(change func(*talosfake.Machine)) func(*world, *clusterv1.Machine) {
		return func(w *world, machine *clusterv1.Machine) {
			change(w.talos[machine.Name])
			w.forgetMember(machine)
		}
	}
	learner := func(w *world, name string) {
		w.editMembers(func(member *talosclient.EtcdMember) { member.Learner = member.Learner || member.Hostname == name })
	}
	for name, tc := range map[string]struct {
		happens func(*world, *clusterv1.Machine)
		well    bool
	}{
		"all are well": {func(*world, *clusterv1.Machine) {}, true},
		"one is silent, and never told": {
			onlyListed(func(node *talosfake.Machine) { node.SetSilent(true) }), true,
		},
		"one has become a learner, and has no data yet": {func(w *world, machine *clusterv1.Machine) {
			learner(w, machine.Name)
			onlyListed(func(node *talosfake.Machine) {
				empty := newTalosMachine(machine.Name, w.prober).Snapshot()
				node.Update(func(state *talosfake.State) { *state = empty })
			})(w, machine)
		}, false},
		"one has become a learner, and its Machine has no address yet": {func(w *world, machine *clusterv1.Machine) {
			learner(w, machine.Name)
			onlyListed(func(node *talosfake.Machine) { node.SetSilent(true) })(w, machine)
			machine.Status.Addresses, machine.Status.Initialization.InfrastructureProvisioned = nil, nil
			NewWithT(w.t).Expect(w.client.Status().Update(w.t.Context(), machine)).To(Succeed())
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := inPods(t, 3)
			tc.happens(w, w.machines()[2])

			for range 3 {
				g.Expect(w.reconcile(r)).To(Succeed())
			}

			g.Expect(w.talos[w.machines()[0].Name].Snapshot().Members).To(HaveLen(3), "no member is removed")
			condition := conditions.Get(w.controlPlane(), controlplanev1.EtcdClusterHealthyCondition)
			g.Expect(condition.Message).NotTo(ContainSubstring("belongs to no Machine"))
			g.Expect(condition.Status == metav1.ConditionTrue).To(Equal(tc.well), condition.Message)
			g.Expect(w.machines()).To(HaveLen(3))
		})
	}
}

func TestPeerAddresses(t *testing.T) {
	machine := &clusterv1.Machine{Status: clusterv1.MachineStatus{Addresses: []clusterv1.MachineAddress{
		{Type: clusterv1.MachineExternalIP, Address: "192.0.2.1"}, {Type: clusterv1.MachineInternalIP, Address: "10.0.0.1"},
		{Type: clusterv1.MachineHostName, Address: "cp-a"},
	}}}
	pod := map[string]any{"etcdAddress": "10.96.0.1"}
	for name, tc := range map[string]struct {
		machine *clusterv1.Machine
		infra   *unstructured.Unstructured
		want    []string
	}{
		"metal": {machine, ours(infrav1.TalosMachineKind, "cp-a", map[string]any{"spec": map[string]any{"metal": map[string]any{}}}), []string{"10.0.0.1", "192.0.2.1"}},
		"in a Pod": {
			machine, ours(infrav1.TalosMachineKind, "cp-a", map[string]any{"spec": map[string]any{"container": map[string]any{}, "pod": pod}}),
			[]string{"10.0.0.1", "192.0.2.1", "10.96.0.1"},
		},
		"in a Pod that nobody has seen": {
			&clusterv1.Machine{}, ours(infrav1.TalosMachineKind, "cp-a", map[string]any{"spec": map[string]any{"container": map[string]any{}, "pod": pod}}),
			[]string{"10.96.0.1"},
		},
		"in a Pod without the record": {machine, ours(infrav1.TalosMachineKind, "cp-a", map[string]any{"spec": map[string]any{"container": map[string]any{}}}), nil},
		"of another vendor": {machine, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "OtherMachine", "spec": map[string]any{"container": map[string]any{}, "pod": pod},
		}}, []string{"10.0.0.1", "192.0.2.1"}},
		"without an infrastructure machine": {machine, nil, []string{"10.0.0.1", "192.0.2.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect((&Reconciler{infrastructure: infracontract.Contract{}}).peerAddresses(tc.machine, tc.infra, health.Facts{Err: nodes.ErrNotAsked})).To(Equal(tc.want))
			g.Expect((&Reconciler{infrastructure: infracontract.Contract{}}).peerAddresses(tc.machine, tc.infra, health.Facts{EtcdAddresses: []string{"10.9.0.1"}})).To(Equal([]string{"10.9.0.1"}), "the node says it")
			silent := (&Reconciler{infrastructure: infracontract.Contract{}}).peerAddresses(tc.machine, tc.infra, health.Facts{})
			g.Expect(slices.Contains(silent, "10.96.0.1")).To(Equal(slices.Contains(tc.want, "10.96.0.1")), "the lasting address is sure")
			g.Expect(len(silent) > 0).To(Equal(slices.Contains(tc.want, "10.96.0.1")), "a node that answers and does not say it may be elsewhere")
		})
	}
}

// TestBadInputControlPlaneOfTheOtherKind: no Machine is made of a template that does
// not fit the TalosCluster, and the reason is said.
func TestBadInputControlPlaneOfTheOtherKind(t *testing.T) {
	for name, tc := range map[string]struct {
		cluster              map[string]any
		fits, misfits, hints string
	}{
		"metal where there is a Service":    {map[string]any{"container": map[string]any{}}, "container", "metal", "name a template with container"},
		"a container where there is none":   {map[string]any{"controlPlaneEndpoint": map[string]any{"host": "10.0.0.100"}}, "metal", "container", "name a template with metal"},
		"a container where nothing is said": {map[string]any{}, "metal", "container", "name a template with metal"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			talosCluster := ours(infrav1.TalosClusterKind, "one", map[string]any{"spec": tc.cluster})
			cluster, controlPlane := newCluster(), newControlPlane()
			cluster.Spec.InfrastructureRef = refTo(talosCluster)
			controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef = refTo(talosTemplate(tc.misfits))
			w := newWorld(t, append(talosTemplates(), talosCluster, cluster, controlPlane)...)
			r := w.manager()
			w.settle(r)
			g.Expect(w.machines()).To(BeEmpty())
			condition := conditions.Get(w.controlPlane(), controlplanev1.InitializedCondition)
			g.Expect(condition.Reason).To(Equal(controlplanev1.InfrastructureMismatchReason))
			g.Expect(condition.Message).To(ContainSubstring(tc.hints))

			name := func(template string) {
				w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
					controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef = refTo(talosTemplate(template))
				})
			}
			name(tc.fits)
			w.settle(r)
			g.Expect(w.machines()).To(HaveLen(1))
			g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.InitializedCondition)).To(BeTrue())

			name(tc.misfits)
			w.settle(r)
			g.Expect(w.machines()).To(HaveLen(1), "nothing rolls out")
			g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.RollingOutCondition)).To(ContainSubstring(tc.hints))
		})
	}
}
