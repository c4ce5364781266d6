package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// maxWriteGap is for how long no write may be acknowledged while Machines are
// replaced with one more at a time.
const maxWriteGap = 10 * time.Second

// pollFast is how often it is looked for what our managers put an end to.
const pollFast = 100 * time.Millisecond

// A cluster of three control plane machines and two workers lives through what
// people and accidents do to it. The specs are steps of its life: each leaves it
// whole, with one host free.
var _ = Describe("A cluster of three control plane machines", Ordered, func() {
	const name = "three"
	var hosts []fleet.Host
	BeforeAll(func(ctx SpecContext) {
		offerPrevious(ctx)
		hosts = addHosts(ctx, name, 6)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 3, Workers: 2, Version: parts.PreviousKubernetesVersion}, func(kind string, spec map[string]any) {
			if kind == "TalosMachineTemplate" {
				setField(spec, int64(30), "template", "spec", "metal", "releaseTimeoutSeconds")
			}
		})
		awaitControlPlane(ctx, name, 3)
		awaitWorkers(ctx, name, 2)
	}, NodeTimeout(longTimeout))

	It("is brought to another Kubernetes version with one Machine more, and loses no write", func(ctx SpecContext) {
		before := uids(machinesOf(ctx, name, controlPlanes))
		writes := startWriter(ctx, name)
		patch(ctx, name, "taloscontrolplane", name+"-control-plane", fmt.Sprintf(`{"spec":{"version":%q}}`, parts.KubernetesVersion))
		awaitControlPlane(ctx, name, 3)
		Expect(writes.stop(ctx)).To(BeNumerically("<=", maxWriteGap))
		Expect(uids(machinesOf(ctx, name, controlPlanes))).NotTo(ContainElement(BeElementOf(before)))
		expectKubelets(ctx, name, parts.KubernetesVersion, machinesOf(ctx, name, controlPlanes)...)
	}, SpecTimeout(longTimeout))

	It("gets another Machine for one that is deleted", func(ctx SpecContext) {
		deleteMachines(ctx, name, machinesOf(ctx, name, controlPlanes)[0])
	}, SpecTimeout(longTimeout))

	It("gets two others for two that are deleted at once", func(ctx SpecContext) {
		deleteMachines(ctx, name, machinesOf(ctx, name, controlPlanes)[:2]...)
	}, SpecTimeout(longTimeout))

	It("stands the restart of a node between its leave and its reset", Label("leave"), func(ctx SpecContext) {
		victim, letGo := leaveAndStay(ctx, name)
		Expect(world.nodes.Fleet.Restart(ctx, hostOf(victim))).To(Succeed())
		Eventually(ctx, func() (bool, error) { return hasJoinedAgain(ctx, name, victim) }).WithTimeout(timeout).WithPolling(pollFast).Should(BeTrue())
		letGo(ctx)
		awaitReplaced(ctx, name, victim)
	}, SpecTimeout(longTimeout))

	It("stands the death of the manager between a leave and the end of the Machine", func(ctx SpecContext) {
		victim, letGo := leaveAndStay(ctx, name)
		manager := world.stack.Managers.Get(management.ControlPlane)
		Expect(manager.Kill()).To(Succeed())
		Expect(world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(victim), victim)).To(Succeed())
		Expect(victim.Annotations).To(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
		letGo(ctx)
		Expect(manager.Start(ctx)).To(Succeed())
		awaitReplaced(ctx, name, victim)
	}, SpecTimeout(longTimeout))

	It("gets another worker for each with one host free, and with none", func(ctx SpecContext) {
		before := uids(machinesOf(ctx, name, workers))
		patch(ctx, name, "machinedeployment", name+"-workers", fmt.Sprintf(`{"spec":{"template":{"spec":{"version":%q}}}}`, parts.KubernetesVersion))
		awaitOthers(ctx, name, before)
		expectKubelets(ctx, name, parts.KubernetesVersion, machinesOf(ctx, name, workers)...)

		before = uids(machinesOf(ctx, name, workers))
		spare := freeHosts(ctx, name)
		Expect(spare).To(HaveLen(1))
		patch(ctx, name, "taloshost", spare[0], `{"spec":{"unschedulable":true}}`)
		patch(ctx, name, "machinedeployment", name+"-workers", fmt.Sprintf(
			`{"spec":{"rollout":{"after":%q,"strategy":{"type":"RollingUpdate","rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}}}}`,
			time.Now().UTC().Format(time.RFC3339)))
		awaitOthers(ctx, name, before)
		Expect(freeHosts(ctx, name)).To(Equal(spare))
		patch(ctx, name, "taloshost", spare[0], `{"spec":{"unschedulable":false}}`)
	}, SpecTimeout(longTimeout))

	It("has a worker and a control plane machine wiped and configured anew, which stay the same Machines", Label("again"), func(ctx SpecContext) {
		for _, machine := range []*clusterv1.Machine{machinesOf(ctx, name, workers)[0], machinesOf(ctx, name, controlPlanes)[0]} {
			before := nodeOf(ctx, Default, name, machine)
			wished := &infrav1.TalosMachine{}
			kubectl(ctx, name, "annotate", "talosmachine", machine.Spec.InfrastructureRef.Name, infrav1.ReprovisionAnnotation+"=")
			Eventually(ctx, func(g Gomega) {
				g.Expect(world.client.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: machine.Spec.InfrastructureRef.Name}, wished)).To(Succeed())
				g.Expect(wished.Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
				g.Expect(conditions.IsTrue(wished, infrav1.ReadyCondition)).To(BeTrue(), conditions.GetMessage(wished, infrav1.ReadyCondition))
				// Talos keeps that ID on the partition of its configuration.
				g.Expect(nodeOf(ctx, g, name, machine).Status.NodeInfo.MachineID).NotTo(Equal(before.Status.NodeInfo.MachineID))
			}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
			Expect(uids(machinesOf(ctx, name))).To(ContainElement(string(machine.UID)))
		}
		awaitControlPlane(ctx, name, 3)
		awaitWorkers(ctx, name, 2)
	}, SpecTimeout(longTimeout))

	It("is moved to another management cluster and back, and nobody notices", Label("move"), func(ctx SpecContext) {
		here, there := place{world.stack, world.client}, newPlace(ctx)
		a := addons{namespace: name}
		for _, addon := range []string{"one", "two"} {
			a.offer(ctx, addon, charts.Chart{"templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}}\n"}.Pack("1.0.0"))
			a.create(ctx, addon, func(*addonv1.TalosClusterAddonSpec) {})
			kubectl(ctx, name, "label", "cluster", name, addon+"=on")
			a.await(ctx, addon, 1)
		}
		for _, move := range []struct{ from, to place }{{here, there}, {there, here}} {
			expectMoved(ctx, name, move.from, move.to, hosts)
		}
		awaitControlPlane(ctx, name, 3)
		awaitWorkers(ctx, name, 2)
	}, SpecTimeout(longTimeout))

	It("heals when a machine is gone for good", func(ctx SpecContext) {
		Expect(world.client.Create(ctx, healthCheck(name))).To(Succeed())
		victim := machinesOf(ctx, name, controlPlanes)[0]
		lost := hostOf(victim)
		Expect(world.nodes.Fleet.Destroy(ctx, lost)).To(Succeed())
		awaitReplaced(ctx, name, victim)

		By("giving the others back")
		deleteCluster(ctx, name)
		Eventually(ctx, func() []string { return freeHosts(ctx, name) }).WithTimeout(timeout).WithPolling(time.Second).Should(HaveLen(5))
		for _, host := range hosts {
			if host.Name != lost.Name {
				Expect(world.nodes.Fleet.Wiped(ctx, host)).To(Succeed())
			}
		}
	}, SpecTimeout(longTimeout))
})

