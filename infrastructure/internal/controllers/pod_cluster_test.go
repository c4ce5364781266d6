package controllers

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
)

const madeService = testCluster + "-control-plane"

// talosCluster is the only TalosCluster.
func (w *world) talosCluster() *infrav1.TalosCluster {
	w.t.Helper()

	return get(w, &infrav1.TalosCluster{}, testCluster)
}

func (w *world) service() *corev1.Service {
	w.t.Helper()

	return get(w, &corev1.Service{}, madeService)
}

// expectNotReady tells what a TalosCluster says of why it is not ready.
func (w *world) expectNotReady(reason string, words ...string) {
	w.t.Helper()
	ready := conditions.Get(w.talosCluster(), infrav1.ReadyCondition)
	g := NewWithT(w.t)
	g.Expect(ready.Reason).To(Equal(reason), ready.Message)
	g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
	for _, word := range words {
		g.Expect(ready.Message).To(ContainSubstring(word))
	}
}

func (w *world) expectReady() {
	w.t.Helper()
	g := NewWithT(w.t)
	g.Expect(conditions.IsTrue(w.talosCluster(), infrav1.ReadyCondition)).To(BeTrue(), conditions.GetMessage(w.talosCluster(), infrav1.ReadyCondition))
	g.Expect(w.talosCluster().Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

// withPods is a world with a TalosCluster that has its Service.
func withPods(t *testing.T, edit func(*infrav1.TalosCluster)) (*world, *manager) {
	t.Helper()
	w := newPodWorld(t)
	if edit != nil {
		change(w, w.talosCluster(), edit)
	}
	m := w.manager()
	w.settle(m)

	return w, m
}

func ofType(kind infrav1.ControlPlaneServiceType) func(*infrav1.TalosCluster) {
	return func(c *infrav1.TalosCluster) { c.Spec.Container.ControlPlaneService.Type = kind }
}

func TestATalosClusterMakesItsEndpoint(t *testing.T) {
	t.Run("inside the management cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := withPods(t, func(c *infrav1.TalosCluster) {
			c.Labels[clusterv1.WatchLabel] = "ours"
			c.Spec.Container.ControlPlaneService.Annotations = map[string]string{"note": "x"}
		})
		w.expectReady()
		service := w.service()
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint).To(Equal(clusterv1.APIEndpoint{Host: service.Spec.ClusterIP, Port: 6443}))
		g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeClusterIP))
		g.Expect(service.Spec.Selector).To(Equal(map[string]string{clusterv1.ClusterNameLabel: testCluster, clusterv1.MachineControlPlaneLabel: ""}))
		g.Expect(service.Spec.PublishNotReadyAddresses).To(BeFalse(), "it follows readiness")
		g.Expect(service.Labels).To(HaveKeyWithValue(clusterv1.WatchLabel, "ours"))
		g.Expect(service.Annotations).To(HaveKeyWithValue("note", "x"))
		g.Expect(metav1.IsControlledBy(service, w.talosCluster())).To(BeTrue())
		g.Expect(w.talosCluster().Status.FailureDomains).To(ConsistOf(And(HaveField("Name", "z1"), HaveField("ControlPlane", HaveValue(BeTrue())))))
	})
	t.Run("at another port", func(t *testing.T) {
		w, _ := withPods(t, func(c *infrav1.TalosCluster) { c.Spec.Container.ControlPlaneService.Port = ptr.To[int32](443) })
		NewWithT(t).Expect(w.talosCluster().Spec.ControlPlaneEndpoint.Port).To(Equal(int32(443)))
		NewWithT(t).Expect(w.service().Spec.Ports).To(ConsistOf(And(HaveField("Port", int32(443)), HaveField("TargetPort", intstr.FromInt32(6443)))))
	})
	t.Run("at a load balancer, once that has an address", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, ofType(infrav1.ControlPlaneServiceLoadBalancer))
		w.expectNotReady(infrav1.WaitingForServiceReason, "load balancer")
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint).To(BeZero())
		g.Expect(w.talosCluster().Status.Initialization.Provisioned).To(BeNil())
		w.balance("198.51.100.1")
		w.settle(m)
		w.expectReady()
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal("198.51.100.1"))

		w.balance("198.51.100.2")
		w.settle(m)
		w.expectNotReady(infrav1.ServiceAddressLostReason, `"198.51.100.2"`, "198.51.100.1", "give the Service that address back")
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal("198.51.100.1"), "it is set once")

		w.remove(w.service())
		w.settle(m)
		w.expectNotReady(infrav1.WaitingForServiceReason)
		g.Expect(w.service().Spec.LoadBalancerIP).To(Equal("198.51.100.1"))
		w.balance("198.51.100.1")
		w.settle(m)
		w.expectReady()
	})
}

