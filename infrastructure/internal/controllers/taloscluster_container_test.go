package controllers_test

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
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestATalosClusterMakesItsEndpoint(t *testing.T) {
	t.Run("inside the management cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := harness.WithPods(t, func(c *infrav1.TalosCluster) {
			c.Labels[clusterv1.WatchLabel] = "ours"
			c.Spec.Container.ControlPlaneService.Annotations = map[string]string{"note": "x"}
		})
		w.ExpectReady()
		service := w.Service()
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint).To(Equal(clusterv1.APIEndpoint{Host: service.Spec.ClusterIP, Port: 6443}))
		g.Expect(service.Spec.Type).To(Equal(corev1.ServiceTypeClusterIP))
		g.Expect(service.Spec.Selector).To(Equal(map[string]string{clusterv1.ClusterNameLabel: harness.TestCluster, clusterv1.MachineControlPlaneLabel: ""}))
		g.Expect(service.Spec.PublishNotReadyAddresses).To(BeFalse(), "it follows readiness")
		g.Expect(service.Labels).To(HaveKeyWithValue(clusterv1.WatchLabel, "ours"))
		g.Expect(service.Annotations).To(HaveKeyWithValue("note", "x"))
		g.Expect(metav1.IsControlledBy(service, w.TalosCluster())).To(BeTrue())
		g.Expect(w.TalosCluster().Status.FailureDomains).To(ConsistOf(And(HaveField("Name", "z1"), HaveField("ControlPlane", HaveValue(BeTrue())))))
	})
	t.Run("at another port", func(t *testing.T) {
		w, _ := harness.WithPods(t, func(c *infrav1.TalosCluster) { c.Spec.Container.ControlPlaneService.Port = ptr.To[int32](443) })
		NewWithT(t).Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.Port).To(Equal(int32(443)))
		NewWithT(t).Expect(w.Service().Spec.Ports).To(ConsistOf(And(HaveField("Port", int32(443)), HaveField("TargetPort", intstr.FromInt32(6443)))))
	})
	t.Run("at a load balancer, once that has an address", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, harness.OfType(infrav1.ControlPlaneServiceLoadBalancer))
		w.ExpectNotReady(infrav1.WaitingForServiceReason, "load balancer")
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint).To(BeZero())
		g.Expect(w.TalosCluster().Status.Initialization.Provisioned).To(BeNil())
		w.Balance("198.51.100.1")
		w.Settle(m)
		w.ExpectReady()
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal("198.51.100.1"))

		w.Balance("198.51.100.2")
		w.Settle(m)
		w.ExpectNotReady(infrav1.ServiceAddressLostReason, `"198.51.100.2"`, "198.51.100.1", "give the Service that address back")
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal("198.51.100.1"), "it is set once")

		w.Remove(w.Service())
		w.Settle(m)
		w.ExpectNotReady(infrav1.WaitingForServiceReason)
		g.Expect(w.Service().Spec.LoadBalancerIP).To(Equal("198.51.100.1"))
		w.Balance("198.51.100.1")
		w.Settle(m)
		w.ExpectReady()
	})
}

// TestNodesThatJoinLater: the certificates of machines that are there do not name them.
func TestNodesThatJoinLater(t *testing.T) {
	atNodes := func(t *testing.T, kind infrav1.ControlPlaneServiceType) *harness.Environment {
		t.Helper()
		w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a")...)
		harness.Change(w, w.TalosCluster(), harness.OfType(kind))
		m := w.Manager()
		w.Settle(m)
		for _, name := range []string{"node-2", "node-3", "node-4", "node-5"} {
			node := harness.NewHostingNode(name, "z1")
			node.CreationTimestamp = metav1.NewTime(harness.TestTime.Add(time.Hour))
			NewWithT(t).Expect(w.Client.Create(t.Context(), node)).To(Succeed())
		}
		w.Settle(m)
		w.ExpectReady()

		return w
	}
	t.Run("are told of where clients go to nodes", func(t *testing.T) {
		w := atNodes(t, infrav1.ControlPlaneServiceNodePort)
		NewWithT(t).Expect(conditions.GetMessage(w.TalosCluster(), infrav1.ReadyCondition)).To(
			And(ContainSubstring("node-2, node-3, node-4 and 1 more"), ContainSubstring("roll the control plane out"), Not(ContainSubstring("node-1"))))
	})
	t.Run("are not told of where they do not", func(t *testing.T) {
		w := atNodes(t, infrav1.ControlPlaneServiceClusterIP)
		NewWithT(t).Expect(conditions.GetMessage(w.TalosCluster(), infrav1.ReadyCondition)).To(BeEmpty())
	})
}

