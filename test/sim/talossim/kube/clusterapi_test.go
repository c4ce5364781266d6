package kube_test

import (
	"context"
	stdx509 "crypto/x509"
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/crypto/x509"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/core/reconcilers/machine/drain"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/test/support/builders"
)

func roots(ca *x509.CertificateAuthority) *stdx509.CertPool {
	pool := stdx509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CrtPEM)
	return pool
}

// cachedClient is made as Cluster API's ClusterCache makes its own.
func cachedClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	g := NewWithT(t)
	httpClient, err := rest.HTTPClientFor(config)
	g.Expect(err).NotTo(HaveOccurred())
	mapper, err := apiutil.NewDynamicRESTMapper(config, httpClient)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = mapper.RESTMapping(corev1.SchemeGroupVersion.WithKind("Node").GroupKind(), "v1")
	g.Expect(err).NotTo(HaveOccurred())
	informers, err := cache.New(config, cache.Options{HTTPClient: httpClient, Scheme: clientgoscheme.Scheme, Mapper: mapper})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(informers.IndexField(t.Context(), &corev1.Node{}, "spec.providerID", func(object client.Object) []string {
		node, _ := object.(*corev1.Node)
		return []string{node.Spec.ProviderID}
	})).To(Succeed())
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	go func() { _ = informers.Start(ctx) }()
	g.Expect(informers.WaitForCacheSync(ctx)).To(BeTrue())
	made, err := client.New(config, client.Options{
		HTTPClient: httpClient, Mapper: mapper, Scheme: clientgoscheme.Scheme,
		Cache: &client.CacheOptions{Reader: informers, DisableFor: []client.Object{&corev1.Pod{}}},
	})
	g.Expect(err).NotTo(HaveOccurred())
	return made
}

func TestClusterCacheFollowsNodes(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	reader := cachedClient(t, w.config(t, masters))
	partial := &metav1.PartialObjectMetadataList{}
	partial.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))

	for _, name := range []string{"one", "two"} {
		g.Expect(w.clusters.Join(t.Context(), w.node(name))).To(Succeed())
		g.Eventually(func(g Gomega) {
			nodes := &corev1.NodeList{}
			g.Expect(reader.List(t.Context(), nodes, client.MatchingFields{"spec.providerID": "talos://" + name})).To(Succeed())
			g.Expect(nodes.Items).To(HaveLen(1))
		}).WithTimeout(timeout).Should(Succeed())
	}
	g.Eventually(func(g Gomega) {
		g.Expect(reader.List(t.Context(), partial)).To(Succeed())
		g.Expect(partial.Items).To(HaveLen(2))
	}).WithTimeout(timeout).Should(Succeed())
	g.Expect(reader.List(t.Context(), &storagev1.VolumeAttachmentList{})).To(Succeed())
	g.Expect(reader.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(reader.List(t.Context(), partial)).To(Succeed())
		g.Expect(partial.Items).To(HaveLen(1))
	}).WithTimeout(timeout).Should(Succeed())
}

func TestPatchesOfNodes(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	node := w.node("one")
	node.ControlPlane = true
	node.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}}
	g.Expect(w.clusters.Join(t.Context(), node)).To(Succeed())
	direct, err := client.New(w.config(t, masters), client.Options{Scheme: clientgoscheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	found := &corev1.Node{}
	change := func(patch func(client.Object) client.Patch, do func()) {
		t.Helper()
		g.Expect(direct.Get(t.Context(), client.ObjectKey{Name: "one"}, found)).To(Succeed())
		before := found.DeepCopy()
		do()
		g.Expect(direct.Patch(t.Context(), found, patch(before))).To(Succeed())
		g.Expect(direct.Get(t.Context(), client.ObjectKey{Name: "one"}, found)).To(Succeed())
	}
	strategic := func(before client.Object) client.Patch {
		return client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	}
	outdated := clusterv1.NodeOutdatedRevisionTaint
	roles := node.Taints

	change(strategic, func() {
		g.Expect(found.Spec.Taints).To(Equal(roles), "the taint of Talos' configuration is not repeated")
		found.Labels["added"] = "yes"
		found.Spec.Taints = append(found.Spec.Taints, outdated)
	})
	g.Expect(found.Labels).To(HaveKeyWithValue("added", "yes"))
	g.Expect(found.Spec.Taints).To(ConsistOf(append(roles, outdated)))
	change(strategic, func() { found.Spec.Taints, found.Labels = roles, map[string]string{corev1.LabelHostname: "one"} })
	g.Expect(found.Spec.Taints).To(Equal(roles))
	g.Expect(found.Labels).NotTo(HaveKey("added"))
	change(client.MergeFrom, func() { found.Spec.Unschedulable = true })
	g.Expect(found.Spec.Unschedulable).To(BeTrue())

	stale := found.DeepCopy()
	change(client.MergeFrom, func() { found.Annotations = map[string]string{"other": "writer"} })
	lost := stale.DeepCopy()
	lost.Labels["lost"] = "update"
	g.Expect(apierrors.IsConflict(direct.Patch(t.Context(), lost, strategic(stale)))).To(BeTrue())
	stale.Name = "gone"
	g.Expect(apierrors.IsNotFound(direct.Patch(t.Context(), stale, client.RawPatch("application/merge-patch+json", []byte("{}"))))).To(BeTrue())
	found.Status.Phase = corev1.NodeRunning
	g.Expect(direct.Status().Update(t.Context(), found)).To(Succeed())
}

// TestWhatIsAppliedIsMerged: with what Talos makes of kube-proxy, as a new version of the
// control plane brings it.
func TestWhatIsAppliedIsMerged(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	direct, err := client.New(w.config(t, masters), client.Options{Scheme: clientgoscheme.Scheme})
	g.Expect(err).NotTo(HaveOccurred())
	proxy := func(version string) *appsv1.DaemonSet {
		made := &appsv1.DaemonSet{}
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(builders.KubeProxy(version), made)).To(Succeed())
		return made
	}
	apply := func(version string) error {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(proxy(version))
		g.Expect(err).NotTo(HaveOccurred())
		unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
		return direct.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content}), client.FieldOwner("talos"), client.ForceOwnership)
	}
	g.Expect(apierrors.IsNotFound(apply("v1.36.3"))).To(BeTrue(), "what is missing is not made")

	made := proxy("v1.36.3")
	made.Spec.MinReadySeconds = 5
	g.Expect(direct.Create(t.Context(), made)).To(Succeed())
	g.Expect(apply("v1.36.4")).To(Succeed())
	g.Expect(direct.Get(t.Context(), client.ObjectKeyFromObject(made), made)).To(Succeed())
	g.Expect(made.Spec.Template.Spec.Containers).To(ConsistOf(HaveField("Image", "registry.k8s.io/kube-proxy:v1.36.4")))
	g.Expect(made.Spec.MinReadySeconds).To(BeEquivalentTo(5))
}