// balance is what the controller of a load balancer does.
func (w *world) balance(address string) {
	w.t.Helper()
	service := w.service()
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	NewWithT(w.t).Expect(w.client.Status().Update(w.t.Context(), service)).To(Succeed())
}

// TestNodesThatJoinLater: the certificates of machines that are there do not name them.
func TestNodesThatJoinLater(t *testing.T) {
	atNodes := func(t *testing.T, kind infrav1.ControlPlaneServiceType) *world {
		t.Helper()
		w := newPodWorld(t, newPodControlPlane(t, "a")...)
		change(w, w.talosCluster(), ofType(kind))
		m := w.manager()
		w.settle(m)
		for _, name := range []string{"node-2", "node-3", "node-4", "node-5"} {
			node := newHostingNode(name, "z1")
			node.CreationTimestamp = metav1.NewTime(testTime.Add(time.Hour))
			NewWithT(t).Expect(w.client.Create(t.Context(), node)).To(Succeed())
		}
		w.settle(m)
		w.expectReady()

		return w
	}
	t.Run("are told of where clients go to nodes", func(t *testing.T) {
		w := atNodes(t, infrav1.ControlPlaneServiceNodePort)
		NewWithT(t).Expect(conditions.GetMessage(w.talosCluster(), infrav1.ReadyCondition)).To(
			And(ContainSubstring("node-2, node-3, node-4 and 1 more"), ContainSubstring("roll the control plane out"), Not(ContainSubstring("node-1"))))
	})
	t.Run("are not told of where they do not", func(t *testing.T) {
		w := atNodes(t, infrav1.ControlPlaneServiceClusterIP)
		NewWithT(t).Expect(conditions.GetMessage(w.talosCluster(), infrav1.ReadyCondition)).To(BeEmpty())
	})
}