var _ = Describe("A control plane of three with no host free", func() {
	It("is brought to another Kubernetes version with one Machine fewer, and loses no write", func(ctx SpecContext) {
		const name = "fewer"
		offerPrevious(ctx)
		hosts := addHosts(ctx, name, 3)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 3, Version: parts.PreviousKubernetesVersion}, func(kind string, spec map[string]any) {
			if kind == "TalosControlPlane" {
				setField(spec, map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(0)}}, "rollout", "strategy")
			}
		})
		awaitControlPlane(ctx, name, 3)
		before := uids(machinesOf(ctx, name, controlPlanes))
		writes := startWriter(ctx, name)
		patch(ctx, name, "taloscontrolplane", name+"-control-plane", fmt.Sprintf(`{"spec":{"version":%q}}`, parts.KubernetesVersion))
		awaitControlPlane(ctx, name, 3)
		writes.stop(ctx)
		Expect(uids(machinesOf(ctx, name, controlPlanes))).NotTo(ContainElement(BeElementOf(before)))
		expectKubelets(ctx, name, parts.KubernetesVersion, machinesOf(ctx, name, controlPlanes)...)
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostAvailable)
		for _, host := range hosts {
			Expect(world.nodes.Fleet.Wiped(ctx, host)).To(Succeed())
		}
	}, SpecTimeout(2*longTimeout))
})

