package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

// TestARolloutReplacesEachMachine: another version reaches all Machines, one after
// the other, with one Machine more and with one fewer at a time. Meanwhile the
// versions are told in order (§14.8), and of each Machine whether it is up to date
// (§14.16).
func TestARolloutReplacesEachMachine(t *testing.T) {
	for surge := range 2 {
		t.Run(fmt.Sprintf("maxSurge %d", surge), func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("rollout-%d", surge)
			g, ctx := NewWithT(t), t.Context()
			machines := newFleet(t, simfleet.Options{})
			hosts := runCluster(t, machines, name, 3, 0)
			hosts = append(hosts, addHosts(t, machines, name, surge)...)
			machines.Sim.Expect(2 + surge)
			before := namesOf(ctx, g, name)
			ending := watchRollout(t, name)
			_, err := world.Stack.Kubectl(ctx, "--namespace", name, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch",
				fmt.Sprintf(`{"spec":{"version":"v1.36.4","rollout":{"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":%d}}}}}`, surge))
			g.Expect(err).NotTo(HaveOccurred())
			g.Eventually(func(g Gomega) {
				g.Expect(controlPlaneOf(ctx, g, name).Status.UpToDateReplicas).NotTo(HaveValue(BeEquivalentTo(3)))
			}).WithTimeout(timeout).Should(Succeed())
			awaitControlPlane(t, name, 3)
			for _, old := range before {
				g.Expect(namesOf(ctx, g, name)).NotTo(ContainElement(old))
			}
			ending().expect(g, before, simfleet.KubernetesVersion, "v1.36.4")
			g.Expect(machines.Bootstraps()).To(Equal(1))
			deleteClusters(t, name, name)
			expectStates(t, name, infrav1.HostAvailable, len(hosts))
			expectWiped(t, machines, hosts...)
		})
	}
}

// TestARolloutWithoutASpareHost: one machine and one host. The replacement finds no
// host, which the condition says, with the cure; once there is a host, it comes before
// the old one goes. Talos' own manifests follow when that is done, and not before.
func TestARolloutWithoutASpareHost(t *testing.T) {
	t.Parallel()
	const name = "no-spare"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 0)
	before := namesOf(ctx, g, name)
	workload := clientConfigsOf(t, g, name).workload(g)
	g.Expect(workload.Create(ctx, kubeProxy(g, simfleet.KubernetesVersion))).To(Succeed())
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch", `{"spec":{"version":"v1.36.4"}}`)
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		rolling := told(controlPlaneOf(ctx, g, name), controlplanev1.RollingOutCondition)
		g.Expect(rolling.Reason).To(Equal(controlplanev1.NoSpareHostReason))
		g.Expect(rolling.Message).To(ContainSubstring("add one, or set maxSurge to 0"))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(namesOf(ctx, g, name)).To(ContainElements(before))
	g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.ManifestsUpToDateCondition).Reason).To(Equal(controlplanev1.ManifestsWaitingReason))
	g.Expect(imageOfKubeProxy(ctx, g, workload)).To(HaveSuffix(simfleet.KubernetesVersion))

	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	g.Eventually(func(g Gomega) {
		g.Expect(namesOf(ctx, g, name)).NotTo(ContainElement(before[0]))
	}).WithTimeout(timeout).Should(Succeed())
	awaitControlPlane(t, name, 1)
	g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.RollingOutCondition)).To(HaveField("Reason", controlplanev1.NotRollingOutReason))
	g.Eventually(func(g Gomega) {
		g.Expect(imageOfKubeProxy(ctx, g, workload)).To(HaveSuffix("v1.36.4"))
		g.Expect(told(controlPlaneOf(ctx, g, name), controlplanev1.ManifestsUpToDateCondition).Status).To(Equal(metav1.ConditionTrue))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Bootstraps()).To(Equal(1))
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// kubeProxy is what Talos makes of kube-proxy in a cluster of a version.
func kubeProxy(g Gomega, version string) *appsv1.DaemonSet {
	made := &appsv1.DaemonSet{}
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(builders.KubeProxy(version), made)).To(Succeed())
	return made
}

