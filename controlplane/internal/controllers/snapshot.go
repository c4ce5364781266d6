package controllers

import (
	"context"
	"fmt"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// Snapshots has snapshots of etcd taken before rollouts and scale downs (design
// D14). It is the seam for a backup provider; without one none are wanted.
type Snapshots interface {
	// State is the state of the snapshot for the next change of a control plane.
	State(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) (plan.SnapshotState, error)
	// Take has one taken. It returns at once.
	Take(ctx context.Context, controlPlane *controlplanev1.TalosControlPlane) error
}

// reconcileSnapshot finds out whether a snapshot is there.
func (r *Reconciler) reconcileSnapshot(ctx context.Context, s *scope) error {
	if r.Snapshots == nil {
		return nil
	}
	state, err := r.Snapshots.State(ctx, s.controlPlane)
	if err != nil {
		return fmt.Errorf("looking for a snapshot of etcd: %w", err)
	}
	s.snapshot = state

	return nil
}

// takeSnapshot has a snapshot taken.
func (r *Reconciler) takeSnapshot(ctx context.Context, s *scope) error {
	if err := r.Snapshots.Take(ctx, s.controlPlane); err != nil {
		return fmt.Errorf("having a snapshot of etcd taken: %w", err)
	}
	r.event(s, normal, "SnapshotRequested", "TakeSnapshot", "Having a snapshot of etcd taken before the change")

	return nil
}
