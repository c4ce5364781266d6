package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// leaveNothing has namespaces go after the specs around it, with all that is in them,
// also when they fail: the next spec begins with an idle machine, and who takes the
// providers away finds nothing that waits for a manager.
func leaveNothing(namespaces ...string) {
	for _, namespace := range namespaces {
		AfterEach(func(ctx SpecContext) { takeAway(ctx, namespace) }, NodeTimeout(longTimeout))
	}
}

// takeAway deletes a namespace: its clusters first, then its hosts, which the managers
// must let go.
func takeAway(ctx context.Context, namespace string) {
	GinkgoHelper()
	deleteAll(ctx, namespace, &clusterv1.ClusterList{})
	takeHostsAway(ctx, namespace)
	Expect(client.IgnoreNotFound(world.client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
	Eventually(ctx, func() bool {
		return apierrors.IsNotFound(world.client.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}))
	}).WithTimeout(timeout).WithPolling(interval).Should(BeTrue(), "namespace %s is still there", namespace)
}

// takeHostsAway deletes the hosts of a namespace, and the machines behind them.
func takeHostsAway(ctx context.Context, namespace string) {
	GinkgoHelper()
	hosts := deleteAll(ctx, namespace, &infrav1.TalosHostList{})
	if len(hosts) == 0 {
		return
	}
	if CurrentSpecReport().Failed() {
		Expect(world.nodes.Fleet.CollectLogs(ctx, filepath.Join(world.artifacts, "machines-after-"+namespace))).To(Succeed())
	}
	for _, machine := range world.nodes.Fleet.Hosts() {
		if slices.Contains(hosts, machine.Name) {
			Expect(world.nodes.Fleet.Destroy(ctx, machine)).To(Succeed())
		}
	}
}

// deleteAll deletes the objects of a kind in a namespace, waits until they are gone,
// and returns their names. A kind that is not installed has none.
func deleteAll(ctx context.Context, namespace string, list client.ObjectList) []string {
	GinkgoHelper()
	var names []string
	Eventually(ctx, func(g Gomega) {
		err := world.client.List(ctx, list, client.InNamespace(namespace))
		if apimeta.IsNoMatchError(err) {
			return
		}
		g.Expect(err).NotTo(HaveOccurred())
		found, err := apimeta.ExtractList(list)
		g.Expect(err).NotTo(HaveOccurred())
		var left []string
		for _, item := range found {
			object, ok := item.(client.Object)
			g.Expect(ok).To(BeTrue())
			left = append(left, object.GetName())
			if object.GetDeletionTimestamp().IsZero() {
				g.Expect(client.IgnoreNotFound(world.client.Delete(ctx, object))).To(Succeed())
			}
		}
		if names == nil {
			names = left
		}
		g.Expect(left).To(BeEmpty(), "in namespace %s", namespace)
	}).WithTimeout(longTimeout / 2).WithPolling(interval).Should(Succeed())
	return names
}

// upstreamLeavesNothing does so for upstream's specs, which do not when what they
// keep of a failure cannot be had: for all namespaces that there were not before.
func upstreamLeavesNothing() {
	var before []string
	BeforeEach(func(ctx SpecContext) { before = namespaceNames(ctx) }, NodeTimeout(timeout))
	AfterEach(func(ctx SpecContext) {
		for _, namespace := range namespaceNames(ctx) {
			if !slices.Contains(before, namespace) {
				letGo(ctx, namespace)
				takeAway(ctx, namespace)
			}
		}
	}, NodeTimeout(longTimeout))
}

func namespaceNames(ctx context.Context) []string {
	GinkgoHelper()
	list := &corev1.NamespaceList{}
	Expect(world.client.List(ctx, list)).To(Succeed())
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// heldBy is the finalizer by which upstream's ClusterDeletionSpec holds objects.
const heldBy = "test.cluster.x-k8s.io/cluster-deletion"

// letGo takes that finalizer from what it may be on.
func letGo(ctx context.Context, namespace string) {
	GinkgoHelper()
	for _, list := range []client.ObjectList{&clusterv1.ClusterList{}, &clusterv1.MachineList{}, &infrav1.TalosClusterList{}} {
		Expect(world.client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		Expect(apimeta.EachListItem(list, func(item runtime.Object) error {
			object, ok := item.(client.Object)
			if !ok {
				return nil
			}
			before, _ := object.DeepCopyObject().(client.Object)
			if !controllerutil.RemoveFinalizer(object, heldBy) {
				return nil
			}
			return client.IgnoreNotFound(world.client.Patch(ctx, object, client.MergeFrom(before)))
		})).To(Succeed())
	}
}

func TestWhatUpstreamHoldsGoesWithItsNamespace(t *testing.T) {
	RegisterTestingT(t)
	const namespace = "left"
	held := metav1.ObjectMeta{Namespace: namespace, Name: "held", Finalizers: []string{heldBy}}
	world.client = fake.NewClientBuilder().WithScheme(scheme()).WithObjects(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		&clusterv1.Cluster{ObjectMeta: held}, &clusterv1.Machine{ObjectMeta: held}, &infrav1.TalosCluster{ObjectMeta: held},
	).Build()
	defer func() { world.client = nil }()
	letGo(t.Context(), namespace)
	takeAway(t.Context(), namespace)
	Expect(namespaceNames(t.Context())).To(Equal([]string{"other"}))
	clusters := &clusterv1.ClusterList{}
	Expect(world.client.List(t.Context(), clusters)).To(Succeed())
	Expect(clusters.Items).To(BeEmpty())
	machines := &clusterv1.MachineList{}
	Expect(world.client.List(t.Context(), machines)).To(Succeed())
	Expect(machines.Items).To(HaveExactElements(HaveField("Finalizers", BeEmpty())), "the garbage collector takes it")
}