// offerPrevious makes the images of an older Kubernetes ready to be pulled.
func offerPrevious(ctx context.Context) {
	GinkgoHelper()
	built, err := parts.Ensure(ctx, parts.Print(GinkgoWriter), parts.PreviousTalosNodeImages)
	Expect(err).NotTo(HaveOccurred())
	Expect(world.nodes.OfferPrevious(ctx, built)).To(Succeed())
}

// deleteMachines deletes Machines as a user does, and waits until others have
// taken their place.
func deleteMachines(ctx context.Context, name string, victims ...*clusterv1.Machine) {
	GinkgoHelper()
	args := []string{"delete", "machine", "--wait=false"}
	for _, victim := range victims {
		args = append(args, victim.Name)
	}
	kubectl(ctx, name, args...)
	awaitReplaced(ctx, name, victims...)
}

// awaitReplaced waits until control plane Machines are gone, three are whole
// without them, and one host is free.
func awaitReplaced(ctx context.Context, name string, victims ...*clusterv1.Machine) {
	GinkgoHelper()
	for _, victim := range victims {
		Eventually(ctx, func() bool {
			return apierrors.IsNotFound(world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(victim), &clusterv1.Machine{}))
		}).WithTimeout(longTimeout).WithPolling(time.Second).Should(BeTrue(), "Machine %s is still there", victim.Name)
	}
	awaitControlPlane(ctx, name, 3)
}

// awaitOthers waits until two workers are ready, none of which is one of these.
func awaitOthers(ctx context.Context, name string, before []string) {
	GinkgoHelper()
	Eventually(ctx, func() []string { return uids(machinesOf(ctx, name, workers)) }).
		WithTimeout(longTimeout).WithPolling(time.Second).Should(And(HaveLen(2), Not(ContainElement(BeElementOf(before)))))
	awaitWorkers(ctx, name, 2)
	Eventually(ctx, func() []string { return freeHosts(ctx, name) }).WithTimeout(timeout).WithPolling(time.Second).ShouldNot(BeEmpty())
}

// leaveAndStay deletes a control plane Machine, and returns when its node has left etcd, and
// its data is gone, too: a node that restarts before never joins again, because its etcd
// finds out that its member was removed. The Machine stays until the returned function is
// called.
func leaveAndStay(ctx context.Context, name string) (*clusterv1.Machine, func(context.Context)) {
	GinkgoHelper()
	victim, letGo := machinesOf(ctx, name, controlPlanes)[0], holdHooks(ctx, name)
	kubectl(ctx, name, "delete", "machine", victim.Name, "--wait=false")
	awaitLeft(ctx, name, victim)
	Eventually(ctx, func() (int, error) { return etcdFilesAt(ctx, name, addressOf(victim)) }).WithTimeout(timeout).WithPolling(pollFast).Should(BeZero())
	return victim, letGo
}

