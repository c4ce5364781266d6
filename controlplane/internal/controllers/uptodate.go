package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/controlplane/internal/rollout"
)

// reconcileUpToDate compares each Machine with what is wanted.
func (r *Reconciler) reconcileUpToDate(_ context.Context, s *scope) error {
	s.outdated = map[string][]string{}
	ref := s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef
	wanted := rollout.Wanted{
		Version:           s.controlPlane.Spec.Version,
		TemplateName:      ref.Name,
		TemplateGroupKind: schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind},
		Config:            s.controlPlane.Spec.TalosConfigSpec,
	}
	for _, machine := range s.machines {
		found := found(machine, s.parts[machine.Name])
		differences, err := rollout.Differences(wanted, found)
		if err != nil {
			return fmt.Errorf("comparing Machine %s with what is wanted: %w", machine.Name, err)
		}
		if len(differences) > 0 {
			s.outdated[machine.Name] = differences
		}
	}

	return nil
}

func found(machine *clusterv1.Machine, parts parts) rollout.Found {
	found := rollout.Found{Version: machine.Spec.Version}
	if parts.infraMachine != nil {
		found.TemplateName = parts.infraMachine.GetAnnotations()[clusterv1.TemplateClonedFromNameAnnotation]
		found.TemplateGroupKind = parts.infraMachine.GetAnnotations()[clusterv1.TemplateClonedFromGroupKindAnnotation]
	}
	if parts.config != nil {
		found.Config = parts.config.Spec
	}

	return found
}