func TestTheBudgetOfTheControlPlane(t *testing.T) {
	least := func(w *world) int {
		return get(w, &policyv1.PodDisruptionBudget{}, testCluster+infrav1.ControlPlaneBudgetSuffix).Spec.MinAvailable.IntValue()
	}
	// It is ready all the same.
	told := func(w *world, reason string, words ...string) {
		w.expectReady()
		for _, word := range words {
			NewWithT(w.t).Expect(conditions.Get(w.talosCluster(), infrav1.ReadyCondition)).To(And(HaveField("Reason", reason), HaveField("Message", ContainSubstring(word))))
		}
	}
	t.Run("counts the machines that are not lost", func(t *testing.T) {
		g := NewWithT(t)
		w := newPodWorld(t, append(append(newPodControlPlane(t, "a"), newPodControlPlane(t, "b")...), append(newPodControlPlane(t, "c"), newPodMachine(t, "w")...)...)...)
		m := w.manager()
		w.settle(m)
		g.Expect(least(w)).To(Equal(2), "one of three may go")
		w.remove(get(w, &corev1.Pod{}, "c"))
		w.settle(m)
		g.Expect(least(w)).To(Equal(2), "none of two may go")
		w.remove(w.machine("c"))
		w.remove(w.machine("b"))
		w.settle(m)
		g.Expect(least(w)).To(Equal(1), "the only one may not go")
	})
	t.Run("does not hold the cluster up", func(t *testing.T) {
		w := newPodWorld(t)
		w.yard.refuse = func(object client.Object) error {
			if _, isBudget := object.(*policyv1.PodDisruptionBudget); isBudget {
				return forbidden(object, "exceeded quota: budgets")
			}
			return nil
		}
		m := w.manager()
		w.live(m, time.Minute)
		told(w, infrav1.BudgetMissingReason, "exceeded quota: budgets", "drains may evict more")
		w.yard.refuse = nil
		w.live(m, time.Minute)
		told(w, infrav1.ClusterReadyReason, "")
	})
	t.Run("may be somebody else's", func(t *testing.T) {
		g := NewWithT(t)
		w := newPodWorld(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: madeService, UID: "theirs"}})
		m := w.manager()
		w.live(m, time.Minute)
		told(w, infrav1.BudgetMissingReason, "PodDisruptionBudget "+madeService, "delete it")
		theirs := get(w, &policyv1.PodDisruptionBudget{}, madeService)
		g.Expect(theirs.Spec).To(BeZero())
		w.remove(theirs)
		w.live(m, time.Minute)
		told(w, infrav1.ClusterReadyReason, "")
	})
	t.Run("is mended", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, nil)
		budget := func() *policyv1.PodDisruptionBudget { return get(w, &policyv1.PodDisruptionBudget{}, madeService) }
		before := budget()
		change(w, budget(), func(b *policyv1.PodDisruptionBudget) {
			b.Spec.MinAvailable, b.Spec.MaxUnavailable, b.Labels = nil, ptr.To(intstr.FromInt32(3)), nil
		})
		w.settle(m)
		g.Expect(budget().Spec).To(Equal(before.Spec))
		g.Expect(budget().Labels).To(Equal(before.Labels))
	})
	for machines, want := range map[int32]int32{0: 1, 1: 1, 2: 2, 3: 2, 4: 3, 5: 4} {
		NewWithT(t).Expect(leastAvailable(machines)).To(Equal(want), fmt.Sprint(machines))
	}
}

func TestWhatATalosClusterHasMadeGoesLast(t *testing.T) {
	t.Run("after its machines", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a"))
		w.yard.stuck = true
		w.remove(w.talosCluster())
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeTrue())
		w.expectNotReady(infrav1.DeletingReason, "TalosMachines to be gone: a")
		change(w, w.service(), func(s *corev1.Service) { s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"} })
		w.yard.stuck = false
		w.settle(m)
		g.Expect(w.leftOf("a")).To(BeEmpty())
		w.expectNotReady(infrav1.DeletingReason, "Service "+madeService)
		change(w, w.service(), func(s *corev1.Service) { s.Finalizers = nil })
		w.settle(m)
		g.Expect(w.talosClusters()).To(BeEmpty())
		g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeFalse())
		g.Expect(w.exists(&policyv1.PodDisruptionBudget{}, madeService)).To(BeFalse())
	})
	t.Run("also without the label of its Cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a"))
		change(w, w.talosCluster(), func(c *infrav1.TalosCluster) { c.Labels = nil })
		w.remove(w.talosCluster())
		w.settle(m)
		g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeTrue())
		w.expectNotReady(infrav1.DeletingReason, "TalosMachines to be gone: a")
	})
	t.Run("but not what is somebody else's", func(t *testing.T) {
		g := NewWithT(t)
		w := newPodWorld(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: madeService}})
		m := w.manager()
		w.settle(m)
		w.remove(w.talosCluster())
		w.settle(m)
		g.Expect(w.talosClusters()).To(BeEmpty())
		g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeTrue())
	})
	t.Run("and nothing after a move", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, nil)
		change(w, w.talosCluster(), func(c *infrav1.TalosCluster) {
			c.Annotations = map[string]string{infrav1.DeleteForMoveAnnotation: ""}
		})
		w.remove(w.talosCluster())
		w.settle(m)
		g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeTrue())
		g.Expect(w.yard.deleted).To(Equal([]string{"*v1alpha1.TalosCluster"}))
	})
}

