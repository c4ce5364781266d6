package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// expectMended spoils the Service of a control plane, and expects it back as it was.
func expectMended(t *testing.T, spoil func(*world)) {
	t.Helper()
	g := NewWithT(t)
	w, m := withPods(t, nil)
	before := w.service()
	spoil(w)
	w.settle(m)
	w.expectReady()
	after := w.service()
	g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	g.Expect(after.Spec.Type).To(Equal(before.Spec.Type))
	g.Expect(after.Spec.Ports).To(Equal(before.Spec.Ports))
	g.Expect(after.Spec.Selector).To(Equal(before.Spec.Selector))
	g.Expect(after.Spec.ExternalName).To(BeEmpty())
	g.Expect(after.Spec.PublishNotReadyAddresses).To(BeFalse())
	g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal(before.Spec.ClusterIP))
}

func TestBadInputEndpointServiceDeleted(t *testing.T) {
	t.Run("later", func(t *testing.T) {
		expectMended(t, func(w *world) { w.remove(w.service()) })
	})
	t.Run("before the cache has the endpoint", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, nil)
		before, old := w.service(), w.talosCluster()
		old.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		w.remove(before)
		m.clusters.Client = behind[*infrav1.TalosCluster]{Client: w.life.Client(w.client), old: old}
		_, err := m.clusters.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint.Host).To(Equal(before.Spec.ClusterIP))
	})
	t.Run("while another manager was about to make it for the first time", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, nil)
		before, old := w.service(), w.talosCluster()
		old.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{}
		w.remove(before)
		slow := w.manager()
		slow.clusters.Client = behind[*infrav1.TalosCluster]{Client: w.life.Client(w.client), old: old}
		slow.clusters.APIReader = &behindOnce[*infrav1.TalosCluster]{Reader: w.client, old: old}
		_, err := slow.clusters.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(w.exists(&corev1.Service{}, before.Name)).To(BeFalse(), "it had another address")
		w.settle(m)
		w.expectReady()
		g.Expect(w.service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	})
	t.Run("and made by somebody else at another address", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, nil)
		before := w.service().Spec.ClusterIP
		change(w, w.service(), func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "172.20.9.9", []string{"172.20.9.9"} })
		w.settle(m)
		w.expectNotReady(infrav1.ServiceAddressLostReason, "172.20.9.9", before, "delete the Service")
		w.remove(w.service())
		w.settle(m)
		w.expectReady()
		g.Expect(w.service().Spec.ClusterIP).To(Equal(before))
	})
}

func TestBadInputEndpointServiceTypeChanged(t *testing.T) {
	t.Run("to one that leads to a name", func(t *testing.T) {
		expectMended(t, func(w *world) {
			change(w, w.service(), func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeExternalName, "example.com", "", nil
			})
		})
	})
	t.Run("to one with ports at nodes", func(t *testing.T) {
		expectMended(t, func(w *world) {
			change(w, w.service(), func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30000 })
		})
	})
	t.Run("its type is changed by its user", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, nil)
		before := w.service()
		change(w, w.talosCluster(), ofType(infrav1.ControlPlaneServiceNodePort))
		w.settle(m)
		w.expectReady()
		g.Expect(w.service().Spec.Type).To(Equal(corev1.ServiceTypeNodePort))
		g.Expect(w.service().Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	})
}

func TestTheServiceOfTheControlPlaneIsMended(t *testing.T) {
	t.Run("it selects others", func(t *testing.T) {
		expectMended(t, func(w *world) {
			change(w, w.service(), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "theirs"} })
		})
	})
	t.Run("it has other ports", func(t *testing.T) {
		expectMended(t, func(w *world) {
			change(w, w.service(), func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 1}, corev1.ServicePort{Name: "most", Port: 2})
			})
		})
	})
	t.Run("it is ready before the machines are", func(t *testing.T) {
		expectMended(t, func(w *world) {
			change(w, w.service(), func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })
		})
	})
	t.Run("what others have set stays", func(t *testing.T) {
		g := NewWithT(t)
		w, m := withPods(t, ofType(infrav1.ControlPlaneServiceNodePort))
		change(w, w.service(), func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.SessionAffinity = 30000, corev1.ServiceAffinityClientIP
			s.Annotations = map[string]string{"balancer": "theirs"}
		})
		writes := w.life.Effects()
		w.settle(m)
		g.Expect(w.life.Effects()).To(Equal(writes))
		g.Expect(w.service().Spec.Ports[0].NodePort).To(Equal(int32(30000)))
		g.Expect(w.service().Annotations).To(HaveKey("balancer"))
	})
}

func TestTheServiceOfTheControlPlaneCannotBeHad(t *testing.T) {
	t.Run("its name is somebody else's", func(t *testing.T) {
		g := NewWithT(t)
		w := newPodWorld(t, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: madeService, UID: "theirs"}})
		m := w.manager()
		w.live(m, 5*time.Minute)
		w.expectNotReady(infrav1.ServiceNameConflictReason, madeService, "nothing is done to it")
		g.Expect(w.service().Spec.Selector).To(BeEmpty())
		g.Expect(w.talosCluster().Spec.ControlPlaneEndpoint).To(BeZero())
		w.remove(w.service())
		w.live(m, time.Minute)
		w.expectReady()
	})
	t.Run("its address is somebody else's", func(t *testing.T) {
		w, m := withPods(t, nil)
		address := w.service().Spec.ClusterIP
		w.remove(w.service())
		taker := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "taker"}, Spec: corev1.ServiceSpec{ClusterIP: address}}
		NewWithT(t).Expect(w.client.Create(t.Context(), taker)).To(Succeed())
		w.live(m, 5*time.Minute)
		w.expectNotReady(infrav1.ServiceRefusedReason, "in use by another Service")
		w.remove(taker)
		w.live(m, time.Minute)
		w.expectReady()
	})
	t.Run("a quota forbids it", func(t *testing.T) {
		w := newPodWorld(t)
		w.yard.refuse = func(object client.Object) error {
			if _, isService := object.(*corev1.Service); isService {
				return forbidden(object, "exceeded quota: services")
			}
			return nil
		}
		m := w.manager()
		w.live(m, 5*time.Minute)
		w.expectNotReady(infrav1.ServiceRefusedReason, "exceeded quota: services")
		w.yard.refuse = nil
		w.live(m, time.Minute)
		w.expectReady()
	})
	t.Run("a mend is refused", func(t *testing.T) {
		w, m := withPods(t, nil)
		change(w, w.service(), func(s *corev1.Service) { s.Spec.Selector = nil })
		w.yard.refuse = func(object client.Object) error { return forbidden(object, "not now") }
		w.live(m, time.Minute)
		w.expectNotReady(infrav1.ServiceRefusedReason, "not now")
		w.yard.refuse = nil
		w.live(m, time.Minute)
		w.expectReady()
	})
	t.Run("a name instead of an address is asked for", func(t *testing.T) {
		w, _ := withPods(t, func(c *infrav1.TalosCluster) {
			c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: madeService + "." + testNamespace + ".svc", Port: 6443}
		})
		w.expectReady()
	})
}
