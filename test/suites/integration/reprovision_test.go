package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestWorkersAreReprovisioned (D15): both workers are asked for at once. One after
// the other is wiped, boots anew, and comes back as the same Machine, TalosMachine
// and Node. Then one of them does not answer, and keeps the other one waiting until a
// person says otherwise.
func TestWorkersAreReprovisioned(t *testing.T) {
	t.Parallel()
	const name = "again"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{Personality: talossim.Metal})
	hosts := runCluster(t, machines, name, 1, 2)
	workers := machinesOf(ctx, g, name, false)
	g.Expect(workers).To(HaveLen(2))
	boots := map[string]int{}
	for _, host := range hosts {
		boots[host.Name] = machines.Machine(host).Boots()
	}

	wiped := watchWipes(t, machines, hosts)
	ending := watchReprovisions(t, name)
	for _, worker := range workers {
		wish(t, worker, "")
	}
	awaitReprovisioned(t, workers...)

	g.Expect(ending()).To(Equal(reprovisions{begun: 2, most: 1}), "one at a time")
	for _, before := range workers {
		host := hostOf(ctx, g, hosts, before)
		_, was := wiped.Load(host.Name)
		g.Expect(was).To(BeTrue(), "it was seen without any content")
		g.Expect(machines.Machine(host).Boots()).To(BeNumerically(">", boots[host.Name]))
		g.Eventually(func(g Gomega) {
			machine := &clusterv1.Machine{}
			g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&before), machine)).To(Succeed())
			g.Expect(machine.UID).To(Equal(before.UID))
			g.Expect(machine.Spec).To(Equal(before.Spec))
			g.Expect(machine.Status.NodeRef).To(Equal(before.Status.NodeRef))
			g.Expect(told(machine, clusterv1.MachineNodeReadyCondition).Status).To(Equal(metav1.ConditionTrue))
			g.Expect(told(machine, clusterv1.MachineInfrastructureReadyCondition).Status).To(Equal(metav1.ConditionTrue))
		}).WithTimeout(timeout).Should(Succeed())
	}
	expectReprovisionedDespite(t, machines, hosts, workers[0], workers[1])
	awaitAvailable(t, name)
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
	expectRemembered(ctx, g, name, workers)
}

// expectReprovisionedDespite has a worker wait for a silent one, until a person lets it be
// re-provisioned all the same. The silent one is wiped once it answers.
func expectReprovisionedDespite(t *testing.T, machines *simfleet.Fleet, hosts []fleet.Host, silent, other clusterv1.Machine) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	away, here := machines.Machine(hostOf(ctx, g, hosts, silent)), machines.Machine(hostOf(ctx, g, hosts, other))
	wiped, wipedToo := len(away.Resets()), len(here.Resets())
	away.Break(talossim.Faults{Silent: true})
	ending := watchReprovisions(t, silent.Namespace)
	wish(t, silent, "")
	expectReprovisioning(t, silent, infrav1.WipingReason)
	wish(t, other, "")
	refusal := expectReprovisioning(t, other, infrav1.ReprovisioningBlockedReason)
	g.Expect(refusal.Message).To(And(ContainSubstring(hostOf(ctx, g, hosts, silent).Name), ContainSubstring(infrav1.ReprovisionDespiteOthers)))
	g.Expect(here.Resets()).To(HaveLen(wipedToo))

	wish(t, other, infrav1.ReprovisionDespiteOthers)
	awaitReprovisioned(t, other)
	g.Expect(here.Resets()).To(HaveLen(wipedToo + 1))
	g.Expect(away.Resets()).To(HaveLen(wiped))
	away.Break(talossim.Faults{})
	awaitReprovisioned(t, silent)
	g.Expect(away.Resets()).To(HaveLen(wiped + 1))
	g.Expect(ending()).To(Equal(reprovisions{begun: 2, most: 2}))
}

// TestAControlPlaneMachineIsReprovisioned: not while etcd needs its vote, because
// another member is down; after that it is wiped, and joins etcd again.
func TestAControlPlaneMachineIsReprovisioned(t *testing.T) {
	t.Parallel()
	const name = "again-cp"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{Personality: talossim.Metal})
	hosts := runCluster(t, machines, name, 3, 1)
	controlPlanes := machinesOf(ctx, g, name, true)
	g.Expect(controlPlanes).To(HaveLen(3))
	asked, down := hostOf(ctx, g, hosts, controlPlanes[0]), hostOf(ctx, g, hosts, controlPlanes[1])
	boots := machines.Machine(asked).Boots()
	voters := func() etcdmodel.Count {
		return machines.Sim.Voters(machines.Machine(hostOf(ctx, g, hosts, controlPlanes[2])))
	}
	machines.Machine(down).Break(talossim.Faults{DeadEtcd: true})
	g.Eventually(voters).WithTimeout(timeout).Should(Equal(etcdmodel.Count{Voters: 3, Answering: 2}))

	wiped := watchWipes(t, machines, hosts)
	wish(t, controlPlanes[0], "")
	expectReprovisioning(t, controlPlanes[0], infrav1.EtcdQuorumAtRiskReason)
	g.Expect(machines.Machine(asked).Boots()).To(Equal(boots))

	machines.Machine(down).Break(talossim.Faults{})
	awaitReprovisioned(t, controlPlanes[0])
	g.Eventually(voters).WithTimeout(timeout).Should(Equal(etcdmodel.Count{Voters: 3, Answering: 3}))
	awaitControlPlane(t, name, 3)
	_, was := wiped.Load(asked.Name)
	g.Expect(was).To(BeTrue(), "it was seen without any content")
	g.Expect(machines.Machine(asked).Boots()).To(BeNumerically(">", boots))
	g.Expect(machines.Bootstraps()).To(Equal(1))
	g.Expect(machines.Sim.Offences()).To(BeEmpty())
	g.Expect(machinesOf(ctx, g, name, true)).To(ConsistOf(
		HaveField("UID", controlPlanes[0].UID), HaveField("UID", controlPlanes[1].UID), HaveField("UID", controlPlanes[2].UID)))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
}