func imageOfKubeProxy(ctx context.Context, g Gomega, workload client.Client) string {
	found := kubeProxy(g, "")
	g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(found), found)).To(Succeed())
	return found.Spec.Template.Spec.Containers[0].Image
}

// rolloutStory is what was told while Machines were replaced.
type rolloutStory struct {
	versions [][]string
	upToDate map[string][]metav1.ConditionStatus
}

// watchRollout writes down what is told of a control plane and its Machines, until
// the returned function is called.
func watchRollout(t *testing.T, namespace string) func() rolloutStory {
	t.Helper()
	g := NewWithT(t)
	controlPlanes, err := world.Client.Watch(t.Context(), &controlplanev1.TalosControlPlaneList{}, client.InNamespace(namespace))
	g.Expect(err).NotTo(HaveOccurred())
	machines, err := world.Client.Watch(t.Context(), &clusterv1.MachineList{}, client.InNamespace(namespace))
	g.Expect(err).NotTo(HaveOccurred())
	story := rolloutStory{upToDate: map[string][]metav1.ConditionStatus{}}
	var ended sync.WaitGroup
	ended.Go(func() {
		for event := range controlPlanes.ResultChan() {
			if controlPlane, ok := event.Object.(*controlplanev1.TalosControlPlane); ok {
				var versions []string
				for _, entry := range controlPlane.Status.Versions {
					versions = append(versions, entry.Version)
				}
				story.versions = append(story.versions, versions)
			}
		}
	})
	ended.Go(func() {
		for event := range machines.ResultChan() {
			if machine, ok := event.Object.(*clusterv1.Machine); ok && event.Type != watch.Deleted {
				story.upToDate[machine.Name] = append(story.upToDate[machine.Name], told(machine, clusterv1.MachineUpToDateCondition).Status)
			}
		}
	})
	return func() rolloutStory {
		controlPlanes.Stop()
		machines.Stop()
		ended.Wait()
		return story
	}
}

// expect wants the older version first, and no Machine without a word about its
// being up to date once there was one: at the end the old ones are not.
func (s rolloutStory) expect(g Gomega, old []string, from, to string) {
	g.Expect(s.versions).To(ContainElement([]string{from, to}), "both are told while both are there")
	for _, versions := range s.versions {
		g.Expect(versions).To(BeElementOf([]string{from}, []string{from, to}, []string{to}))
	}
	g.Expect(len(s.upToDate)).To(BeNumerically(">", len(old)))
	for name, told := range s.upToDate {
		first := slices.IndexFunc(told, func(status metav1.ConditionStatus) bool { return status != "" })
		g.Expect(first).To(BeNumerically(">=", 0), name)
		g.Expect(told[first:]).NotTo(ContainElement(metav1.ConditionStatus("")), name)
		if slices.Contains(old, name) {
			g.Expect(told[len(told)-1]).To(Equal(metav1.ConditionFalse), name)
		} else {
			g.Expect(told[first:]).To(HaveEach(metav1.ConditionTrue), name)
		}
	}
}

