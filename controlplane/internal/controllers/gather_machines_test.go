package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TestAStandAloneMachineIsAdopted: nobody controls it, and it has a TalosConfig.
func TestAStandAloneMachineIsAdopted(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	machine := w.machines()[0]
	machine.OwnerReferences = nil
	delete(machine.Labels, clusterv1.MachineControlPlaneNameLabel)
	g.Expect(w.client.Update(t.Context(), machine)).To(Succeed())

	w.settle(r)

	adopted := w.machines()
	g.Expect(adopted).To(HaveLen(1))
	g.Expect(adopted[0].Name).To(Equal(machine.Name))
	g.Expect(metav1.IsControlledBy(adopted[0], w.controlPlane())).To(BeTrue())
	g.Expect(adopted[0].Labels).To(HaveKey(clusterv1.MachineControlPlaneNameLabel))
	g.Expect(w.bootstraps()).To(Equal(1))
}

// TestAMachineOfAnotherVendorsConfigurationIsNotAdopted: the control plane stops,
// and says so.
func TestAMachineOfAnotherVendorsConfigurationIsNotAdopted(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	g.Expect(w.client.Create(t.Context(), &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "orphan", Labels: map[string]string{
			clusterv1.ClusterNameLabel: testCluster, clusterv1.MachineControlPlaneLabel: "",
		}},
		Spec: clusterv1.MachineSpec{Bootstrap: clusterv1.Bootstrap{ConfigRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: bootstrapv1.GroupVersion.Group, Kind: "KubeadmConfig", Name: "orphan",
		}}},
	})).To(Succeed())
	r := w.manager()
	for range 4 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}
	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.machines()[0].OwnerReferences).To(BeEmpty())
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.InitializedCondition)).To(Equal(controlplanev1.ForeignMachinesReason))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.InitializedCondition)).To(ContainSubstring("delete them"))
}

// TestAFirstMachineThatDiesIsReplaced: etcd is bootstrapped on another one by
// itself once the host of the first was proven wiped, and not before.
func TestAFirstMachineThatDiesIsReplaced(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r, first := w.firstDies()
	g.Expect(w.bootstraps()).To(Equal(1), "nobody knows what is on the first host")

	host := ours("TalosHost", "host-1", map[string]any{
		"spec": map[string]any{"wiped": []any{map[string]any{"providerID": first.Spec.ProviderID, "provenAt": "2026-06-01T12:00:00Z"}}},
	})
	g.Expect(w.client.Create(t.Context(), host)).To(Succeed())
	w.takeTurns(r)
	g.Expect(w.bootstraps()).To(Equal(2))
	g.Expect(w.controlPlane().Annotations[controlplanev1.BootstrapIntentAnnotation]).To(ContainSubstring(w.machines()[0].Name))
}

// TestAFirstMachineInAPodThatDiesIsReplaced: the same, once the infrastructure
// provider has recorded that nothing is left of it, and has let it go.
func TestAFirstMachineInAPodThatDiesIsReplaced(t *testing.T) {
	g := NewWithT(t)
	cluster := newCluster()
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: infrav1.TalosClusterKind, Name: "pods"}
	talosCluster := ours(infrav1.TalosClusterKind, "pods", map[string]any{"spec": map[string]any{"container": map[string]any{}}})
	w := newWorld(t, cluster, newControlPlane(), talosCluster)
	r, first := w.firstDies()
	g.Expect(w.bootstraps()).To(Equal(1), "nobody knows whether its Pod still runs")

	leftover := ours(infrav1.TalosMachineKind, "leftover", map[string]any{"spec": map[string]any{"providerID": first.Spec.ProviderID}})
	g.Expect(w.client.Create(t.Context(), leftover)).To(Succeed())
	g.Expect(w.client.Get(t.Context(), client.ObjectKeyFromObject(talosCluster), talosCluster)).To(Succeed())
	talosCluster.SetAnnotations(map[string]string{infrav1.GoneMachinesAnnotation: "talos://other," + first.Spec.ProviderID})
	g.Expect(w.client.Update(t.Context(), talosCluster)).To(Succeed())
	w.takeTurns(r)
	g.Expect(w.bootstraps()).To(Equal(1), "its TalosMachine is still there")

	g.Expect(w.client.Delete(t.Context(), leftover)).To(Succeed())
	w.takeTurns(r)
	g.Expect(w.bootstraps()).To(Equal(2))
	g.Expect(w.controlPlane().Annotations[controlplanev1.BootstrapIntentAnnotation]).To(ContainSubstring(w.machines()[0].Name))
}

