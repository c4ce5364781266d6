package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/controllers/external"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
)

// createMachine creates the infrastructure machine, the TalosConfig and the
// Machine, in this order and under one name. The name is recorded before the
// first of them, so that after a crash the next reconcile goes on where this one
// ended. All but the first Machine are held back until it is their turn to join.
func (r *Reconciler) createMachine(ctx context.Context, s *scope) error {
	// The cache may not have seen the Machine that the last reconcile created.
	live := &scope{cluster: s.cluster, controlPlane: s.controlPlane}
	if err := listMachines(ctx, r.APIReader, live); err != nil {
		return err
	}
	if len(live.foreign) > 0 || !slices.Equal(machineNames(live), machineNames(s)) {
		return nil // Its event starts another reconcile.
	}
	template, err := r.template(ctx, r.Client, s)
	if err != nil {
		return fmt.Errorf("reading the infrastructure machine template: %w", err)
	}
	name, err := r.nextName(ctx, s)
	if err != nil {
		return err
	}
	infraRef, err := r.ensureInfraMachine(ctx, s, template, name)
	if err != nil {
		return err
	}
	if err := r.ensureTalosConfig(ctx, s, name); err != nil {
		return err
	}

	machine := desiredMachine(s, name)
	machine.Spec.Version = s.controlPlane.Spec.Version
	machine.Spec.FailureDomain = r.pickFailureDomain(ctx, s)
	machine.Spec.InfrastructureRef = infraRef
	machine.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: bootstrapv1.GroupVersion.Group, Kind: "TalosConfig", Name: name,
	}
	if record := s.controlPlane.Annotations[controlplanev1.RemediationInProgressAnnotation]; record != "" {
		machine.Annotations[controlplanev1.RemediationForAnnotation] = record
	}
	u, err := toApply(machine, clusterv1.GroupVersion.WithKind("Machine"))
	if err != nil {
		return err
	}
	if err := r.applier.apply(ctx, specManager, u, nil); err != nil {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Created control plane Machine", "Machine", name, "failureDomain", machine.Spec.FailureDomain)
	r.event(s, normal, "MachineCreated", "CreateMachine", "Created Machine %s", name)

	return r.bind(ctx, s, u, infraRef, machine.Spec.Bootstrap.ConfigRef)
}

// bind makes a Machine the controller of what belongs to it. Cluster API's Machine
// controller does the same, and takes two seconds; where it was faster, nothing is
// left to do.
func (r *Reconciler) bind(ctx context.Context, s *scope, machine *unstructured.Unstructured, refs ...clusterv1.ContractVersionedObjectReference) error {
	for _, ref := range refs {
		object, err := readRef(ctx, r.APIReader, ref, s.controlPlane.Namespace)
		if err != nil {
			return fmt.Errorf("reading %s %s: %w", ref.Kind, ref.Name, err)
		}
		before := object.DeepCopy()
		if err := controllerutil.SetControllerReference(machine, object, r.Client.Scheme()); err != nil {
			return fmt.Errorf("binding %s %s to its Machine: %w", ref.Kind, ref.Name, err)
		}
		if err := objects.Patch(ctx, r.Client, before, object); err != nil && !apierrors.IsConflict(err) {
			return fmt.Errorf("binding %s %s to its Machine: %w", ref.Kind, ref.Name, err)
		}
	}

	return nil
}

func machineNames(s *scope) []string {
	names := make([]string, 0, len(s.machines))
	for _, machine := range s.machines {
		names = append(names, machine.Name)
	}

	return names
}

