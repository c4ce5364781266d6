package controllers_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// expectMended spoils the Service of a control plane, and expects it back as it was.
func expectMended(t *testing.T, spoil func(*harness.Environment)) {
	t.Helper()
	g := NewWithT(t)
	w, m := harness.WithPods(t, nil)
	before := w.Service()
	spoil(w)
	w.Settle(m)
	w.ExpectReady()
	after := w.Service()
	g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	g.Expect(after.Spec.Type).To(Equal(before.Spec.Type))
	g.Expect(after.Spec.Ports).To(Equal(before.Spec.Ports))
	g.Expect(after.Spec.Selector).To(Equal(before.Spec.Selector))
	g.Expect(after.Spec.ExternalName).To(BeEmpty())
	g.Expect(after.Spec.PublishNotReadyAddresses).To(BeFalse())
	g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal(before.Spec.ClusterIP))
}

func TestBadInputEndpointServiceDeleted(t *testing.T) {
	t.Run("later", func(t *testing.T) {
		expectMended(t, func(w *harness.Environment) { w.Remove(w.Service()) })
	})
	t.Run("before the cache has the endpoint", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		before, old := w.Service(), w.TalosCluster()
		old.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		w.Remove(before)
		m.Clusters.Client = harness.Behind[*infrav1.TalosCluster]{Client: w.Life.Client(w.Client), Old: old}
		_, err := m.Clusters.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.Service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal(before.Spec.ClusterIP))
	})
	t.Run("while another manager was about to make it for the first time", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		before, old := w.Service(), w.TalosCluster()
		old.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		w.Remove(before)
		slow := w.Manager()
		slow.Clusters.Client = harness.Behind[*infrav1.TalosCluster]{Client: w.Life.Client(w.Client), Old: old}
		slow.Clusters.APIReader = &harness.BehindOnce[*infrav1.TalosCluster]{Reader: w.Client, Old: old}
		_, err := slow.Clusters.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.Exists(&corev1.Service{}, before.Name)).To(BeFalse(), "it had another address")
		w.Settle(m)
		w.ExpectReady()
		g.Expect(w.Service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	})
	t.Run("and made by somebody else at another address", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		before := w.Service().Spec.ClusterIP
		harness.Change(w, w.Service(), func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "172.20.9.9", []string{"172.20.9.9"} })
		w.Settle(m)
		w.ExpectNotReady(infrav1.ServiceAddressLostReason, "172.20.9.9", before, "delete the Service")
		w.Remove(w.Service())
		w.Settle(m)
		w.ExpectReady()
		g.Expect(w.Service().Spec.ClusterIP).To(Equal(before))
	})
}

func TestBadInputEndpointServiceTypeChanged(t *testing.T) {
	t.Run("to one that leads to a name", func(t *testing.T) {
		expectMended(t, func(w *harness.Environment) {
			harness.Change(w, w.Service(), func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "example.com", "", nil
			})
		})
	})
	t.Run("to one with ports at nodes", func(t *testing.T) {
		expectMended(t, func(w *harness.Environment) {
			harness.Change(w, w.Service(), func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30000 })
		})
	})
	t.Run("its type is changed by its user", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		before := w.Service()
		harness.Change(w, w.TalosCluster(), harness.OfType(infrav1.ControlPlaneServiceNodePort))
		w.Settle(m)
		w.ExpectReady()
		g.Expect(w.Service().Spec.Type).To(Equal(corev1.ServiceTypeNodePort))
		g.Expect(w.Service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	})
}

func TestTheServiceOfTheControlPlaneIsMended(t *testing.T) {
	t.Run("it selects others", func(t *testing.T) {
		expectMended(t, func(w *harness.Environment) {
			harness.Change(w, w.Service(), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "theirs"} })
		})
	})
	t.Run("it has other ports", func(t *testing.T) {
		expectMended(t, func(w *harness.Environment) {
			harness.Change(w, w.Service(), func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 1}, corev1.ServicePort{Name: "most", Port: 2})
			})
		})
	})
	t.Run("it is ready before the machines are", func(t *testing.T) {
		expectMended(t, func(w *harness.Environment) {
			harness.Change(w, w.Service(), func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })
		})
	})
	t.Run("what others have set stays", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, harness.OfType(infrav1.ControlPlaneServiceNodePort))
		harness.Change(w, w.Service(), func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.SessionAffinity = 30000, corev1.ServiceAffinityClientIP
			s.Annotations = map[string]string{"balancer": "theirs"}
		})
		writes := w.Life.Effects()
		w.Settle(m)
		g.Expect(w.Life.Effects()).To(Equal(writes))
		g.Expect(w.Service().Spec.Ports[0].NodePort).To(Equal(int32(30000)))
		g.Expect(w.Service().Annotations).To(HaveKey("balancer"))
	})
}