// TestALostFirstMachineIsReplacedByOneThatIsHeld: with three replicas the first is
// remediated before the API server has ever answered, and one that waits for it takes
// its place, once nothing is left of it.
func TestALostFirstMachineIsReplacedByOneThatIsHeld(t *testing.T) {
	g := NewWithT(t)
	controlPlane := newControlPlane()
	controlPlane.Spec.Replicas = ptr.To(int32(3))
	w := newWorld(t, newCluster(), controlPlane)
	r, first := w.firstStarts()
	w.addHeld("held-a")
	w.addHeld("held-b")
	w.flag(first)
	w.takeTurns(r)
	g.Expect(w.names()).To(ConsistOf("held-a", "held-b"))
	g.Expect(w.held("held-a")).To(BeTrue(), "nobody knows what is on the first host")
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.InitializedCondition)).To(Equal(controlplanev1.BootstrapIntentStaleReason))

	host := ours("TalosHost", "host-1", map[string]any{
		"spec": map[string]any{"wiped": []any{map[string]any{"providerID": first.Spec.ProviderID, "provenAt": "2026-06-01T12:00:00Z"}}},
	})
	g.Expect(w.client.Create(t.Context(), host)).To(Succeed())
	w.takeTurns(r)
	w.takeTurns(r)
	g.Expect(w.bootstraps()).To(Equal(2))
	g.Expect(w.names()).To(HaveLen(3))
	g.Expect(w.members()).To(HaveLen(3))
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Normal MachineJoins Handing Machine held-a its configuration, in place of the first")))
}

// names are the names of all Machines.
func (w *world) names() []string {
	return machineNames(&scope{machines: w.machines()})
}

// addHeld adds a Machine that waits for its turn to join.
func (w *world) addHeld(name string) {
	w.t.Helper()
	controlPlane := w.controlPlane()
	machine := desiredMachine(&scope{cluster: newCluster(), controlPlane: controlPlane}, name)
	machine.Spec.Version = controlPlane.Spec.Version
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infraMachineGVK.Group, Kind: infraMachineGVK.Kind, Name: name}
	machine.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "TalosConfig", Name: name}
	config := &bootstrapv1.TalosConfig{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: name, Annotations: map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: heldMessage}},
		Spec:       controlPlane.Spec.TalosConfigSpec,
	}
	for _, object := range []client.Object{machine, config} {
		NewWithT(w.t).Expect(w.client.Create(w.t.Context(), object)).To(Succeed())
	}
}

// firstDies is a first machine whose API server never comes up, and which is deleted
// and replaced.
func (w *world) firstDies() (*Reconciler, *clusterv1.Machine) {
	w.t.Helper()
	g := NewWithT(w.t)
	r, first := w.firstStarts()
	g.Expect(w.client.Delete(w.t.Context(), first)).To(Succeed())
	w.takeTurns(r)
	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.machines()[0].Name).NotTo(Equal(first.Name))

	return r, first
}

// firstStarts bootstraps etcd on a first machine whose API server never comes up.
func (w *world) firstStarts() (*Reconciler, *clusterv1.Machine) {
	w.t.Helper()
	g := NewWithT(w.t)
	w.core = true
	r := w.manager()
	for w.bootstraps() == 0 {
		g.Expect(w.reconcile(r)).To(Succeed())
		w.others()
		if len(w.talos) > 0 {
			w.prober.set(health.APIServerSilent)
		}
	}
	w.prober.set(health.APIServerSilent)
	g.Expect(w.machines()).To(HaveLen(1))

	return r, w.machines()[0]
}

// takeTurns lets a manager and the others take turns, for a while.
func (w *world) takeTurns(r *Reconciler) {
	w.t.Helper()
	for range 20 {
		NewWithT(w.t).Expect(w.reconcile(r)).To(Succeed())
		w.others()
	}
}
