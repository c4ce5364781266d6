package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/labels/format"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// syncTemplateOwner makes the Cluster an owner of the infrastructure machine template, so
// that the template moves with it.
func (r *Reconciler) syncTemplateOwner(ctx context.Context, s *scope) error {
	if s.template == nil {
		return nil
	}
	updated := s.template.DeepCopy()
	updated.SetOwnerReferences(util.EnsureOwnerRef(updated.GetOwnerReferences(), metav1.OwnerReference{
		APIVersion: clusterv1.GroupVersion.String(),
		Kind:       "Cluster",
		Name:       s.cluster.Name,
		UID:        s.cluster.UID,
	}))
	if err := objects.Patch(ctx, r.Client, s.template, updated); err != nil {
		return fmt.Errorf("setting the owner of the infrastructure machine template: %w", err)
	}

	return nil
}

// syncMachines brings what may change in place to all Machines and to
// their infrastructure machines and TalosConfigs.
func (r *Reconciler) syncMachines(ctx context.Context, s *scope) error {
	for _, machine := range s.machines {
		sync := r.syncMachine
		if !machine.DeletionTimestamp.IsZero() {
			sync = r.syncDeletingMachine
		}
		if err := sync(ctx, s, machine); err != nil {
			return err
		}
	}

	return nil
}

// syncDeletingMachine lets a Machine that is being deleted have the present time limits.
func (r *Reconciler) syncDeletingMachine(ctx context.Context, s *scope, machine *clusterv1.Machine) error {
	before := machine.DeepCopy()
	deletion := desiredMachine(s, machine.Name).Spec.Deletion
	if deletion.NodeDeletionTimeoutSeconds == nil {
		// Cluster API has a default for this one, and would put it back.
		deletion.NodeDeletionTimeoutSeconds = machine.Spec.Deletion.NodeDeletionTimeoutSeconds
	}
	machine.Spec.Deletion = deletion
	// The Machine may be gone by now.
	if err := objects.Patch(ctx, r.Client, before, machine); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("updating Machine %s, which is being deleted: %w", machine.Name, err)
	}

	return nil
}

func (r *Reconciler) syncMachine(ctx context.Context, s *scope, machine *clusterv1.Machine) error {
	desired := desiredMachine(s, machine.Name)
	desired.Spec.Version = machine.Spec.Version
	desired.Spec.FailureDomain = machine.Spec.FailureDomain
	desired.Spec.Bootstrap.ConfigRef = machine.Spec.Bootstrap.ConfigRef
	desired.Spec.InfrastructureRef = machine.Spec.InfrastructureRef
	// What is recorded about it stays: what is not applied any more would be removed.
	for _, name := range []string{controlplanev1.EtcdMemberAnnotation, controlplanev1.RemediationForAnnotation} {
		if value := machine.Annotations[name]; value != "" {
			desired.Annotations[name] = value
		}
	}
	u, err := toApply(desired, clusterv1.GroupVersion.WithKind("Machine"))
	if err != nil {
		return err
	}
	if err := r.applier.apply(ctx, specManager, u, machine); err != nil {
		return err
	}

	parts := s.parts[machine.Name]
	if parts.infraMachine != nil {
		if err := r.syncMetadata(ctx, s, parts.infraMachine); err != nil {
			return fmt.Errorf("keeping the metadata of the infrastructure machine: %w", err)
		}
	}
	if parts.config != nil {
		if err := r.syncMetadata(ctx, s, parts.config); err != nil {
			return fmt.Errorf("keeping the metadata of the TalosConfig: %w", err)
		}
	}

	return nil
}

// recordMembers writes down on the Machines which etcd members are those of their nodes,
// as the nodes say now: they stay known when the nodes fall silent.
func (r *Reconciler) recordMembers(ctx context.Context, s *scope) error {
	for _, machine := range s.machines {
		record, err := memberRecord(machine, s.nodes[machine.Name])
		if err != nil {
			return err
		}
		if record == machine.Annotations[controlplanev1.EtcdMemberAnnotation] {
			continue
		}
		before := machine.DeepCopy()
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, controlplanev1.EtcdMemberAnnotation, record)
		// The Machine may be gone by now. Whatever else has changed on it, this is so.
		if err := r.Client.Patch(ctx, machine, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("recording the etcd member of Machine %s: %w", machine.Name, err)
		}
	}

	return nil
}

// syncMetadata brings labels and annotations to an object. One that is going is
// left alone.
func (r *Reconciler) syncMetadata(ctx context.Context, s *scope, object client.Object) error {
	if !object.GetDeletionTimestamp().IsZero() {
		return nil
	}
	desired := &unstructured.Unstructured{}
	desired.SetGroupVersionKind(object.GetObjectKind().GroupVersionKind())
	desired.SetNamespace(object.GetNamespace())
	desired.SetName(object.GetName())
	desired.SetLabels(machineLabels(s))
	desired.SetAnnotations(maps.Clone(s.controlPlane.Spec.MachineTemplate.ObjectMeta.Annotations))

	return r.applier.apply(ctx, metadataManager, desired, object)
}

// machineLabels are the labels of a Machine, its infrastructure machine and its
// TalosConfig.
func machineLabels(s *scope) map[string]string {
	labels := maps.Clone(s.controlPlane.Spec.MachineTemplate.ObjectMeta.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[clusterv1.ClusterNameLabel] = s.cluster.Name
	labels[clusterv1.MachineControlPlaneLabel] = ""
	labels[clusterv1.MachineControlPlaneNameLabel] = format.MustFormatValue(s.controlPlane.Name)

	return labels
}

// desiredMachine is a Machine of the control plane without its version and its
// references.
func desiredMachine(s *scope, name string) *clusterv1.Machine {
	template := s.controlPlane.Spec.MachineTemplate
	annotations := maps.Clone(template.ObjectMeta.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[controlplanev1.EtcdPreTerminateHookAnnotation] = ""

	return &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       s.controlPlane.Namespace,
			Name:            name,
			Labels:          machineLabels(s),
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{ownerRef(s.controlPlane)},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName:    s.cluster.Name,
			ReadinessGates: readinessGates(template.Spec.ReadinessGates),
			Deletion: clusterv1.MachineDeletionSpec{
				NodeDrainTimeoutSeconds:        template.Spec.Deletion.NodeDrainTimeoutSeconds,
				NodeVolumeDetachTimeoutSeconds: template.Spec.Deletion.NodeVolumeDetachTimeoutSeconds,
				NodeDeletionTimeoutSeconds:     template.Spec.Deletion.NodeDeletionTimeoutSeconds,
			},
			Taints: template.Spec.Taints,
		},
	}
}

// ownerRef makes the control plane the controller of a Machine.
func ownerRef(controlPlane *controlplanev1.TalosControlPlane) metav1.OwnerReference {
	return *metav1.NewControllerRef(controlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
}

// readinessGates are the provider's own gates and the user's.
func readinessGates(users []clusterv1.MachineReadinessGate) []clusterv1.MachineReadinessGate {
	var gates []clusterv1.MachineReadinessGate
	for _, conditionType := range health.MachineConditionTypes() {
		gates = append(gates, clusterv1.MachineReadinessGate{ConditionType: conditionType})
	}
	for _, gate := range users {
		if !slices.ContainsFunc(gates, func(known clusterv1.MachineReadinessGate) bool { return known.ConditionType == gate.ConditionType }) {
			gates = append(gates, gate)
		}
	}

	return gates
}
