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
// and Node.
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
	for _, worker := range workers {
		_, err := world.Stack.Kubectl(ctx, "--namespace", name, "annotate", "talosmachine", worker.Spec.InfrastructureRef.Name, infrav1.ReprovisionAnnotation+"=")
		g.Expect(err).NotTo(HaveOccurred())
	}
	most := 0
	g.Eventually(func(g Gomega) {
		now := underWay(ctx, g, name)
		most = max(most, now)
		for _, worker := range workers {
			machine := &infrav1.TalosMachine{}
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: worker.Spec.InfrastructureRef.Name}, machine)).To(Succeed())
			g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
			g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
			g.Expect(told(machine, infrav1.ReprovisioningCondition).Status).To(Equal(metav1.ConditionFalse))
			g.Expect(told(machine, infrav1.ReadyCondition).Status).To(Equal(metav1.ConditionTrue))
		}
		g.Expect(now).To(BeZero())
	}).WithTimeout(timeout).Should(Succeed())

	g.Expect(most).To(Equal(1), "one at a time")
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
	awaitAvailable(t, name)
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	expectStates(t, name, infrav1.HostAvailable, len(hosts))
	expectWiped(t, machines, hosts...)
	expectRemembered(ctx, g, name, workers)
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
	wish := client.ObjectKey{Namespace: name, Name: controlPlanes[0].Spec.InfrastructureRef.Name}
	_, err := world.Stack.Kubectl(ctx, "--namespace", name, "annotate", "talosmachine", wish.Name, infrav1.ReprovisionAnnotation+"=")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		machine := &infrav1.TalosMachine{}
		g.Expect(world.Client.Get(ctx, wish, machine)).To(Succeed())
		g.Expect(told(machine, infrav1.ReprovisioningCondition)).To(HaveField("Reason", infrav1.EtcdQuorumAtRiskReason))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(machines.Machine(asked).Boots()).To(Equal(boots))

	machines.Machine(down).Break(talossim.Faults{})
	g.Eventually(func(g Gomega) {
		machine := &infrav1.TalosMachine{}
		g.Expect(world.Client.Get(ctx, wish, machine)).To(Succeed())
		g.Expect(machine.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
		g.Expect(told(machine, infrav1.ReprovisioningCondition)).To(HaveField("Reason", infrav1.NotReprovisioningReason))
	}).WithTimeout(timeout).Should(Succeed())
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

// underWay counts the machines that are being re-provisioned.
func underWay(ctx context.Context, g Gomega, namespace string) int {
	list, count := &infrav1.TalosHostList{}, 0
	g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
	for _, host := range list.Items {
		if host.Spec.Reprovision.ClusterName != "" {
			count++
		}
	}
	return count
}

// hostOf is the host of a Machine.
func hostOf(ctx context.Context, g Gomega, hosts []fleet.Host, machine clusterv1.Machine) fleet.Host {
	infra := &infrav1.TalosMachine{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.InfrastructureRef.Name}, infra)).To(Succeed())
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