// TestTwoMachinesDeletedAtOnceAreReplaced: each leaves etcd by itself, one after
// the other, and two others join. With OnDelete these have the new version, and nothing
// else is replaced. All names are as the template says.
func TestTwoMachinesDeletedAtOnceAreReplaced(t *testing.T) {
	t.Parallel()
	const name, version = "two-deleted", "v1.36.4"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 3, 0, setField("TalosControlPlane", "{{ .random }}-of-{{ .cluster.name }}", "spec", "machineNaming", "template"))
	before := namesOf(ctx, g, name)
	ending := watchRollout(t, name)
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch",
		fmt.Sprintf(`{"spec":{"version":%q,"rollout":{"strategy":{"type":"OnDelete"}}}}`, version))
	g.Expect(err).NotTo(HaveOccurred())
	awaitOutdated(t, name, before...)

	machines.Sim.Expect(1) // Two are taken by a person.
	_, err = world.Stack.Kubectl(ctx, "--namespace", name, "delete", "machine", before[0], before[1], "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	awaitOutdated(t, name, before[2])
	g.Expect(machinesOf(ctx, g, name, true)).To(ConsistOf(
		And(HaveField("Name", before[2]), HaveField("Spec.Version", simfleet.KubernetesVersion)),
		HaveField("Spec.Version", version), HaveField("Spec.Version", version)))
	g.Expect(slices.Collect(maps.Keys(ending().upToDate))).To(And(HaveLen(5), ContainElements(before), HaveEach(MatchRegexp("^[a-z0-9]{5}-of-"+name+"$"))))
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// awaitOutdated waits until a control plane has three Machines that are well, of which
// just these are outdated, and nothing is done or waited for about them.
func awaitOutdated(t *testing.T, name string, outdated ...string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	g.Eventually(func(g Gomega) {
		controlPlane := controlPlaneOf(ctx, g, name)
		g.Expect(controlPlane.Status.Replicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Status.ReadyReplicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(controlPlane.Status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(3 - len(outdated))))
		g.Expect(told(controlPlane, controlplanev1.EtcdClusterHealthyCondition).Status).To(Equal(metav1.ConditionTrue))
		var lines []any
		for _, machine := range outdated {
			lines = append(lines, HavePrefix("* Machine "+machine+": "))
		}
		g.Expect(strings.Split(told(controlPlane, controlplanev1.RollingOutCondition).Message, "\n")).To(ConsistOf(lines...))
	}).WithTimeout(timeout).Should(Succeed())
}

// TestAHostServesTheNextMachineWhileItsLastOneLasts: there is no other host, so the
// next Machine has the address of one that is still there. The member that joins at it
// is the next one's.
func TestAHostServesTheNextMachineWhileItsLastOneLasts(t *testing.T) {
	t.Parallel()
	const (
		name  = "same-host"
		stays = "capi-talos.test/stays"
	)
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{Delays: talossim.Delays{Etcd: 3 * time.Second}})
	hosts := runCluster(t, machines, name, 3, 0)
	before := namesOf(ctx, g, name)
	old := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: before[0]}}
	g.Expect(world.Client.Patch(ctx, old, client.RawPatch(types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/finalizers/-","value":"`+stays+`"}]`)))).To(Succeed())
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "delete", "machine", old.Name, "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		all := namesOf(ctx, g, name)
		g.Expect(all).To(And(HaveLen(4), ContainElements(before)), "the last Machine of the host and the next one")
		for _, machine := range machinesOf(ctx, g, name, true) {
			if machine.Name != old.Name {
				g.Expect(told(&machine, controlplanev1.MachineEtcdMemberHealthyCondition).Status).To(Equal(metav1.ConditionTrue), machine.Name)
			}
		}
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Sim.Offences()).To(BeEmpty())
	g.Expect(world.Client.Patch(ctx, old, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	awaitControlPlane(t, name, 3)
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// TestARemovedMemberIsTold: somebody takes a member out of etcd by hand. Nothing else
// changes, the Machine says what is wrong and what to do, and that brings three voters.
func TestARemovedMemberIsTold(t *testing.T) {
	t.Parallel()
	const name = "removed-member"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 3, 0)
	removed := namesOf(ctx, g, name)[0]
	removeMember(t, name, removed)
	g.Eventually(func(g Gomega) {
		for _, machine := range machinesOf(ctx, g, name, true) {
			member := told(&machine, controlplanev1.MachineEtcdMemberHealthyCondition)
			g.Expect(member.Reason == controlplanev1.MachineEtcdMemberRemovedReason).To(Equal(machine.Name == removed), "%s: %s", machine.Name, member.Message)
		}
		healthy := told(controlPlaneOf(ctx, g, name), controlplanev1.EtcdClusterHealthyCondition)
		g.Expect(healthy.Status).To(Equal(metav1.ConditionFalse))
		g.Expect(healthy.Message).To(ContainSubstring("Machine " + removed + ": The etcd member was removed"))
	}).WithTimeout(timeout).Should(Succeed())

	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "delete", "machine", removed)
	g.Expect(err).NotTo(HaveOccurred())
	awaitControlPlane(t, name, 3)
	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// removeMember takes the etcd member of a Machine out through the node of another, as
// "talosctl etcd remove-member" does.
func removeMember(t *testing.T, name, machine string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	var credentials talosclient.Credentials
	var endpoints []string
	// The last Machines that came reach the talosconfig a pass later.
	g.Eventually(func(g Gomega) {
		var err error
		credentials, endpoints, err = secrets.ParseTalosconfig(clientConfigsOf(t, g, name).talosconfig.Data["talosconfig"])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(len(endpoints)).To(BeNumerically(">", 1))
	}).WithTimeout(timeout).Should(Succeed())
	dialer := talosclient.New()
	defer dialer.Close()
	for _, endpoint := range endpoints {
		node, err := dialer.Secure(ctx, endpoint, credentials)
		g.Expect(err).NotTo(HaveOccurred())
		members, err := node.EtcdMembers(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		i := slices.IndexFunc(members, func(member talosclient.EtcdMember) bool { return member.Hostname == machine })
		g.Expect(i).NotTo(BeNumerically("<", 0), "%s is no member", machine)
		if !members[i].IsAt([]string{endpoint}) {
			g.Expect(node.EtcdRemoveMember(ctx, members[i].ID)).To(Succeed())
			return
		}
	}
	t.Fatal("there is no node of another Machine")
}

// TestAnUnhealthyControlPlaneMachineIsReplaced: a MachineHealthCheck finds a node
// that is gone; its member is removed through another one, and three vote again.
func TestAnUnhealthyControlPlaneMachineIsReplaced(t *testing.T) {
	t.Parallel()
	const name = "unhealthy"
	// A machine that joins is not healthy yet: with less patience than a join takes,
	// each replacement would be replaced. So the check looks at one Machine only.
	const patience = int32(15)
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	runCluster(t, machines, name, 3, 0, setField("TalosMachineTemplate", int64(30), "spec", "template", "spec", "metal", "releaseTimeoutSeconds"))
	addHosts(t, machines, name, 1)
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "patch", "taloscontrolplane", name+"-control-plane", "--type=merge", "--patch",
		`{"spec":{"etcd":{"leaveTimeoutSeconds":10}}}`)
	g.Expect(err).NotTo(HaveOccurred())
	broken := machinesOf(ctx, g, name, true)[0]
	kubectl(t, name, "label", "machine", broken.Name, "broken=")
	g.Expect(world.Client.Create(ctx, &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: name,
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{"broken": ""}},
			Checks: clusterv1.MachineHealthCheckChecks{
				NodeStartupTimeoutSeconds: ptr.To(int32(0)),
				UnhealthyMachineConditions: []clusterv1.UnhealthyMachineCondition{
					{Type: "EtcdMemberHealthy", Status: metav1.ConditionUnknown, TimeoutSeconds: ptr.To(patience)},
					{Type: "EtcdMemberHealthy", Status: metav1.ConditionFalse, TimeoutSeconds: ptr.To(patience)},
				},
			},
		},
	})).To(Succeed())
	for _, host := range machines.Hosts() {
		if machine := machines.Machine(host); machine.Hostname() == broken.Name {
			machine.Break(talossim.Faults{Silent: true, DeadEtcd: true})
		}
	}

	g.Eventually(func(g Gomega) {
		g.Expect(namesOf(ctx, g, name)).NotTo(ContainElement(broken.Name))
	}).WithTimeout(3 * timeout).WithPolling(time.Second).Should(Succeed())
	awaitControlPlane(t, name, 3)
	g.Expect(machines.Bootstraps()).To(Equal(1))
	deleteClusters(t, name, name)
}
