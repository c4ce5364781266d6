package reconciliation_test

import (
	"context"
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
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

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
	config := &bootstrapv1.TalosConfig{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "a"}}
	live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(config).Build()
	old := &bootstrapv1.TalosConfig{}
	g.Expect(live.Get(ctx, client.ObjectKeyFromObject(config), old)).To(Succeed())
	written := old.DeepCopy()
	written.Labels = map[string]string{"written": "since"}
	g.Expect(live.Update(ctx, written)).To(Succeed())
	looks := 0
	cached := interceptor.NewClient(live, interceptor.Funcs{
		Get: func(ctx context.Context, live client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			if looks++; looks <= 3 {
				old.DeepCopyInto(into.(*bootstrapv1.TalosConfig))
				return nil
			}
			return live.Get(ctx, key, into, opts...)
		},
	})
	limiter := capicontroller.NewFakeController()
	pace := reconciliation.Pace{Limiter: limiter, Cached: cached, Live: live, Object: &bootstrapv1.TalosConfig{}}
	req := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(config)}
	conflict := fmt.Errorf("recording: %w", apierrors.NewConflict(schema.GroupResource{}, "a", errors.New("changed")))

	// Other errors count, and so does none.
	other := errors.New("refused")
	_, err := pace.AfterConflict(ctx, req, reconcile.Result{}, kerrors.NewAggregate([]error{conflict, other}))
	g.Expect(err).To(MatchError(other))
	result, err := pace.AfterConflict(ctx, req, reconcile.Result{RequeueAfter: time.Hour}, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(Equal(time.Hour))
	g.Expect(limiter.Deferrals).To(BeEmpty())
	g.Expect(looks).To(BeZero())

	result, err = pace.AfterConflict(ctx, req, reconcile.Result{}, kerrors.NewAggregate([]error{conflict, conflict}))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	g.Expect(limiter.Deferrals).To(HaveKeyWithValue(req, BeZero()))
	g.Expect(looks).To(Equal(4), "until the cache has what was written")

	// One that is gone by now is not waited for, nor a cache longer than the reconcile may take.
	gone := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "fleet", Name: "gone"}}
	_, err = pace.AfterConflict(ctx, gone, reconcile.Result{}, conflict)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(looks).To(Equal(4))
	ended, end := context.WithCancel(ctx)
	end()
	looks = 0
	_, err = pace.AfterConflict(ended, req, reconcile.Result{}, conflict)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(looks).To(BeNumerically("<=", 1))
}
