package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/manifests"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

const otherVersion = "v1.36.4"

// workloadCache knows the API server of one cluster.
type workloadCache struct {
	clustercache.ClusterCache
	client client.Client
}

// GetUncachedClient implements clustercache.ClusterCache.
func (c workloadCache) GetUncachedClient(context.Context, client.ObjectKey) (client.Client, error) {
	if c.client == nil {
		return nil, clustercache.ErrClusterNotConnected
	}

	return c.client, nil
}

// newWorkload is the API server of a cluster that holds some objects.
func newWorkload(objects ...client.Object) client.Client {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{appsv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion})
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), meta.RESTScopeNamespace)
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("Deployment"), meta.RESTScopeNamespace)
	mapper.Add(rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"), meta.RESTScopeRoot)

	return fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(objects...).WithReturnManagedFields().Build()
}

// proxyIn is what a cluster has of kube-proxy.
func proxyIn(version string) *appsv1.DaemonSet {
	labels := map[string]string{"k8s-app": "kube-proxy"}

	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy", UID: "proxy", Annotations: map[string]string{manifests.InventoryAnnotation: "talos"}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "registry.k8s.io/kube-proxy:" + version}}},
			},
		},
	}
}

// proxied is a world of one machine whose cluster has these objects.
func proxied(t *testing.T, objects ...client.Object) (*world, *Reconciler) {
	t.Helper()
	w := newWorld(t)
	w.core, w.workload = true, newWorkload(objects...)
	r := w.manager()
	w.takeTurns(r)
	NewWithT(t).Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, "v1.36.3"))
	NewWithT(t).Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)).To(BeTrue())

	return w, r
}

// proxy is the image of kube-proxy in the cluster.
func (w *world) proxy() string {
	w.t.Helper()
	found := &appsv1.DaemonSet{}
	NewWithT(w.t).Expect(w.workload.Get(w.t.Context(), client.ObjectKeyFromObject(proxyIn("")), found)).To(Succeed())
	NewWithT(w.t).Expect(found.Annotations).To(HaveKeyWithValue(manifests.InventoryAnnotation, "talos"))

	return found.Spec.Template.Spec.Containers[0].Image
}

func (w *world) wantVersion(version string) {
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) { controlPlane.Spec.Version = version })
}

// TestManifestsFollowARollout: Talos itself leaves kube-proxy as the first machine has
// made it.
func TestManifestsFollowARollout(t *testing.T) {
	g := NewWithT(t)
	w, r := proxied(t, proxyIn("v1.36.3"))
	w.wantVersion(otherVersion)
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.proxy()).To(HaveSuffix("v1.36.3"), "the control plane comes first")
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)).To(Equal(controlplanev1.ManifestsWaitingReason))

	w.takeTurns(r)
	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.machines()[0].Spec.Version).To(Equal(otherVersion))
	g.Expect(w.proxy()).To(HaveSuffix(otherVersion))
	g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, otherVersion))
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)).To(BeTrue())

	changed := proxyIn("edited")
	g.Expect(w.workload.Get(t.Context(), client.ObjectKeyFromObject(changed), changed)).To(Succeed())
	changed.Spec.Template.Spec.Containers[0].Image = "edited"
	g.Expect(w.workload.Update(t.Context(), changed)).To(Succeed())
	w.settle(r)
	g.Expect(w.proxy()).To(Equal("edited"), "it happens once")
}

func TestManifestsOfAUserAreLeftAlone(t *testing.T) {
	t.Run("with the annotation", func(t *testing.T) {
		w, r := proxied(t, proxyIn("v1.36.3"))
		w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
			controlPlane.Annotations[controlplanev1.SkipManifestsAnnotation] = ""
		})
		w.wantVersion(otherVersion)
		w.takeTurns(r)
		NewWithT(t).Expect(w.proxy()).To(HaveSuffix("v1.36.3"))
		NewWithT(t).Expect(conditions.GetReason(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)).To(Equal(controlplanev1.ManifestsSkippedReason))
	})
	t.Run("when they were deleted", func(t *testing.T) {
		w, r := proxied(t)
		w.wantVersion(otherVersion)
		w.takeTurns(r)
		err := w.workload.Get(t.Context(), client.ObjectKeyFromObject(proxyIn("")), &appsv1.DaemonSet{})
		NewWithT(t).Expect(apierrors.IsNotFound(err)).To(BeTrue(), "what is missing is not made")
		NewWithT(t).Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, otherVersion))
	})
}

