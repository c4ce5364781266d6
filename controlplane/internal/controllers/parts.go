package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// parts are what a Machine refers to.
type parts struct {
	// infraMachine is the infrastructure machine; nil when there is none.
	infraMachine *unstructured.Unstructured
	// config is the TalosConfig; nil when there is none.
	config *bootstrapv1.TalosConfig
}

// reconcileParts reads what the Machines refer to.
func (r *Reconciler) reconcileParts(ctx context.Context, s *scope) error {
	s.parts = map[string]parts{}
	for _, machine := range s.machines {
		found, err := r.readParts(ctx, machine)
		if err != nil {
			return err
		}
		s.parts[machine.Name] = found
	}

	return nil
}

func (r *Reconciler) readParts(ctx context.Context, machine *clusterv1.Machine) (parts, error) {
	infraMachine, err := external.GetObjectFromContractVersionedRef(ctx, r.Client, machine.Spec.InfrastructureRef, machine.Namespace)
	switch {
	case apierrors.IsNotFound(err):
		infraMachine = nil
	case err != nil:
		return parts{}, fmt.Errorf("reading the infrastructure machine of Machine %s: %w", machine.Name, err)
	default:
		if err := r.watchInfraMachines(ctx, infraMachine); err != nil {
			return parts{}, err
		}
	}

	config := &bootstrapv1.TalosConfig{}
	err = r.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}, config)
	switch {
	case apierrors.IsNotFound(err):
		config = nil
	case err != nil:
		return parts{}, fmt.Errorf("reading the TalosConfig of Machine %s: %w", machine.Name, err)
	default:
		config.SetGroupVersionKind(bootstrapv1.GroupVersion.WithKind("TalosConfig"))
	}

	return parts{infraMachine: infraMachine, config: config}, nil
}

// watchInfraMachines wakes the control plane when an infrastructure machine of
// this kind changes.
func (r *Reconciler) watchInfraMachines(ctx context.Context, infraMachine *unstructured.Unstructured) error {
	if r.tracker == nil {
		return nil // There is no manager to watch with.
	}
	if err := r.tracker.Watch(ctrl.LoggerFrom(ctx), infraMachine, handler.EnqueueRequestsFromMapFunc(r.infraMachineToControlPlane)); err != nil {
		return fmt.Errorf("watching infrastructure machines: %w", err)
	}

	return nil
}

// infraMachineToControlPlane maps the infrastructure machine of a control plane
// Machine to its TalosControlPlane.
func (r *Reconciler) infraMachineToControlPlane(ctx context.Context, object client.Object) []ctrl.Request {
	if _, isControlPlane := object.GetLabels()[clusterv1.MachineControlPlaneLabel]; !isControlPlane {
		return nil
	}

	return r.clusterNameToControlPlane(ctx, object)
}

// held tells that a Machine is held back: the provider has not allowed it to
// have a configuration yet.
func (p parts) held() bool {
	if p.config == nil || p.config.Status.DataSecretName != "" {
		return false
	}
	_, held := p.config.Annotations[bootstrapv1.HoldBootstrapDataAnnotation]

	return held
}

// claimedBeforehand are the infrastructure machines that have their provider ID,
// and with it all that they need but the configuration, before they get that.
// Others are made with the configuration.
const claimedBeforehand = "TalosMachine"

// claimed tells that the infrastructure has what it needs for a Machine but the
// configuration, as far as that can be seen.
func (p parts) claimed() bool {
	if p.infraMachine == nil {
		return false
	}
	if p.infraMachine.GetKind() != claimedBeforehand {
		return true
	}
	providerID, _, err := unstructured.NestedString(p.infraMachine.Object, "spec", "providerID")

	return err == nil && providerID != ""
}