// watchWipes looks at machines all the time, past the Talos API, and notes the names
// of those that it has found wiped.
func watchWipes(t *testing.T, machines fleet.Fleet, hosts []fleet.Host) *sync.Map {
	t.Helper()
	const interval = 10 * time.Millisecond
	found := &sync.Map{}
	go func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-t.Context().Done():
				return
			case <-ticker.C:
			}
			for _, host := range hosts {
				if machines.Wiped(t.Context(), host) == nil {
					found.Store(host.Name, true)
				}
			}
		}
	}()
	return found
}

// wish asks for the machine of a Machine to be re-provisioned.
func wish(t *testing.T, machine clusterv1.Machine, value string) {
	t.Helper()
	kubectl(t, machine.Namespace, "annotate", "--overwrite", "talosmachine", machine.Spec.InfrastructureRef.Name, infrav1.ReprovisionAnnotation+"="+value)
}

// expectReprovisioning waits for a reason of the condition about it, which it returns.
func expectReprovisioning(t *testing.T, machine clusterv1.Machine, reason string) metav1.Condition {
	t.Helper()
	var found metav1.Condition
	NewWithT(t).Eventually(func(g Gomega) {
		found = told(infraOf(t.Context(), g, machine), infrav1.ReprovisioningCondition)
		g.Expect(found.Reason).To(Equal(reason))
	}).WithTimeout(timeout).Should(Succeed())
	return found
}

// awaitReprovisioned waits until machines run again, and nothing is left of the wish.
func awaitReprovisioned(t *testing.T, machines ...clusterv1.Machine) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		for _, machine := range machines {
			infra := infraOf(t.Context(), g, machine)
			g.Expect(infra.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
			g.Expect(infra.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
			g.Expect(told(infra, infrav1.ReprovisioningCondition).Reason).To(Equal(infrav1.NotReprovisioningReason))
			g.Expect(told(infra, infrav1.ReadyCondition).Status).To(Equal(metav1.ConditionTrue))
			host := &infrav1.TalosHost{}
			g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: infra.Namespace, Name: infra.Spec.HostRef.Name}, host)).To(Succeed())
			g.Expect(host.Spec.Reprovision).To(BeZero())
		}
	}).WithTimeout(timeout).Should(Succeed())
}

// reprovisions are how often it was begun, and of how many machines at a time.
type reprovisions struct{ begun, most int }

// watchReprovisions counts them until the returned function is called. A watch tells each
// write to a host.
func watchReprovisions(t *testing.T, namespace string) func() reprovisions {
	t.Helper()
	hosts, err := world.Client.Watch(t.Context(), &infrav1.TalosHostList{}, client.InNamespace(namespace))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var (
		ended sync.WaitGroup
		found reprovisions
	)
	ended.Go(func() {
		underWay := map[string]bool{}
		for event := range hosts.ResultChan() {
			host, ok := event.Object.(*infrav1.TalosHost)
			switch {
			case !ok:
			case host.Spec.Reprovision.ClusterName == "":
				delete(underWay, host.Name)
			case !underWay[host.Name]:
				underWay[host.Name] = true
				found.begun++
				found.most = max(found.most, len(underWay))
			}
		}
	})
	return func() reprovisions {
		hosts.Stop()
		ended.Wait()
		return found
	}
}

// infraOf is the TalosMachine of a Machine.
func infraOf(ctx context.Context, g Gomega, machine clusterv1.Machine) *infrav1.TalosMachine {
	found := &infrav1.TalosMachine{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name}, found)).To(Succeed())
	return found
}

// hostOf is the host of a Machine.
func hostOf(ctx context.Context, g Gomega, hosts []fleet.Host, machine clusterv1.Machine) fleet.Host {
	infra := infraOf(ctx, g, machine)
	for _, host := range hosts {
		if host.Name == infra.Spec.HostRef.Name {
			return host
		}
	}
	g.Expect(infra.Spec.HostRef.Name).To(BeEmpty(), "no machine has this name")
	return fleet.Host{}
}

// expectRemembered expects that the hosts remember what was wiped.
func expectRemembered(ctx context.Context, g Gomega, namespace string, machines []clusterv1.Machine) {
	list, known := &infrav1.TalosHostList{}, []string{}
	g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	for _, host := range list.Items {
		for _, wiped := range host.Spec.Wiped {
			known = append(known, wiped.ProviderID)
		}
	}
	for _, machine := range machines {
		g.Expect(known).To(ContainElement(machine.Spec.ProviderID))
	}
}
