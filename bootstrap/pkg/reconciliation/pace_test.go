package reconciliation_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

// recorder records until when the cache has to be read.
type recorder struct {
	*capicontroller.FakeController

	kind    capicontroller.GroupVersionKindType
	object  client.ObjectKey
	version string
}

func (r *recorder) DeferNextReconcileUntilCacheUpToDate(object metav1.Object, kind capicontroller.GroupVersionKindType, version string) {
	r.object, r.kind, r.version = client.ObjectKey{Namespace: object.GetNamespace(), Name: object.GetName()}, kind, version
}

func TestAPassThatOnlyWaitsDoesNotCount(t *testing.T) {
	g := NewWithT(t)
	limiter := capicontroller.NewFakeController()
	req := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "fleet", Name: "a"}}
	reconciliation.Pace{Limiter: limiter}.OnlyWaits(req)
	g.Expect(limiter.Deferrals).To(HaveKeyWithValue(req, BeZero()))
	reconciliation.Pace{}.OnlyWaits(req)
}

// TestAConflictIsNoError: it is tried again at once, but not before the cache has the object
// as it is by now.
func TestAConflictIsNoError(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	scheme := runtime.NewScheme()
	g.Expect(bootstrapv1.AddToScheme(scheme)).To(Succeed())
	made := &bootstrapv1.TalosConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(made).Build()
	written := &bootstrapv1.TalosConfig{}
	g.Expect(c.Get(ctx, client.ObjectKeyFromObject(made), written)).To(Succeed())
	limiter := &recorder{FakeController: capicontroller.NewFakeController()}
	pace := reconciliation.Pace{Limiter: limiter, Live: c, Kind: bootstrapv1.GroupVersion.WithKind(bootstrapv1.TalosConfigKind)}
	req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(made)}
	conflict := fmt.Errorf("recording: %w", apierrors.NewConflict(schema.GroupResource{}, "a", errors.New("changed")))

	// Other errors count, and so does none.
	other := errors.New("refused")
	_, err := pace.AfterConflict(ctx, req, reconcile.Result{}, kerrors.NewAggregate([]error{conflict, other}))
	g.Expect(err).To(MatchError(other))
	result, err := pace.AfterConflict(ctx, req, reconcile.Result{RequeueAfter: time.Hour}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(Equal(time.Hour))
	g.Expect(limiter.Deferrals).To(BeEmpty())
	g.Expect(limiter.version).To(BeEmpty())

	result, err = pace.AfterConflict(ctx, req, reconcile.Result{}, kerrors.NewAggregate([]error{conflict, conflict}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	g.Expect(limiter.Deferrals).To(HaveKeyWithValue(req, BeZero()))
	g.Expect(limiter.object).To(Equal(req.NamespacedName))
	g.Expect(limiter.kind).To(Equal(capicontroller.StructuredObject(bootstrapv1.GroupVersion, bootstrapv1.TalosConfigKind)))
	g.Expect(limiter.version).To(Equal(written.ResourceVersion))

	// An object that is gone by now is not waited for.
	limiter.version = ""
	gone := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "fleet", Name: "gone"}}
	result, err = pace.AfterConflict(ctx, gone, reconcile.Result{}, conflict)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	g.Expect(limiter.version).To(BeEmpty())
}