// TestWhatOthersHaveSetOutlivesAVersion: Talos has made an object, and somebody else
// has changed it since.
func TestWhatOthersHaveSetOutlivesAVersion(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*appsv1.DaemonSetSpec)
		image  string
		told   string
	}{
		"nothing":                 {func(*appsv1.DaemonSetSpec) {}, "registry.k8s.io/kube-proxy:" + otherVersion, ""},
		"a field":                 {func(spec *appsv1.DaemonSetSpec) { spec.RevisionHistoryLimit = ptr.To(int32(9)) }, "registry.k8s.io/kube-proxy:" + otherVersion, ".spec.revisionHistoryLimit"},
		"a field of a list":       {func(spec *appsv1.DaemonSetSpec) { spec.Template.Spec.Containers[0].Image = "mirror/kube-proxy:v1" }, "mirror/kube-proxy:v1", ".image"},
		"a field Talos is silent": {func(spec *appsv1.DaemonSetSpec) { spec.MinReadySeconds = 5 }, "registry.k8s.io/kube-proxy:" + otherVersion, ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := proxied(t)
			made := proxyIn("v1.36.3")
			made.UID, made.Spec.RevisionHistoryLimit = "", ptr.To(int32(3))
			g.Expect(w.workload.Create(t.Context(), made, client.FieldOwner("talos"))).To(Succeed())
			before := made.DeepCopy()
			tc.change(&made.Spec)
			wanted := made.Spec.DeepCopy()
			g.Expect(w.workload.Patch(t.Context(), made, client.MergeFrom(before), client.FieldOwner("kubectl-edit"))).To(Succeed())
			w.wantVersion(otherVersion)
			w.takeTurns(r)

			g.Expect(w.proxy()).To(Equal(tc.image))
			g.Expect(w.workload.Get(t.Context(), client.ObjectKeyFromObject(made), made)).To(Succeed())
			g.Expect(made.Spec.RevisionHistoryLimit).To(Equal(wanted.RevisionHistoryLimit))
			g.Expect(made.Spec.MinReadySeconds).To(Equal(wanted.MinReadySeconds))
			g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, otherVersion))
			kept := w.eventsOf("ManifestsKept")
			if tc.told == "" {
				g.Expect(kept).To(BeEmpty())
			} else {
				g.Expect(kept).To(ConsistOf(HaveSuffix(tc.told)))
			}
		})
	}
}

// TestWhatANewVersionLeavesOutGoes: Talos creates objects up to 1.12, and applies them
// from 1.13 on.
func TestWhatANewVersionLeavesOutGoes(t *testing.T) {
	g := NewWithT(t)
	w, r := proxied(t)
	made := proxyIn("v1.36.3")
	made.UID = ""
	made.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "gone", Image: "gone"}}
	g.Expect(w.workload.Create(t.Context(), made, client.FieldOwner("talos"))).To(Succeed())
	w.wantVersion(otherVersion)
	w.takeTurns(r)

	g.Expect(w.proxy()).To(HaveSuffix(otherVersion))
	g.Expect(w.workload.Get(t.Context(), client.ObjectKeyFromObject(made), made)).To(Succeed())
	g.Expect(made.Spec.Template.Spec.InitContainers).To(BeEmpty())
}

// eventsOf are the events of a reason.
func (w *world) eventsOf(reason string) []string {
	var found []string
	for range len(w.events.Events) {
		if event := <-w.events.Events; strings.Contains(event, " "+reason+" ") {
			found = append(found, event)
		}
	}

	return found
}

// TestManifestsThatAreRefusedAreTold: nothing is recorded, and it is tried again.
func TestManifestsThatAreRefusedAreTold(t *testing.T) {
	g := NewWithT(t)
	w, r := proxied(t, proxyIn("v1.36.3"))
	refuse := true
	withWatch, ok := w.workload.(client.WithWatch)
	g.Expect(ok).To(BeTrue())
	w.workload = interceptor.NewClient(withWatch, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if refuse {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "kube-proxy", errors.New("the policy says no"))
			}
			return c.Apply(ctx, o, opts...)
		},
	})
	r.ClusterCache = workloadCache{client: w.workload}
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations[controlplanev1.ManifestsAnnotation] = "again"
	})
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: testKey})
	g.Expect(err).NotTo(HaveOccurred(), "nothing waits for them")
	g.Expect(result.RequeueAfter).To(BeNumerically(">=", healthyInterval))
	g.Expect(w.controlPlane().Status.ObservedGeneration).To(Equal(w.controlPlane().Generation))
	condition := conditions.Get(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)
	g.Expect(condition.Reason).To(Equal(controlplanev1.ManifestsNotAppliedReason))
	g.Expect(condition.Message).To(ContainSubstring("the policy says no"))
	g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, "again"))

	refuse = false
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)).To(BeTrue())
}

