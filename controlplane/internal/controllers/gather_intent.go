package controllers

import (
	"context"
	"fmt"
)

// gatherIntentWiped finds out, when the Machine in the bootstrap intent is not there any
// more, whether nothing is left of it: then nothing was, or is left of what was,
// bootstrapped on it.
func (r *Reconciler) gatherIntentWiped(ctx context.Context, s *scope) error {
	s.intentWiped = false // The facts may be gathered again, after another Machine was recorded.
	intent := s.intent()
	if intent == nil || intent.Initialized || intent.ProviderID == "" {
		return nil
	}
	if machine := s.machine(intent.Name); machine != nil && machine.Spec.ProviderID == intent.ProviderID {
		return nil
	}
	gone, err := r.infrastructure.ProvenGone(ctx, s.cluster, intent.ProviderID)
	if err != nil {
		return fmt.Errorf("looking for what is left of Machine %s, on which etcd was to be bootstrapped: %w", intent.Name, err)
	}
	s.intentWiped = gone

	return nil
}