func TestTheBudgetOfTheControlPlane(t *testing.T) {
	least := func(w *harness.Environment) int {
		return harness.Get(w, &policyv1.PodDisruptionBudget{}, harness.TestCluster+infrav1.ControlPlaneBudgetSuffix).Spec.MinAvailable.IntValue()
	}
	// It is ready all the same.
	told := func(w *harness.Environment, reason string, words ...string) {
		w.ExpectReady()
		for _, word := range words {
			NewWithT(w.T).Expect(conditions.Get(w.TalosCluster(), infrav1.ReadyCondition)).To(And(HaveField("Reason", reason), HaveField("Message", ContainSubstring(word))))
		}
	}
	t.Run("counts the machines that are not lost", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t, append(append(harness.NewPodControlPlane(t, "a"), harness.NewPodControlPlane(t, "b")...), append(harness.NewPodControlPlane(t, "c"), harness.NewPodMachine(t, "w")...)...)...)
		m := w.Manager()
		w.Settle(m)
		g.Expect(least(w)).To(Equal(2), "one of three may go")
		w.Remove(harness.Get(w, &corev1.Pod{}, "c"))
		w.Settle(m)
		g.Expect(least(w)).To(Equal(2), "none of two may go")
		w.Remove(w.Machine("c"))
		w.Remove(w.Machine("b"))
		w.Settle(m)
		g.Expect(least(w)).To(Equal(1), "the only one may not go")
	})
	t.Run("does not hold the cluster up", func(t *testing.T) {
		w := harness.NewWithPods(t)
		w.PodRuntime.Refuse = func(object client.Object) error {
			if _, isBudget := object.(*policyv1.PodDisruptionBudget); isBudget {
				return harness.Forbidden(object, "exceeded quota: budgets")
			}
			return nil
		}
		m := w.Manager()
		w.Live(m, time.Minute)
		told(w, infrav1.BudgetMissingReason, "exceeded quota: budgets", "drains may evict more")
		w.PodRuntime.Refuse = nil
		w.Live(m, time.Minute)
		told(w, infrav1.ClusterReadyReason, "")
	})
	t.Run("does not hold the cluster up while a webhook does not answer", func(t *testing.T) {
		w := harness.NewWithPods(t)
		w.PodRuntime.Refuse = func(object client.Object) error {
			if _, isBudget := object.(*policyv1.PodDisruptionBudget); isBudget {
				return w.PodRuntime.Unanswered()
			}
			return nil
		}
		w.Live(w.Manager(), time.Minute)
		told(w, infrav1.BudgetMissingReason, "policy.example.com", "it is tried again")
	})
	t.Run("is tried again though the Service has another address", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		harness.Change(w, w.Service(), func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "172.20.9.9", []string{"172.20.9.9"}
		})
		w.Remove(harness.Get(w, &policyv1.PodDisruptionBudget{}, harness.MadeService))
		refused, until := 0, w.Clock.Now().Add(time.Minute)
		w.PodRuntime.Refuse = func(client.Object) error {
			if w.Clock.Now().After(until) {
				return nil
			}
			refused++
			return w.PodRuntime.Unanswered()
		}
		w.Live(m, 5*time.Minute)
		g.Expect(refused).To(BeNumerically(">", 1))
		w.ExpectNotReady(infrav1.ServiceAddressLostReason)
		g.Expect(w.Exists(&policyv1.PodDisruptionBudget{}, harness.MadeService)).To(BeTrue())
	})
	t.Run("may be somebody else's", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: harness.MadeService, UID: "theirs"}})
		m := w.Manager()
		w.Live(m, time.Minute)
		told(w, infrav1.BudgetMissingReason, "PodDisruptionBudget "+harness.MadeService, "delete it")
		theirs := harness.Get(w, &policyv1.PodDisruptionBudget{}, harness.MadeService)
		g.Expect(theirs.Spec).To(BeZero())
		w.Remove(theirs)
		w.Live(m, time.Minute)
		told(w, infrav1.ClusterReadyReason, "")
	})
	t.Run("is mended", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		budget := func() *policyv1.PodDisruptionBudget {
			return harness.Get(w, &policyv1.PodDisruptionBudget{}, harness.MadeService)
		}
		before := budget()
		harness.Change(w, budget(), func(b *policyv1.PodDisruptionBudget) {
			b.Spec.MinAvailable, b.Spec.MaxUnavailable, b.Labels = nil, ptr.To(intstr.FromInt32(3)), nil
		})
		w.Settle(m)
		g.Expect(budget().Spec).To(Equal(before.Spec))
		g.Expect(budget().Labels).To(Equal(before.Labels))
	})
	for machines, want := range map[int32]int32{0: 1, 1: 1, 2: 2, 3: 2, 4: 3, 5: 4} {
		NewWithT(t).Expect(controllers.LeastAvailable(machines)).To(Equal(want), fmt.Sprint(machines))
	}
}

