package controllers

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
			w := newPodWorld(t)
			change(w, get(w, &clusterv1.Cluster{}, testCluster), tt.edit)
			if tt.node != nil {
				node := newHostingNode("node-2", "")
				node.Spec.PodCIDRs = tt.node
				g.Expect(w.client.Create(t.Context(), node)).To(Succeed())
			}
			m := w.manager()
			w.settle(m)
			if tt.words == nil {
				w.expectReady()
				return
			}
			w.expectNotReady(infrav1.NetworkOverlapReason, tt.words...)
			g.Expect(w.exists(&corev1.Service{}, madeService)).To(BeFalse())

			change(w, w.talosCluster(), func(c *infrav1.TalosCluster) {
				c.Annotations = map[string]string{infrav1.NetworkOverlapAllowedAnnotation: ""}
			})
			w.settle(m)
			w.expectReady()
			change(w, w.talosCluster(), func(c *infrav1.TalosCluster) { c.Annotations = nil })
			w.settle(m)
			w.expectReady()
		})
	}
	t.Run("a management cluster that does not tell its networks", func(t *testing.T) {
		w := newPodWorld(t)
		m := w.manager()
		m.clusters.APIReader = oldServer{Reader: m.clusters.APIReader}
		w.settle(m)
		w.expectReady()
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
	w, m := withPods(t, nil)
	for name, zone := range map[string]string{"node-2": "z2", "node-3": "z1", "node-4": ""} {
		g.Expect(w.client.Create(t.Context(), newHostingNode(name, zone))).To(Succeed())
	}
	kept := newHostingNode("node-5", "z5")
	kept.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	g.Expect(w.client.Create(t.Context(), kept)).To(Succeed())
	w.settle(m)
	domains := w.talosCluster().Status.FailureDomains
	g.Expect(domains).To(HaveLen(2), "no Pod gets to the node of the control plane")
	g.Expect([]string{domains[0].Name, domains[1].Name}).To(Equal([]string{"z1", "z2"}))

	g.Expect(m.clusters.nodeToClusters(t.Context(), nil)).To(HaveLen(1))
	other := &ClusterReconciler{Client: w.life.Client(w.client), APIReader: w.client, WatchFilterValue: "theirs"}
	g.Expect(other.nodeToClusters(t.Context(), nil)).To(BeEmpty(), "the TalosCluster is not of its watch filter")
	one, another := newHostingNode("node-1", "z1"), newHostingNode("node-1", "z2")
	g.Expect(isOtherPlace(one, another)).To(BeTrue())
	free := one.DeepCopy()
	free.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	g.Expect(isOtherPlace(free, one)).To(BeTrue(), "it is kept for the control plane no more")
	beaten := one.DeepCopy()
	beaten.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	g.Expect(isOtherPlace(one, beaten)).To(BeFalse(), "a heartbeat")
}