func TestTheServiceOfTheControlPlaneCannotBeHad(t *testing.T) {
	t.Run("its name is somebody else's", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: harness.MadeService, UID: "theirs"}})
		m := w.Manager()
		w.Live(m, 5*time.Minute)
		w.ExpectNotReady(infrav1.ServiceNameConflictReason, harness.MadeService, "nothing is done to it")
		g.Expect(w.Service().Spec.Selector).To(BeEmpty())
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint).To(BeZero())
		w.Remove(w.Service())
		w.Live(m, time.Minute)
		w.ExpectReady()
	})
	t.Run("its address is somebody else's", func(t *testing.T) {
		w, m := harness.WithPods(t, nil)
		address := w.Service().Spec.ClusterIP
		w.Remove(w.Service())
		taker := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: "taker"}, Spec: corev1.ServiceSpec{ClusterIP: address}}
		NewWithT(t).Expect(w.Client.Create(t.Context(), taker)).To(Succeed())
		w.Live(m, 5*time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "in use by another Service")
		w.Remove(taker)
		w.Live(m, time.Minute)
		w.ExpectReady()
	})
	t.Run("a quota forbids it", func(t *testing.T) {
		w := harness.NewWithPods(t)
		w.PodRuntime.Refuse = func(object client.Object) error {
			if _, isService := object.(*corev1.Service); isService {
				return harness.Forbidden(object, "exceeded quota: services")
			}
			return nil
		}
		m := w.Manager()
		w.Live(m, 5*time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "exceeded quota: services")
		w.PodRuntime.Refuse = nil
		w.Live(m, time.Minute)
		w.ExpectReady()
	})
	t.Run("a webhook does not answer", func(t *testing.T) {
		w := harness.NewWithPods(t)
		w.PodRuntime.Refuse = func(object client.Object) error {
			if _, isService := object.(*corev1.Service); isService {
				return w.PodRuntime.Unanswered()
			}
			return nil
		}
		m := w.Manager()
		w.Live(m, 5*time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "policy.example.com", "it is tried again")
		before := w.TalosCluster().ResourceVersion
		w.Live(m, 5*time.Minute)
		NewWithT(t).Expect(w.TalosCluster().ResourceVersion).To(Equal(before), "what does not change is not written")
		w.PodRuntime.Refuse = nil
		w.Live(m, time.Minute)
		w.ExpectReady()
	})
	t.Run("a webhook does not answer for a mend", func(t *testing.T) {
		w, m := harness.WithPods(t, nil)
		harness.Change(w, w.Service(), func(s *corev1.Service) { s.Spec.Selector = nil })
		w.PodRuntime.Refuse = func(client.Object) error { return w.PodRuntime.Unanswered() }
		w.Live(m, time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "policy.example.com", "it is tried again")
		w.PodRuntime.Refuse = nil
		w.Live(m, time.Minute)
		w.ExpectReady()
	})
	for name, refuse := range map[string]func(*harness.Environment, client.Object) error{
		"a webhook does not answer": func(w *harness.Environment, _ client.Object) error { return w.PodRuntime.Unanswered() },
		"the API server refuses one": func(_ *harness.Environment, object client.Object) error {
			return harness.Forbidden(object, "policy.example.com")
		},
	} {
		t.Run(name+" for a mend that the cluster can do without", func(t *testing.T) {
			g := NewWithT(t)
			w, m := harness.WithPods(t, nil)
			harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) {
				c.Spec.Container.ControlPlaneService.Annotations = map[string]string{"a": "b"}
			})
			w.PodRuntime.Refuse = func(object client.Object) error { return refuse(w, object) }
			w.Live(m, time.Minute)
			w.ExpectReady()
			ready := conditions.Get(w.TalosCluster(), infrav1.ReadyCondition)
			g.Expect(ready).To(And(HaveField("Reason", infrav1.ServiceRefusedReason), HaveField("Message", ContainSubstring("policy.example.com"))))
			w.PodRuntime.Refuse = nil
			w.Live(m, time.Minute)
			g.Expect(w.Service().Annotations).To(HaveKeyWithValue("a", "b"))
			g.Expect(conditions.Get(w.TalosCluster(), infrav1.ReadyCondition)).To(HaveField("Reason", infrav1.ClusterReadyReason))
		})
	}
	t.Run("a webhook does not answer for a mend of where it is reached", func(t *testing.T) {
		w, m := harness.WithPods(t, nil)
		refused, until := 0, w.Clock.Now().Add(time.Minute)
		harness.Change(w, w.Service(), func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "example.com", ""
		})
		w.PodRuntime.Refuse = func(client.Object) error {
			if w.Clock.Now().After(until) {
				return nil
			}
			refused++
			return w.PodRuntime.Unanswered()
		}
		w.Live(m, time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "policy.example.com")
		w.Live(m, time.Minute)
		w.ExpectReady()
		NewWithT(t).Expect(refused).To(BeNumerically(">", 1))
	})
	t.Run("a webhook does not answer for a mend before there is an endpoint", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.NewWithPods(t)
		harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) {
			c.Spec.Container.ControlPlaneService.Type = infrav1.ControlPlaneServiceLoadBalancer
		})
		m := w.Manager()
		w.Settle(m)
		harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) {
			c.Spec.Container.ControlPlaneService.Annotations = map[string]string{"pool": "inner"}
		})
		harness.Change(w, w.Service(), func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		})
		w.PodRuntime.Refuse = func(object client.Object) error {
			if _, isService := object.(*corev1.Service); isService {
				return w.PodRuntime.Unanswered()
			}
			return nil
		}
		w.Live(m, time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "policy.example.com")
		g.Expect(w.TalosCluster().Spec.ControlPlaneEndpoint.IsValid()).To(BeFalse(), "the address of another pool cannot be taken back")
	})
	t.Run("a mend is refused", func(t *testing.T) {
		w, m := harness.WithPods(t, nil)
		harness.Change(w, w.Service(), func(s *corev1.Service) { s.Spec.Selector = nil })
		w.PodRuntime.Refuse = func(object client.Object) error { return harness.Forbidden(object, "not now") }
		w.Live(m, time.Minute)
		w.ExpectNotReady(infrav1.ServiceRefusedReason, "not now")
		w.PodRuntime.Refuse = nil
		w.Live(m, time.Minute)
		w.ExpectReady()
	})
	t.Run("a name instead of an address is asked for", func(t *testing.T) {
		w, _ := harness.WithPods(t, func(c *infrav1.TalosCluster) {
			c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: harness.MadeService + "." + harness.TestNamespace + ".svc", Port: 6443}
		})
		w.ExpectReady()
	})
}

