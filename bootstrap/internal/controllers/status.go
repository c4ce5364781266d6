package controllers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/patch"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

// reconcileStatus derives the status from what was found, and writes
// it. reconcileErr is how the reconcile ended.
func (r *Reconciler) reconcileStatus(ctx context.Context, s *scope, helper *patch.Helper, reconcileErr error) error {
	if s.stored {
		s.config.Status.DataSecretName = s.config.Name
		s.config.Status.Initialization.DataSecretCreated = ptr.To(true)
	}
	r.set(s, bootstrapv1.TalosConfigCertificatesAvailableCondition, s.certificates)
	r.set(s, bootstrapv1.TalosConfigDataSecretAvailableCondition, s.dataSecret)
	r.set(s, bootstrapv1.TalosConfigClientConfigAvailableCondition, s.clientConfig)
	// Only what the Machine needs of the config decides whether it is ready.
	condition.Set(s.config, bootstrapv1.TalosConfigReadyCondition, s.dataSecret)

	options := []patch.Option{patch.WithOwnedConditions{Conditions: []string{
		clusterv1.PausedCondition,
		bootstrapv1.TalosConfigReadyCondition,
		bootstrapv1.TalosConfigCertificatesAvailableCondition,
		bootstrapv1.TalosConfigDataSecretAvailableCondition,
		bootstrapv1.TalosConfigClientConfigAvailableCondition,
	}}}
	if reconcileErr == nil {
		options = append(options, patch.WithStatusObservedGeneration{})
	}
	if err := helper.Patch(ctx, s.config, options...); err != nil {
		return fmt.Errorf("writing the TalosConfig: %w", err)
	}

	return nil
}

// set sets a condition, and records an event when it begins to say that the API server does
// not take a Secret.
func (r *Reconciler) set(s *scope, conditionType string, found condition.Finding) {
	isRefused := func(status metav1.ConditionStatus, reason string) bool {
		return status == metav1.ConditionFalse && reason == clusterv1.InternalErrorReason
	}
	before := ptr.Deref(conditions.Get(s.config, conditionType), metav1.Condition{})
	if isRefused(found.Status, found.Reason) && !isRefused(before.Status, before.Reason) {
		r.Recorder.Eventf(s.config, s.machine, corev1.EventTypeWarning, bootstrapv1.EventAttention, "Reconcile", "%s: %s", conditionType, found.Message)
	}
	condition.Set(s.config, conditionType, found)
}