// TestTheManagerDiesAnywhereWithTheServiceOfAControlPlane kills the manager at each of
// its effects.
func TestTheManagerDiesAnywhereWithTheServiceOfAControlPlane(t *testing.T) {
	run := func(t *testing.T, killAt int) int {
		t.Helper()
		g := NewWithT(t)
		w := newPodWorld(t)
		w.life.DieAt(killAt)
		isReady := func() bool { return conditions.IsTrue(w.talosCluster(), infrav1.ReadyCondition) }
		died := w.liveUntil(isReady)
		host := w.talosCluster().Spec.ControlPlaneEndpoint.Host
		w.remove(w.service())
		died = w.liveUntil(func() bool { return w.exists(&corev1.Service{}, madeService) && isReady() }) || died
		g.Expect(w.service().Spec.ClusterIP).To(Equal(host))
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal(host))
		w.remove(w.talosCluster())
		died = w.liveUntil(func() bool { return len(w.talosClusters()) == 0 }) || died
		g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeFalse())
		g.Expect(died).To(Equal(killAt > 0))
		return w.life.Effects()
	}
	for killAt := run(t, 0); killAt > 0; killAt-- {
		t.Run(fmt.Sprintf("at effect %d", killAt), func(t *testing.T) {
			t.Parallel()
			run(t, killAt)
		})
	}
}

func TestBadInputMetalControlPlaneInAContainerCluster(t *testing.T) {
	for name, tt := range map[string]struct {
		clusterInPods, machineInPod, controlPlane, ran bool
		says                                           string
	}{
		"a control plane in Pods, and a Service for it":          {clusterInPods: true, machineInPod: true, controlPlane: true},
		"a control plane on metal, and no Service":               {controlPlane: true},
		"workers on metal beside a control plane in Pods":        {clusterInPods: true},
		"workers in Pods beside a control plane on metal":        {machineInPod: true},
		"a control plane on metal, and a Service that nobody is": {clusterInPods: true, controlPlane: true, says: "leads to no machine on metal"},
		"a control plane in Pods, and no Service":                {machineInPod: true, controlPlane: true, says: "makes no Service"},
		"one that has run is one":                                {machineInPod: true, controlPlane: true, ran: true},
	} {
		t.Run(name, func(t *testing.T) {
			scope := &backends.Scope{Machine: &clusterv1.Machine{}, TalosMachine: &infrav1.TalosMachine{}, TalosCluster: &infrav1.TalosCluster{}}
			if tt.controlPlane {
				scope.Machine.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: ""}
			}
			if tt.clusterInPods {
				scope.TalosCluster.Spec.Container = &infrav1.TalosClusterContainerSpec{}
			}
			if tt.machineInPod {
				scope.TalosMachine.Spec.Container = &infrav1.TalosMachineContainerSpec{}
			}
			scope.TalosMachine.Status.Initialization.Provisioned = ptr.To(tt.ran)
			if tt.says == "" {
				NewWithT(t).Expect(clusterMismatch(scope)).To(BeEmpty())
				return
			}
			NewWithT(t).Expect(clusterMismatch(scope)).To(And(ContainSubstring(tt.says), ContainSubstring("Workers may be of either kind")))
		})
	}
	t.Run("is a condition", func(t *testing.T) {
		w := newPodWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
		change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Labels[clusterv1.MachineControlPlaneLabel] = "" })
		w.addMachine("10.0.0.1")
		w.settle(w.manager())
		w.expectTold("a", infrav1.AllocatedCondition, infrav1.ClusterMismatchReason, "makes a Service")
		NewWithT(t).Expect(w.host("h1").Spec.ConsumerRef).To(BeZero())
	})
}