// TestDrain runs the drain of Cluster API's Machine controller.
func TestDrain(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	machine := w.node("one")
	machine.ControlPlane = true
	g.Expect(w.clusters.Join(t.Context(), machine)).To(Succeed())
	remote := cachedClient(t, w.config(t, masters))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "app"}, Spec: corev1.PodSpec{NodeName: "one"}}
	g.Expect(remote.Create(t.Context(), pod)).To(Succeed())
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "other"}, Spec: corev1.PodSpec{NodeName: "two"}}
	g.Expect(remote.Create(t.Context(), other)).To(Succeed())
	scheme := runtime.NewScheme()
	g.Expect(clusterv1.AddToScheme(scheme)).To(Succeed())
	helper := &drain.Helper{Client: fake.NewClientBuilder().WithScheme(scheme).Build(), RemoteClient: remote, GracePeriodSeconds: -1}
	node := &corev1.Node{}
	g.Eventually(func() error { return remote.Get(t.Context(), client.ObjectKey{Name: "one"}, node) }).WithTimeout(timeout).Should(Succeed())

	g.Expect(helper.CordonNode(t.Context(), node)).To(Succeed())
	pods, err := helper.GetPodsForEviction(t.Context(), &clusterv1.Cluster{}, &clusterv1.Machine{}, "one")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(pods.Pods()).To(ConsistOf(HaveField("Name", "app")))
	g.Expect(pods.SkippedPods()).To(HaveLen(3))
	g.Expect(helper.EvictPods(t.Context(), pods).PodsFailedEviction).To(BeEmpty())
	pods, err = helper.GetPodsForEviction(t.Context(), &clusterv1.Cluster{}, &clusterv1.Machine{}, "one")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(helper.EvictPods(t.Context(), pods).DrainCompleted()).To(BeTrue())

	g.Expect(remote.Delete(t.Context(), node)).To(Succeed())
	left := &corev1.PodList{}
	g.Expect(remote.List(t.Context(), left)).To(Succeed())
	g.Expect(left.Items).To(ConsistOf(HaveField("Name", "other")))
}

func TestTableOfNodes(t *testing.T) {
	g := NewWithT(t)
	w := newWorkload(t)
	first := w.node("cp")
	first.ControlPlane = true
	g.Expect(w.clusters.Join(t.Context(), first)).To(Succeed())
	g.Expect(w.clusters.Join(t.Context(), w.node("worker"))).To(Succeed())
	g.Expect(w.clusters.Leave(t.Context(), w.ca.CrtPEM, "worker")).To(Succeed())

	raw, err := kubernetes.NewForConfigOrDie(w.config(t, masters)).CoreV1().RESTClient().Get().Resource("nodes").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json").DoRaw(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	table := &metav1.Table{}
	g.Expect(json.Unmarshal(raw, table)).To(Succeed())
	g.Expect(table.Kind).To(Equal("Table"))
	g.Expect(table.Rows).To(HaveLen(2))
	g.Expect(table.Rows[0].Cells).To(HaveLen(len(table.ColumnDefinitions)))
	g.Expect(table.Rows[0].Cells[:3]).To(Equal([]any{"cp", "Ready", "control-plane"}))
	g.Expect(table.Rows[1].Cells[:3]).To(Equal([]any{"worker", "NotReady", "<none>"}))
	g.Expect(table.Rows[1].Cells[4:6]).To(Equal([]any{version, "127.0.0.9"}))
}