// handOver lets the bootstrap provider make the configuration of the Machine
// that is to join.
func (r *Reconciler) handOver(ctx context.Context, s *scope) error {
	name := s.decision.Machine
	config := &bootstrapv1.TalosConfig{}
	if err := r.liveGet(ctx, client.ObjectKey{Namespace: s.controlPlane.Namespace, Name: name}, config); err != nil {
		return fmt.Errorf("reading TalosConfig %s: %w", name, err)
	}
	if !metav1.HasAnnotation(config.ObjectMeta, bootstrapv1.HoldBootstrapDataAnnotation) {
		return nil
	}
	before := config.DeepCopy()
	delete(config.Annotations, bootstrapv1.HoldBootstrapDataAnnotation)
	if err := objects.Patch(ctx, r.Client, before, config); err != nil {
		return fmt.Errorf("letting Machine %s have its configuration: %w", name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Handing a control plane Machine its configuration", "Machine", logMachine(s, name), "reason", s.decision.Message)
	r.event(s, normal, "MachineJoins", "HandOver", "%s", s.decision.Message)

	return nil
}

// nextName is the recorded name of the next Machine, or a new one, recorded. A
// name that a Machine has got by now is no longer the next one's.
func (r *Reconciler) nextName(ctx context.Context, s *scope) (string, error) {
	template := s.controlPlane.Spec.MachineNaming.Template
	name, err := naming.MachineName(template, s.cluster.Name, s.controlPlane.Name, r.Random)
	if err != nil {
		return "", fmt.Errorf("spec.machineNaming.template %w", err)
	}
	if recorded := s.controlPlane.Annotations[controlplanev1.NextMachineAnnotation]; recorded != "" && s.machine(recorded) == nil {
		return recorded, nil
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.NextMachineAnnotation: name}); err != nil {
		return "", fmt.Errorf("recording the name of the next Machine: %w", err)
	}

	return name, nil
}

// errTaken says that the recorded name belongs to somebody else's object.
var errTaken = errors.New("an object of this name exists that does not belong to the control plane")

// ensureInfraMachine creates the infrastructure machine, unless a reconcile that was
// cut off has done so.
func (r *Reconciler) ensureInfraMachine(ctx context.Context, s *scope, from *unstructured.Unstructured, name string) (clusterv1.ContractVersionedObjectReference, error) {
	owner := nonControllerRef(s.controlPlane)
	desired, err := external.GenerateTemplate(&external.GenerateTemplateInput{
		Template: from,
		TemplateRef: &corev1.ObjectReference{
			APIVersion: from.GetAPIVersion(), Kind: from.GetKind(), Name: from.GetName(), Namespace: from.GetNamespace(),
		},
		Namespace:   s.controlPlane.Namespace,
		Name:        name,
		ClusterName: s.cluster.Name,
		OwnerRef:    &owner,
		Labels:      identityLabels(s),
	})
	if err != nil {
		return clusterv1.ContractVersionedObjectReference{}, fmt.Errorf("making the infrastructure machine %s: %w", name, err)
	}
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(desired.GroupVersionKind())
	if err := r.ensureObject(ctx, s, desired, found); err != nil {
		return clusterv1.ContractVersionedObjectReference{}, err
	}

	return clusterv1.ContractVersionedObjectReference{
		APIGroup: desired.GroupVersionKind().Group, Kind: desired.GetKind(), Name: name,
	}, nil
}

// heldMessage says, on a TalosConfig, why there is no configuration yet.
const heldMessage = "Waiting for the control plane to be healthy: members join etcd one at a time"

// ensureTalosConfig creates the TalosConfig, unless a reconcile that was cut off has
// done so.
func (r *Reconciler) ensureTalosConfig(ctx context.Context, s *scope, name string) error {
	config := &bootstrapv1.TalosConfig{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       s.controlPlane.Namespace,
			Name:            name,
			Labels:          identityLabels(s),
			OwnerReferences: []metav1.OwnerReference{nonControllerRef(s.controlPlane)},
		},
		Spec: *s.controlPlane.Spec.TalosConfigSpec.DeepCopy(),
	}
	if len(s.machines) > 0 {
		config.Annotations = map[string]string{bootstrapv1.HoldBootstrapDataAnnotation: heldMessage}
	}
	desired, err := toApply(config, bootstrapv1.GroupVersion.WithKind("TalosConfig"))
	if err != nil {
		return err
	}

	return r.ensureObject(ctx, s, desired, &bootstrapv1.TalosConfig{})
}

// ensureObject creates desired unless it exists. An object of that name that is
// not ours makes the recorded name useless: it is given up.
func (r *Reconciler) ensureObject(ctx context.Context, s *scope, desired *unstructured.Unstructured, found client.Object) error {
	err := r.liveGet(ctx, client.ObjectKeyFromObject(desired), found)
	switch {
	case apierrors.IsNotFound(err):
		return r.applier.apply(ctx, specManager, desired, nil)
	case err != nil:
		return fmt.Errorf("reading %s %s: %w", desired.GetKind(), desired.GetName(), err)
	}
	if isReferenced(found.GetOwnerReferences(), s.controlPlane) && found.GetDeletionTimestamp().IsZero() {
		return nil
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.NextMachineAnnotation: ""}); err != nil {
		return fmt.Errorf("giving up the name %s: %w", desired.GetName(), err)
	}

	return fmt.Errorf("creating %s %s: %w; another name is chosen", desired.GetKind(), desired.GetName(), errTaken)
}

func (r *Reconciler) liveGet(ctx context.Context, key client.ObjectKey, into client.Object) error {
	return r.APIReader.Get(ctx, key, into)
}

// identityLabels are the labels without which an object would not be known as
// part of the control plane. The user's labels come with syncMetadata.
func identityLabels(s *scope) map[string]string {
	labels := machineLabels(s)
	for name := range labels {
		switch name {
		case clusterv1.ClusterNameLabel, clusterv1.MachineControlPlaneLabel, clusterv1.MachineControlPlaneNameLabel:
		default:
			delete(labels, name)
		}
	}

	return labels
}

// nonControllerRef owns what a Machine will be the controller of.
func nonControllerRef(controlPlane *controlplanev1.TalosControlPlane) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: controlplanev1.GroupVersion.String(),
		Kind:       controlplanev1.TalosControlPlaneKind,
		Name:       controlPlane.Name,
		UID:        controlPlane.UID,
	}
}

func isReferenced(refs []metav1.OwnerReference, controlPlane *controlplanev1.TalosControlPlane) bool {
	for _, ref := range refs {
		if ref.Kind == controlplanev1.TalosControlPlaneKind && ref.UID == controlPlane.UID {
			return true
		}
	}

	return false
}

// trimTemplate is the kind that a template is for.
func trimTemplate(kind string) string {
	return strings.TrimSuffix(kind, clusterv1.TemplateSuffix)
}
