package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/order"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

func isPlanned(addon *addonv1.TalosClusterAddon) bool {
	_, planned := addon.Annotations[addonv1.PlanAnnotation]

	return planned
}

// plan writes what would be done, and has nothing done. A plan is made once for what is
// asked for.
func (r *ReleaseReconciler) plan(ctx context.Context, s *releaseScope, connected bool) error {
	selected, err := order.Selects(s.addon, s.cluster)
	if err != nil {
		return err
	}
	digest := s.digest
	if !selected {
		digest = uninstallDigest
	}
	if s.ended != nil && s.ended.Err != nil && s.release.Status.Plan.Digest != digest {
		s.release.Status.Plan = addonv1.ReleasePlan{Message: condition.Cut(told(s.ended.Err), maxPlanMessage)}
	}
	s.released = plannedFound(s.release.Status.Plan, digest)
	if _, running := r.Jobs.Running(s.key()); running || !connected || s.release.Status.Plan.Digest == digest {
		return nil
	}
	if hold := r.holds.left(s.key(), digest); hold > 0 {
		s.again(hold)
		return nil
	}
	connection, err := r.Connect(ctx, types.NamespacedName{Namespace: s.cluster.Namespace, Name: s.cluster.Name}, nil)
	if err != nil {
		return fmt.Errorf("connecting to the Cluster: %w", err)
	}
	runner, task, removal := release.Runner{Helm: connection.Helm, Objects: connection.Objects, Clock: r.Clock}, r.taskOf(s), r.removalOf(s)
	task.Fetch = r.fetch(s.addon.DeepCopy())
	r.start(s, func(ctx context.Context, _ func(addonv1.ReleaseAction)) release.Result {
		result := release.Result{Digest: digest}
		var plan addonv1.ReleasePlan
		if selected {
			plan, result.Err = runner.Plan(ctx, task)
		} else {
			plan, result.Err = runner.PlanRemoval(ctx, removal)
		}
		if result.Err == nil {
			result.Plan = &plan
		}
		return result
	})

	return nil
}

// plannedFound is what condition Released says while nothing is done. A plan that has no
// digest says why there is none.
func plannedFound(plan addonv1.ReleasePlan, digest string) condition.Finding {
	text := "nothing is done while the add-on has the annotation " + addonv1.PlanAnnotation
	switch {
	case plan.Digest == digest:
		text = "status.plan says what would be done; " + text
	case plan.Digest == "" && plan.Message != "":
		text += "; what would be cannot be said, and is tried again: " + plan.Message
	default:
		text = "status.plan does not say yet what would be done; " + text
	}

	return condition.Unknown(addonv1.PlannedReason, text)
}