// TestManifestsLeaveTimeForTheStatus: admission webhooks of a cluster may hang. All manifests
// are applied at the same time, and given up before the reconcile ends.
func TestManifestsLeaveTimeForTheStatus(t *testing.T) {
	g := NewWithT(t)
	another := proxyIn("v1.36.3")
	another.Name, another.UID = "another", "another"
	w, r := proxied(t, proxyIn("v1.36.3"), another)
	manifest := builders.KubeProxy("v1.36.3")
	manifest["metadata"] = map[string]any{"namespace": "kube-system", "name": "another"}
	for _, node := range w.talos {
		node.Update(func(state *talosfake.State) { state.Manifests = append(state.Manifests, manifest) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	end, _ := ctx.Deadline()
	withWatch, ok := w.workload.(client.WithWatch)
	g.Expect(ok).To(BeTrue())
	begun, all := make(chan struct{}, 2), make(chan struct{})
	go func() {
		defer close(all)
		for range 2 {
			<-begun
		}
	}()
	w.workload = interceptor.NewClient(withWatch, interceptor.Funcs{
		Apply: func(ctx context.Context, _ client.WithWatch, _ runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
			begun <- struct{}{}
			select {
			case <-all:
			case <-ctx.Done():
				return errors.New("one after the other")
			}
			if until, bounded := ctx.Deadline(); !bounded || end.Sub(until) < 20*time.Second {
				return errors.New("no time is left")
			}
			return apierrors.NewInternalError(errors.New("failed calling webhook"))
		},
	})
	r.ClusterCache = workloadCache{client: w.workload}
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations[controlplanev1.ManifestsAnnotation] = "again"
	})
	_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: testKey})
	g.Expect(err).NotTo(HaveOccurred())
	condition := conditions.Get(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)
	g.Expect(condition.Reason).To(Equal(controlplanev1.ManifestsNotAppliedReason))
	g.Expect(condition.Message).To(ContainSubstring("failed calling webhook"))
}

// TestExplainKeepsToWordsThatStay: a message that changes from pass to pass starts
// one pass after the other.
func TestExplainKeepsToWordsThatStay(t *testing.T) {
	g := NewWithT(t)
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "daemonsets"}, "kube-proxy", errors.New("the policy says no"))
	broken := errors.New("read tcp 10.0.0.9:41234->10.0.0.1:6443: connection reset by peer")

	words := explain(fmt.Errorf("bringing: %w", errors.Join(fmt.Errorf("applying: %w", refused), broken, broken)))
	g.Expect(words).To(Equal("The API server says: applying: " + refused.Error() + "; it is tried again, see the log of the manager"))
	g.Expect(explain(fmt.Errorf("bringing: %w", broken))).NotTo(ContainSubstring("41234"))
}

// TestManifestsWaitForANode: nobody is asked twice for nothing.
func TestManifestsWaitForANode(t *testing.T) {
	g := NewWithT(t)
	w, r := proxied(t, proxyIn("v1.36.3"))
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations[controlplanev1.ManifestsAnnotation] = "again"
	})
	node := w.talos[w.machines()[0].Name]
	node.Fail("Manifests", errors.New("denied"))
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.ManifestsUpToDateCondition)).To(Equal(controlplanev1.ManifestsNotAppliedReason))
	g.Expect(w.proxy()).To(HaveSuffix("v1.36.3"))

	node.Update(func(state *talosfake.State) { state.Manifests = []map[string]any{builders.KubeProxy(otherVersion)} })
	node.Fail("Manifests", nil)
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.proxy()).To(HaveSuffix(otherVersion))

	r.ClusterCache = workloadCache{}
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations[controlplanev1.ManifestsAnnotation] = "again"
	})
	g.Expect(w.reconcile(r)).To(Succeed(), "the connection comes by itself")
	g.Expect(w.controlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, "again"))
}
