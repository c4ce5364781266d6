package controllers

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// isAbandoned reports whether our pre-terminate hook goes from a Machine whatever etcd says:
// with the whole Cluster goes etcd, and a person may say so. Else the decision takes it
// away, and it fails closed.
func isAbandoned(s *scope, machine *clusterv1.Machine) bool {
	return metav1.HasAnnotation(machine.ObjectMeta, controlplanev1.EtcdPreTerminateHookAnnotation) && !machine.DeletionTimestamp.IsZero() &&
		(s.deleting() || isOverridden(machine))
}

func isOverridden(machine *clusterv1.Machine) bool {
	return metav1.HasAnnotation(machine.ObjectMeta, controlplanev1.EtcdPreTerminateHookOverrideAnnotation)
}

// abandoned are the Machines whose hook goes whatever etcd says.
func abandoned(s *scope) []string {
	var names []string
	for _, machine := range s.machines {
		if isAbandoned(s, machine) {
			names = append(names, machine.Name)
		}
	}

	return names
}

// abandonMembers takes our hook from Machines that go without care for their etcd members.
func (r *Reconciler) abandonMembers(ctx context.Context, s *scope, names []string) error {
	var errs []error
	for _, name := range names {
		machine := s.machine(name)
		if err := r.dropHook(ctx, machine, false); err != nil {
			errs = append(errs, err)
			continue
		}
		if isOverridden(machine) {
			r.event(s, warning, "EtcdMemberAbandoned", "ReleaseHook", "Letting Machine %s go without care for its etcd member, as its annotation says", name)
		}
	}

	return errors.Join(errs...)
}

// dropHook takes our hook from a Machine, whatever else has changed on it. left says
// that etcd has no member of the Machine, which is written down.
func (r *Reconciler) dropHook(ctx context.Context, machine *clusterv1.Machine, left bool) error {
	if !metav1.HasAnnotation(machine.ObjectMeta, controlplanev1.EtcdPreTerminateHookAnnotation) {
		return nil
	}
	before := machine.DeepCopy()
	delete(machine.Annotations, controlplanev1.EtcdPreTerminateHookAnnotation)
	if left {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, controlplanev1.EtcdLeftAnnotation, "")
	}
	if err := r.Client.Patch(ctx, machine, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the hook from Machine %s: %w", machine.Name, err)
	}

	return nil
}

// releaseHook takes our hook from the Machine of the decision.
func (r *Reconciler) releaseHook(ctx context.Context, s *scope) error {
	machine := s.machine(s.decision.Machine)
	if err := r.dropHook(ctx, machine, s.decision.Left); err != nil {
		return err
	}
	ctrl.LoggerFrom(ctx).Info("Letting a control plane Machine go", "Machine", logMachine(s, machine.Name), "reason", s.decision.Message)
	r.event(s, normal, "HookReleased", "ReleaseHook", "%s: its infrastructure may go", s.decision.Message)

	return nil
}
