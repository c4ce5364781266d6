package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/labels/format"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// gatherMachines finds the Machines of the control plane.
func (r *Reconciler) gatherMachines(ctx context.Context, s *scope) error {
	return listMachines(ctx, r.Client, s)
}

// listMachines finds the control plane Machines of the Cluster through reader,
// and tells the own ones from the others. A Machine that lost its owner
// reference is still known by its label, and one that lost the label by its owner
// reference; it gets back what it has lost.
func listMachines(ctx context.Context, reader client.Reader, s *scope) error {
	list := &clusterv1.MachineList{}
	inCluster := client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}
	if err := reader.List(ctx, list, client.InNamespace(s.cluster.Namespace), inCluster); err != nil {
		return fmt.Errorf("listing the control plane Machines: %w", err)
	}
	s.machines, s.foreign = nil, nil
	for i := range list.Items {
		machine := &list.Items[i]
		_, labelled := machine.Labels[clusterv1.MachineControlPlaneLabel]
		switch {
		case isControlled(s.controlPlane, machine), labelled && isOwn(s.controlPlane, machine):
			s.machines = append(s.machines, machine)
		case labelled:
			s.foreign = append(s.foreign, machine.Name)
		}
	}
	slices.Sort(s.foreign)
	slices.SortFunc(s.machines, func(a, b *clusterv1.Machine) int { return cmp.Compare(a.Name, b.Name) })
	s.machinesListed = true

	return nil
}

// isOwn reports whether a control plane Machine of the Cluster belongs to the control
// plane, or is adopted: one that nobody controls, and that has a TalosConfig,
// gets the label and the owner reference with the next write.
func isOwn(controlPlane *controlplanev1.TalosControlPlane, machine *clusterv1.Machine) bool {
	controller := metav1.GetControllerOf(machine)
	if controller == nil {
		name, labelled := machine.Labels[clusterv1.MachineControlPlaneNameLabel]
		return name == format.MustFormatValue(controlPlane.Name) ||
			(!labelled && machine.Spec.Bootstrap.ConfigRef.Kind == "TalosConfig" && machine.Spec.Bootstrap.ConfigRef.APIGroup == bootstrapv1.GroupVersion.Group)
	}

	return isControlled(controlPlane, machine)
}

func isControlled(controlPlane *controlplanev1.TalosControlPlane, machine *clusterv1.Machine) bool {
	return util.IsControlledBy(machine, controlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind).GroupKind())
}

// gatherTemplate reads the infrastructure machine template. That there is none is said
// where it is needed.
func (r *Reconciler) gatherTemplate(ctx context.Context, s *scope) error {
	template, err := r.template(ctx, r.Client, s)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the infrastructure machine template: %w", err)
	}
	s.template = template

	return nil
}

func (r *Reconciler) template(ctx context.Context, reader client.Reader, s *scope) (*unstructured.Unstructured, error) {
	return readRef(ctx, reader, s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef, s.controlPlane.Namespace)
}
