package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/rollout"
)

// reconcileUpToDate compares each Machine with what is wanted.
func (r *Reconciler) reconcileUpToDate(ctx context.Context, s *scope) error {
	s.outdated = map[string][]string{}
	ref := s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef
	wanted := rollout.Wanted{
		Version:           s.controlPlane.Spec.Version,
		TemplateName:      ref.Name,
		TemplateGroupKind: schema.GroupKind{Group: ref.APIGroup, Kind: ref.Kind},
		Config:            s.controlPlane.Spec.TalosConfigSpec,
	}
	for _, machine := range s.machines {
		found, err := r.found(ctx, machine)
		if err != nil {
			return err
		}
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

func (r *Reconciler) found(ctx context.Context, machine *clusterv1.Machine) (rollout.Found, error) {
	found := rollout.Found{Version: machine.Spec.Version}
	infraMachine, err := external.GetObjectFromContractVersionedRef(ctx, r.Client, machine.Spec.InfrastructureRef, machine.Namespace)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return found, fmt.Errorf("reading the infrastructure machine of Machine %s: %w", machine.Name, err)
	default:
		found.TemplateName = infraMachine.GetAnnotations()[clusterv1.TemplateClonedFromNameAnnotation]
		found.TemplateGroupKind = infraMachine.GetAnnotations()[clusterv1.TemplateClonedFromGroupKindAnnotation]
	}

	config := &bootstrapv1.TalosConfig{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return found, fmt.Errorf("reading the TalosConfig of Machine %s: %w", machine.Name, err)
	default:
		found.Config = config.Spec
	}

	return found, nil
}
