package controllers_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestBadInputNetworksThatOverlap(t *testing.T) {
	networks := func(pods, services []string) func(*clusterv1.Cluster) {
		return func(c *clusterv1.Cluster) {
			c.Spec.ClusterNetwork.Pods.CIDRBlocks, c.Spec.ClusterNetwork.Services.CIDRBlocks = pods, services
		}
	}
	for name, tt := range map[string]struct {
		edit  func(*clusterv1.Cluster)
		node  []string
		words []string
	}{
		"those of the Pods":                {edit: networks([]string{"172.21.0.0/16"}, nil), words: []string{"clusterNetwork.pods", "172.21.0.0/16", "172.21.0.0/24"}},
		"those of the Services":            {edit: networks(nil, []string{"10.95.0.0/16", "172.20.4.0/22"}), words: []string{"clusterNetwork.services", "172.20.4.0/22", "172.20.0.0/16"}},
		"one for Pods with one for others": {edit: networks([]string{"172.20.1.0/24"}, nil), words: []string{"clusterNetwork.pods", "172.20.0.0/16"}},
		"those that Talos takes when none are named": {edit: func(*clusterv1.Cluster) {}, node: []string{"10.244.0.0/24"},
			words: []string{"clusterNetwork.pods", "10.244.0.0/16", "10.244.0.0/24"}},
		"none": {edit: networks([]string{"10.95.0.0/16", "no network"}, []string{"10.94.0.0/16"})},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.NewWithPods(t)
			harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), tt.edit)
			if tt.node != nil {
				node := harness.NewHostingNode("node-2", "")
				node.Spec.PodCIDRs = tt.node
				g.Expect(w.Client.Create(t.Context(), node)).To(Succeed())
			}
			m := w.Manager()
			w.Settle(m)
			if tt.words == nil {
				w.ExpectReady()
				return
			}
			w.ExpectNotReady(infrav1.NetworkOverlapReason, tt.words...)
			g.Expect(w.Exists(&corev1.Service{}, harness.MadeService)).To(BeFalse())

			harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) {
				c.Annotations = map[string]string{infrav1.NetworkOverlapAllowedAnnotation: ""}
			})
			w.Settle(m)
			w.ExpectReady()
			harness.Change(w, w.TalosCluster(), func(c *infrav1.TalosCluster) { c.Annotations = nil })
			w.Settle(m)
			w.ExpectReady()
		})
	}
	t.Run("a management cluster that does not tell its networks", func(t *testing.T) {
		w := harness.NewWithPods(t)
		m := w.Manager()
		m.Clusters.APIReader = oldServer{Reader: m.Clusters.APIReader}
		w.Settle(m)
		w.ExpectReady()
	})
}

// oldServer is an API server that knows no ServiceCIDRs.
type oldServer struct{ client.Reader }

func (s oldServer) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, ok := list.(*networkingv1.ServiceCIDRList); ok {
		return &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: networkingv1.GroupName, Kind: "ServiceCIDR"}}
	}

	return s.Reader.List(ctx, list, opts...)
}

func TestTheZonesOfTheManagementCluster(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.WithPods(t, nil)
	for name, zone := range map[string]string{"node-2": "z2", "node-3": "z1", "node-4": ""} {
		g.Expect(w.Client.Create(t.Context(), harness.NewHostingNode(name, zone))).To(Succeed())
	}
	kept := harness.NewHostingNode("node-5", "z5")
	kept.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	g.Expect(w.Client.Create(t.Context(), kept)).To(Succeed())
	w.Settle(m)
	domains := w.TalosCluster().Status.FailureDomains
	g.Expect(domains).To(HaveLen(2), "no Pod gets to the node of the control plane")
	g.Expect([]string{domains[0].Name, domains[1].Name}).To(Equal([]string{"z1", "z2"}))

	g.Expect(m.Clusters.NodeToClusters(t.Context(), nil)).To(HaveLen(1))
	other := &controllers.ClusterReconciler{Client: w.Life.Client(w.Client), APIReader: w.Client, WatchFilterValue: "theirs"}
	g.Expect(other.NodeToClusters(t.Context(), nil)).To(BeEmpty(), "the TalosCluster is not of its watch filter")
	one, another := harness.NewHostingNode("node-1", "z1"), harness.NewHostingNode("node-1", "z2")
	g.Expect(controllers.IsOtherPlace(one, another)).To(BeTrue())
	free := one.DeepCopy()
	free.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	g.Expect(controllers.IsOtherPlace(free, one)).To(BeTrue(), "it is kept for the control plane no more")
	beaten := one.DeepCopy()
	beaten.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	g.Expect(controllers.IsOtherPlace(one, beaten)).To(BeFalse(), "a heartbeat")
}
