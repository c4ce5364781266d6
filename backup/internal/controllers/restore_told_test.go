package controllers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// TestWhyASnapshotIsNotSentStaysTold until it is sent again.
func TestWhyASnapshotIsNotSentStaysTold(t *testing.T) {
	b := newRestoreBed(t)
	for _, node := range b.nodes {
		node.Fail("EtcdRecover", errors.New("no room"))
	}
	b.restore()
	says := func() []string {
		found := conditions.Get(b.theRestore(), backupv1.EtcdRestoredCondition)
		return []string{found.Reason, found.Message}
	}
	b.until(func(r *backupv1.TalosEtcdRestore) bool { return r.Status.Failure.Count == 3 })
	first := says()
	b.Expect(first).To(HaveExactElements(backupv1.SendingFailedReason, And(ContainSubstring("Machine cp-0"), ContainSubstring("no room"))))
	for range 3 {
		b.step()
		b.Expect(says()).To(Equal(first))
	}
	b.Expect(b.theRestore().Status.Failure.Count).To(BeEquivalentTo(3))
	for _, node := range b.nodes {
		node.Fail("EtcdRecover", nil)
	}
	b.until(hasEnded)
	b.expectRestored(1)
}

// TestARestoreWaitsForItsTurn, and says so, when its backup is to be looked at and when it is
// to be sent.
func TestARestoreWaitsForItsTurn(t *testing.T) {
	b := newRestoreBed(t)
	occupy := func() (free func()) {
		ctx, free := context.WithCancel(t.Context())
		b.Expect(b.restores.Jobs.Start(jobs.Key{Namespace: namespace, Name: "other", Cluster: "prod"}, func(context.Context, func(metrics.Step)) RestoreResult {
			<-ctx.Done()
			return RestoreResult{}
		})).To(BeTrue())
		return free
	}
	free := occupy()
	b.restore()
	b.step()
	b.Expect(says(b.theRestore(), backupv1.CheckedCondition)).To(Equal("Unknown WaitingForTurn"))
	b.Expect(b.maker.made).To(BeZero())
	free()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.MachinesWipedCondition) == "False Wiping"
	})
	free = occupy()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.EtcdRestoredCondition) == "Unknown WaitingForTurn"
	})
	b.step()
	b.Expect(says(b.theRestore(), backupv1.EtcdRestoredCondition)).To(Equal("Unknown WaitingForTurn"))
	free()
	b.until(hasEnded)
	b.expectRestored(1)
}

// TestWhyARestoreIsRefusedStaysTold, also where its control plane cannot be let go at once.
func TestWhyARestoreIsRefusedStaysTold(t *testing.T) {
	b := newRestoreBed(t)
	b.nodes[1].Update(func(s *fake.State) { s.EtcdSpec.Version = "3.5.21" })
	b.restores.Client = interceptor.NewClient(b.restores.Client.(client.WithWatch), interceptor.Funcs{ //nolint:forcetypeassert // It is a fake.
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			if object.GetName() == "prod-cp" && b.theRestore().Annotations[backupv1.OutcomeAnnotation] != "" {
				return errors.New("not now")
			}
			return c.Patch(ctx, object, patch, options...)
		},
	})
	b.restore()
	b.step()
	_, err := b.restores.Reconcile(t.Context(), requestOf(b.theRestore()))
	b.Expect(err).To(MatchError(ContainSubstring("not now")))
	b.startRestores()
	b.step()
	b.expectNothingWiped(backupv1.CheckedCondition, "False EtcdTooOld")
}

// TestWhatHoldsUpTheEndIsLoggedOnce, and tried again each minute: it lasts until somebody mends it,
// whatever its words. What a condition does not say is logged each time, and tried again soon.
func TestWhatHoldsUpTheEndIsLoggedOnce(t *testing.T) {
	b := newRestoreBed(t)
	b.workload.nodes = []string{"old"}
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return conditions.GetReason(r, backupv1.NodesRestartedCondition) == backupv1.WaitingForNodesReason
	})
	failing := func(webhook string) error {
		return fmt.Errorf("deleting Node old: %w", apierrors.NewInternalError(errors.New("failed calling webhook "+webhook)))
	}
	for _, tc := range []struct {
		err   error
		want  int
		retry time.Duration
	}{{failing("one"), 1, nodesRetry}, {failing("other"), 0, nodesRetry}, {errors.New("connection reset by peer"), 3, restoreInterval}, {failing("one"), 1, nodesRetry}} {
		logged := 0
		ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(_, line string) {
			if strings.Contains(line, "Failed to clear up") {
				logged++
			}
		}, funcr.Options{}))
		b.workload.undeleted = tc.err
		for range 3 {
			result, err := b.restores.Reconcile(ctx, requestOf(b.theRestore()))
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(result.RequeueAfter).To(BeNumerically("~", tc.retry, tc.retry/3))
		}
		b.Expect(logged).To(Equal(tc.want), tc.err.Error())
	}
	b.workload.nodes, b.workload.undeleted = nil, nil
	b.until(hasEnded)
	b.expectRestored(1)
}
