package controllers

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// deleteOne deletes the Machine of the decision.
func (r *Reconciler) deleteOne(ctx context.Context, s *scope) error {
	machine := s.machine(s.decision.Machine)
	if missing, err := r.lacksTemplate(ctx, s); err != nil || missing {
		return err
	}
	deleted, err := r.deleteIfUnchanged(ctx, s, machine)
	if err != nil || !deleted {
		return err
	}
	r.event(s, normal, "MachineDeleted", "DeleteMachine", "%s", s.decision.Message)

	return nil
}

// remediate deletes the Machine of the decision, after it has recorded why, so
// that its replacement is known as one. While no API server answers, nothing can
// be drained, and Cluster API does not try.
func (r *Reconciler) remediate(ctx context.Context, s *scope) error {
	machine := s.machine(s.decision.Machine)
	if missing, err := r.lacksTemplate(ctx, s); err != nil || missing {
		return err
	}
	record := plan.Verdicts(s.facts)[machine.Name].Record
	value, err := writeRecord(record)
	if err != nil {
		return err
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.RemediationInProgressAnnotation: value}); err != nil {
		return fmt.Errorf("recording the remediation of Machine %s: %w", machine.Name, err)
	}
	s.controlPlane.Status.LastRemediation = controlplanev1.LastRemediationStatus{
		Machine: record.Machine, Time: record.Timestamp, RetryCount: ptr.To(record.RetryCount),
	}
	if s.apiServer != health.APIServerReady {
		before := machine.DeepCopy()
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeNodeDrainingAnnotation, "")
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, clusterv1.ExcludeWaitForNodeVolumeDetachAnnotation, "")
		if err := objects.Patch(ctx, r.Client, before, machine); err != nil {
			return fmt.Errorf("having Machine %s deleted without a drain: %w", machine.Name, err)
		}
	}
	deleted, err := r.deleteIfUnchanged(ctx, s, machine)
	if err != nil || !deleted {
		return err
	}
	r.event(s, warning, "MachineRemediated", "RemediateMachine", "%s", s.decision.Message)

	return nil
}

// lacksTemplate reports whether a Machine is to be replaced that is well, and there is
// no template to make another one from. The cache may not have seen that it is gone.
func (r *Reconciler) lacksTemplate(ctx context.Context, s *scope) (bool, error) {
	if !s.decision.Replaces {
		return false, nil
	}
	_, err := r.template(ctx, r.APIReader, s)
	switch {
	case apierrors.IsNotFound(err):
		ctrl.LoggerFrom(ctx).Info("Not deleting a Machine that is well", "Machine", logMachine(s, s.decision.Machine), "reason", missingTemplate(s))
		return true, nil
	case err != nil:
		return false, fmt.Errorf("reading the infrastructure machine template: %w", err)
	default:
		return false, nil
	}
}

// deleteIfUnchanged deletes a Machine if it is as the decision has seen it, and
// the control plane has the same Machines still: the cache may not have seen that
// the last reconcile deleted another one.
func (r *Reconciler) deleteIfUnchanged(ctx context.Context, s *scope, machine *clusterv1.Machine) (bool, error) {
	live := &scope{cluster: s.cluster, controlPlane: s.controlPlane}
	if err := listMachines(ctx, r.APIReader, live); err != nil {
		return false, err
	}
	if len(live.foreign) > 0 || !slices.Equal(stayingNames(live), stayingNames(s)) || !slices.Equal(machineNames(live), machineNames(s)) {
		return false, nil // Its event starts another reconcile.
	}
	preconditions := client.Preconditions{UID: ptr.To(machine.UID), ResourceVersion: ptr.To(machine.ResourceVersion)}
	err := r.Client.Delete(ctx, machine, preconditions)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil // It has changed meanwhile, which starts another reconcile.
	case err != nil:
		return false, fmt.Errorf("deleting Machine %s: %w", machine.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleting control plane Machine", "Machine", logMachine(s, machine.Name), "reason", s.decision.Message)

	return true, nil
}

// stayingNames are the names of the Machines that are not being deleted.
func stayingNames(s *scope) []string {
	var names []string
	for _, machine := range s.machines {
		if machine.DeletionTimestamp.IsZero() {
			names = append(names, machine.Name)
		}
	}

	return names
}
