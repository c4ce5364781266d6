package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestTalosCluster(t *testing.T) {
	inDomain := func(domain string) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Spec.FailureDomain = domain }
	}
	t.Run("is provisioned with its endpoint, and knows the failure domains", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1", inDomain("b")), harness.NewHost("h2", "10.0.0.2", inDomain("a")), harness.NewHost("h3", "10.0.0.3", inDomain("b")))
		w.AddMachine("10.0.0.2")
		w.Settle(w.Manager())
		cluster := harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster)
		g.Expect(cluster.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		g.Expect(cluster.Status.FailureDomains).To(Equal([]clusterv1.FailureDomain{
			{Name: "a", ControlPlane: ptr.To(true), Attributes: map[string]string{infrav1.FreeHostsAttribute: infrav1.FreeHostsSome}},
			{Name: "b", ControlPlane: ptr.To(true), Attributes: map[string]string{infrav1.FreeHostsAttribute: infrav1.FreeHostsNone}},
		}))
		g.Expect(conditions.IsTrue(cluster, infrav1.ReadyCondition)).To(BeTrue())
	})
	t.Run("waits for an endpoint, here or on the Cluster", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t)
		harness.Change(w, harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster), func(c *infrav1.TalosCluster) { c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{} })
		m := w.Manager()
		w.Settle(m)
		cluster := harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster)
		g.Expect(cluster.Status.Initialization.Provisioned).To(BeNil())
		g.Expect(conditions.Get(cluster, infrav1.ReadyCondition).Reason).To(Equal(infrav1.WaitingForControlPlaneEndpointReason))

		harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), func(c *clusterv1.Cluster) {
			c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "lb.example.com", Port: 443}
		})
		w.Settle(m)
		g.Expect(harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster).Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	})
	t.Run("stays until its TalosMachines are gone", func(t *testing.T) {
		g := NewWithT(t)
		w, m, _ := harness.Provisioned(t)
		w.Remove(harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster))
		w.Settle(m)
		cluster := harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster)
		g.Expect(conditions.Get(cluster, infrav1.DeletingCondition).Message).To(Equal("Waiting for TalosMachines to be gone: a"))
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(w.Exists(&infrav1.TalosCluster{}, harness.TestCluster)).To(BeFalse())
	})
	t.Run("is left alone when somebody else manages it, or when it is paused", func(t *testing.T) {
		for annotation, finding := range map[string]bool{clusterv1.ManagedByAnnotation: false, clusterv1.PausedAnnotation: true} {
			g := NewWithT(t)
			w := harness.New(t)
			harness.Change(w, harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster), func(c *infrav1.TalosCluster) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotation, "")
			})
			w.Settle(w.Manager())
			cluster := harness.Get(w, &infrav1.TalosCluster{}, harness.TestCluster)
			g.Expect(cluster.Finalizers).To(BeEmpty())
			g.Expect(conditions.Has(cluster, clusterv1.PausedCondition)).To(Equal(finding))
			g.Expect(cluster.Status.Initialization.Provisioned).To(BeNil())
		}
	})
}