// hasJoinedAgain reports whether a node that has left etcd has joined it again. As a learner it
// is removed within a second, so that only the event is sure to be seen.
func hasJoinedAgain(ctx context.Context, name string, victim *clusterv1.Machine) (bool, error) {
	events := &corev1.EventList{}
	if err := world.client.List(ctx, events, ctrlclient.InNamespace(name)); err != nil {
		return false, err
	}
	for i := range events.Items {
		if events.Items[i].Reason == "RemoveMember" && strings.Contains(events.Items[i].Message, victim.Name) {
			return true, nil
		}
	}
	const all = 3
	members, err := membersAt(ctx, name, addressOf(machinesOf(ctx, name, controlPlanes)[1]))
	return len(members) == all, err
}

// etcdFilesAt counts what the data directory of the etcd of a node has.
func etcdFilesAt(ctx context.Context, name, address string) (int, error) {
	GinkgoHelper()
	talos := talosOf(ctx, name, address)
	defer func() { _ = talos.Close() }()
	stream, err := talos.LS(ctx, &machineapi.ListRequest{Root: "/var/lib/etcd/member"})
	if err != nil {
		return 0, err
	}
	for files := 0; ; files++ {
		switch file, err := stream.Recv(); {
		case errors.Is(err, io.EOF):
			return files, nil
		case strings.Contains(fmt.Sprint(err)+file.GetError(), "no such file or directory"):
			return 0, nil
		case err != nil:
			return 0, err
		}
	}
}

// holdHooks lets nobody take our pre-terminate hook from the Machines of a
// namespace, until the returned function is called.
func holdHooks(ctx context.Context, namespace string) func(context.Context) {
	GinkgoHelper()
	const has = `(has(%[1]s.metadata.annotations) && '` + controlplanev1.EtcdPreTerminateHookAnnotation + `' in %[1]s.metadata.annotations)`
	lift, err := world.stack.Forbid(ctx, management.Forbidden{
		Operation: admissionv1.Update, Resource: clusterv1.GroupVersion.WithResource("machines").GroupResource(), Namespace: namespace,
		Unless: "!" + fmt.Sprintf(has, "oldObject") + " || " + fmt.Sprintf(has, "object"),
		Try: func(ctx context.Context) error {
			machine := machinesOf(ctx, namespace, controlPlanes)[0]
			without := machine.DeepCopy()
			delete(without.Annotations, controlplanev1.EtcdPreTerminateHookAnnotation)
			return world.client.Patch(ctx, without, ctrlclient.MergeFrom(machine), ctrlclient.DryRunAll)
		},
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(lift)
	return func(ctx context.Context) { Expect(lift(ctx)).To(Succeed()) }
}

// awaitLeft waits until the etcd of the other nodes no longer has the member of a
// Machine.
func awaitLeft(ctx context.Context, name string, left *clusterv1.Machine) {
	GinkgoHelper()
	for _, machine := range machinesOf(ctx, name, controlPlanes) {
		if machine.Name == left.Name {
			continue
		}
		const interval = 100 * time.Millisecond
		Eventually(ctx, func(g Gomega) {
			members, err := membersAt(ctx, name, addressOf(machine))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(members).NotTo(ContainElement(HaveField("Hostname", left.Name)))
		}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
		return
	}
}

// healthCheck finds control plane machines whose Node does not answer.
func healthCheck(name string) *clusterv1.MachineHealthCheck {
	const patience = 10
	return &clusterv1.MachineHealthCheck{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name + "-control-plane"},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: name,
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachineControlPlaneLabel: ""}},
			Checks: clusterv1.MachineHealthCheckChecks{
				NodeStartupTimeoutSeconds: ptr.To(int32(0)),
				UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, TimeoutSeconds: ptr.To(int32(patience))},
					{Type: corev1.NodeReady, Status: corev1.ConditionFalse, TimeoutSeconds: ptr.To(int32(patience))},
				},
			},
		},
	}
}
