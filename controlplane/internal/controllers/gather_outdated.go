package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// gatherOutdated compares each Machine with what is wanted.
func (r *Reconciler) gatherOutdated(ctx context.Context, s *scope) error {
	outdated := map[string][]string{}
	ref := s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef
	template, err := r.templateSpec(ctx, s, ref.Name)
	if err != nil {
		return err
	}
	wanted := plan.Wanted{
		Version:           s.controlPlane.Spec.Version,
		TemplateName:      ref.Name,
		TemplateGroupKind: schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind},
		Infrastructure:    template,
		Config:            s.controlPlane.Spec.TalosConfigSpec,
	}
	if after := s.controlPlane.Spec.Rollout.After; !after.IsZero() && !r.Clock.Now().Before(after.Time) {
		wanted.After = after.Time
	}
	for _, machine := range s.machines {
		found, err := r.found(ctx, s, machine, wanted)
		if err != nil {
			return err
		}
		differences, err := plan.Differences(wanted, found)
		if err != nil {
			return fmt.Errorf("comparing Machine %s with what is wanted: %w", machine.Name, err)
		}
		if len(differences) > 0 {
			outdated[machine.Name] = differences
		}
	}
	s.outdated = outdated

	return nil
}

// templateSpec is what an infrastructure machine template of that name makes; nil
// when there is no such template.
func (r *Reconciler) templateSpec(ctx context.Context, s *scope, name string) (map[string]any, error) {
	ref := s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef
	ref.Name = name
	template, err := readRef(ctx, r.Client, ref, s.controlPlane.Namespace)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading infrastructure machine template %s: %w", name, err)
	}
	spec, _, err := unstructured.NestedMap(template.Object, "spec", "template", "spec")
	if err != nil {
		return nil, fmt.Errorf("reading infrastructure machine template %s: %w", name, err)
	}

	return spec, nil
}

func (r *Reconciler) found(ctx context.Context, s *scope, machine *clusterv1.Machine, wanted plan.Wanted) (plan.Found, error) {
	found := plan.Found{Version: machine.Spec.Version, Created: machine.CreationTimestamp.Time}
	parts := s.parts[machine.Name]
	if parts.config != nil {
		found.Config = parts.config.Spec
	}
	if parts.infraMachine == nil {
		return found, nil
	}
	found.TemplateName = parts.infraMachine.GetAnnotations()[clusterv1.TemplateClonedFromNameAnnotation]
	found.TemplateGroupKind = parts.infraMachine.GetAnnotations()[clusterv1.TemplateClonedFromGroupKindAnnotation]
	if found.TemplateName == wanted.TemplateName || found.TemplateGroupKind != wanted.TemplateGroupKind.String() {
		return found, nil
	}
	var err error
	if found.Infrastructure, err = r.infrastructure.TemplatedSpec(parts.infraMachine); err != nil {
		return plan.Found{}, fmt.Errorf("reading the infrastructure machine of Machine %s: %w", machine.Name, err)
	}
	found.Former, err = r.templateSpec(ctx, s, found.TemplateName)

	return found, err
}
