package controllers

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// backups are snapshots that are taken when they are asked for, once ready.
type backups struct {
	state plan.SnapshotState
	err   error
	taken int
}

// State implements Snapshots.
func (b *backups) State(context.Context, *controlplanev1.TalosControlPlane) (plan.SnapshotState, error) {
	return b.state, b.err
}

// Take implements Snapshots.
func (b *backups) Take(context.Context, *controlplanev1.TalosControlPlane) error {
	b.taken++
	b.state = plan.SnapshotRunning
	return b.err
}

// TestAScaleDownWaitsForItsSnapshot: it is asked for once, and nothing goes before it
// was taken.
func TestAScaleDownWaitsForItsSnapshot(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	snapshots := &backups{state: plan.SnapshotMissing}
	r.Snapshots = snapshots
	w.scale(1)

	for range 4 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}
	g.Expect(snapshots.taken).To(Equal(1))
	g.Expect(w.machines()).To(HaveEach(HaveField("DeletionTimestamp", BeNil())))

	snapshots.err = errors.New("the store does not answer")
	g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("the store does not answer")))
	g.Expect(w.machines()).To(HaveEach(HaveField("DeletionTimestamp", BeNil())))

	snapshots.state, snapshots.err = plan.SnapshotTaken, nil
	w.until(r, w.has(1))
	g.Expect(snapshots.taken).To(Equal(1))
}