func TestWhatATalosClusterHasMadeGoesLast(t *testing.T) {
	t.Run("after its machines", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
		w.PodRuntime.Stuck = true
		w.Remove(w.TalosCluster())
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeTrue())
		w.ExpectNotReady(infrav1.DeletingReason, "TalosMachines to be gone: a")
		harness.Change(w, w.Service(), func(s *corev1.Service) { s.Finalizers = []string{"service.kubernetes.io/load-balancer-cleanup"} })
		w.PodRuntime.Stuck = false
		w.Settle(m)
		g.Expect(w.LeftOf("a")).To(BeEmpty())
		w.ExpectNotReady(infrav1.DeletingReason, "Service "+harness.MadeService)
		harness.Change(w, w.Service(), func(s *corev1.Service) { s.Finalizers = nil })
		w.Settle(m)
		g.Expect(w.TalosClusters()).To(BeEmpty())
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeFalse())
		g.Expect(w.Exists(&policyv1.PodDisruptionBudget{}, harness.MadeService)).To(BeFalse())
	})
	t.Run("also without the label of its Cluster", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
		harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) { c.Labels = nil })
		w.Remove(w.TalosCluster())
		w.Settle(m)
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeTrue())
		w.ExpectNotReady(infrav1.DeletingReason, "TalosMachines to be gone: a")
	})
	t.Run("but not what is somebody else's", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: harness.MadeService}})
		m := w.Manager()
		w.Settle(m)
		w.Remove(w.TalosCluster())
		w.Settle(m)
		g.Expect(w.TalosClusters()).To(BeEmpty())
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeTrue())
	})
	t.Run("and nothing after a move", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) {
			c.Annotations = map[string]string{infrav1.DeleteForMoveAnnotation: ""}
		})
		w.Remove(w.TalosCluster())
		w.Settle(m)
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeTrue())
		g.Expect(w.PodRuntime.Deleted).To(Equal([]string{"*v1alpha1.TalosCluster"}))
	})
}

// TestTheManagerDiesAnywhereWithTheServiceOfAControlPlane kills the manager at each of
// its effects.
func TestTheManagerDiesAnywhereWithTheServiceOfAControlPlane(t *testing.T) {
	run := func(t *testing.T, killAt int) int {
		t.Helper()
		g := NewWithT(t)
		w := harness.NewWithPods(t)
		w.Life.DieAt(killAt)
		isReady := func() bool { return conditions.IsTrue(w.TalosCluster(), infrav1.ReadyCondition) }
		died := w.LiveUntil(isReady)
		host := w.TalosCluster().Spec.ControlPlaneEndpoint.Host
		w.Remove(w.Service())
		died = w.LiveUntil(func() bool { return w.Exists(&corev1.Service{}, harness.MadeService) && isReady() }) || died
		g.Expect(w.Service().Spec.ClusterIP).To(Equal(host))
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal(host))
		w.Remove(w.TalosCluster())
		died = w.LiveUntil(func() bool { return len(w.TalosClusters()) == 0 }) || died
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeFalse())
		g.Expect(died).To(Equal(killAt > 0))
		return w.Life.Effects()
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
				NewWithT(t).Expect(controllers.ClusterMismatch(scope)).To(BeEmpty())
				return
			}
			NewWithT(t).Expect(controllers.ClusterMismatch(scope)).To(And(ContainSubstring(tt.says), ContainSubstring("Workers may be of either kind")))
		})
	}
	t.Run("is a condition", func(t *testing.T) {
		w := harness.NewWithPods(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
		harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Labels[clusterv1.MachineControlPlaneLabel] = "" })
		w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.ClusterMismatchReason, "makes a Service")
		NewWithT(t).Expect(w.Host("h1").Spec.ConsumerRef).To(BeZero())
	})
}
