package reconciliation_test

import (
	"context"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

// hanging are reconciles that hang until they are let go.
type hanging struct {
	begun chan reconcile.Request
	letGo chan struct{}
}

func (h *hanging) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	h.begun <- req
	select {
	case <-ctx.Done():
	case <-h.letGo:
	}

	return reconcile.Result{}, nil
}

func requestOf(namespace string, number int) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(number)}}
}

// TestNoNamespaceTakesAllWorkers, however many of its reconciles hang.
func TestNoNamespaceTakesAllWorkers(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	const workers = 8
	reconciles := &hanging{begun: make(chan reconcile.Request, workers), letGo: make(chan struct{})}
	fair := reconciliation.Fairly(reconciles, workers)
	ended := make(chan reconcile.Result, workers)
	begin := func(namespace string, number int) {
		t.Helper()
		go func() {
			result, err := fair.Reconcile(ctx, requestOf(namespace, number))
			if err == nil {
				ended <- result
			}
		}()
		g.Eventually(reconciles.begun).Should(Receive(Equal(requestOf(namespace, number))))
	}
	refuse := func(namespace string) {
		t.Helper()
		result, err := fair.Reconcile(ctx, requestOf(namespace, workers))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
		g.Expect(reconciles.begun).NotTo(Receive())
	}
	for i := range workers / 2 {
		begin("a", i)
	}
	refuse("a")
	// Half of what the first one leaves, and so on: there is always something left.
	begin("b", 0)
	begin("b", 1)
	refuse("b")
	begin("c", 0)
	refuse("c")
	begin("d", 0)

	reconciles.letGo <- struct{}{}
	g.Eventually(ended).Should(Receive(Equal(reconcile.Result{})))
	close(reconciles.letGo)
	for range 7 {
		g.Eventually(ended).Should(Receive(Equal(reconcile.Result{})))
	}
	for i := range 4 {
		_, err := fair.Reconcile(ctx, requestOf("a", i))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reconciles.begun).To(Receive(), "what has ended takes no worker")
	}
}

// TestOneWorkerServesAll: there is nothing to share.
func TestOneWorkerServesAll(t *testing.T) {
	g := NewWithT(t)
	reconciles := &hanging{begun: make(chan reconcile.Request, 1), letGo: make(chan struct{})}
	close(reconciles.letGo)
	for _, workers := range []int{0, 1} {
		fair := reconciliation.Fairly(reconciles, workers)
		for i := range 3 {
			_, err := fair.Reconcile(t.Context(), requestOf("a", i))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(reconciles.begun).To(Receive())
		}
	}
}