// TestBadInputServiceInANamespaceThatDoesNotAskForPrivilegedPods: whoever may make TalosClusters
// chooses type, annotations and address of a Service, which RBAC may deny to them.
func TestBadInputServiceInANamespaceThatDoesNotAskForPrivilegedPods(t *testing.T) {
	const allows = "pod-security.kubernetes.io/enforce: privileged"
	chosen := func(c *infrav1.TalosCluster) {
		c.Spec.Container.ControlPlaneService = infrav1.ControlPlaneServiceSpec{Type: infrav1.ControlPlaneServiceLoadBalancer, Annotations: map[string]string{"note": "x"}}
	}
	for name, level := range map[string]string{"no label": "", "baseline": "baseline", "another case": "Privileged"} {
		t.Run("none is made: "+name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.NewWithPods(t)
			w.Enforce(level)
			harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) {
				chosen(c)
				c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "172.20.0.10", Port: 6443}
			})
			m := w.Manager()
			w.Live(m, 5*time.Minute)
			w.ExpectNotReady(infrav1.PodsNotAllowedReason, "an administrator", allows)
			g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeFalse())
			warnings := slices.DeleteFunc(w.Recorded(), func(event string) bool { return !strings.HasPrefix(event, "Warning NeedsAttention PodsNotAllowed: ") })
			g.Expect(warnings).To(HaveLen(1))
			result, err := m.Clusters.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(w.TalosCluster())})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "no label of a namespace wakes anybody")
			w.Enforce("privileged")
			w.Live(m, time.Minute)
			g.Expect(w.Service().Annotations).To(HaveKeyWithValue("note", "x"))
			g.Expect(w.Service().Spec.LoadBalancerIP).To(Equal("172.20.0.10"))
		})
	}
	t.Run("one that is there stays as it is", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.WithPods(t, nil)
		before := w.Service()
		w.Enforce("")
		w.Live(m, time.Minute)
		w.ExpectReady()
		g.Expect(conditions.GetReason(w.TalosCluster(), infrav1.ReadyCondition)).To(Equal(infrav1.ClusterReadyReason))

		harness.Change(w, w.TalosCluster(), chosen)
		w.Live(m, time.Minute)
		w.ExpectReady()
		g.Expect(conditions.Get(w.TalosCluster(), infrav1.ReadyCondition)).To(And(HaveField("Reason", infrav1.PodsNotAllowedReason), HaveField("Message", ContainSubstring(allows))))
		g.Expect(w.Service().ResourceVersion).To(Equal(before.ResourceVersion))

		w.Remove(w.Service())
		w.Live(m, time.Minute)
		w.ExpectNotReady(infrav1.PodsNotAllowedReason, allows)
		g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeFalse())
		harness.Change(w, w.TalosCluster(), harness.OfType(infrav1.ControlPlaneServiceClusterIP))
		w.Enforce("privileged")
		w.Live(m, time.Minute)
		w.ExpectReady()
		g.Expect(w.Service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	})
	t.Run("the namespace cannot be read", func(t *testing.T) {
		w := harness.NewWithPods(t)
		broken := errors.New("the connection was reset")
		mend := w.HideNamespaces(broken)
		m := w.Manager()
		w.RoundWith(m, func(err error) bool { return errors.Is(err, broken) })
		NewWithT(t).Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeFalse())
		mend()
		w.Settle(m)
		w.ExpectReady()
	})
}
