package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// reconcileDelete lets the control plane go: after the workers, all Machines at
// once. It reads live, because a cache that lags behind must not hide a Machine.
func (r *Reconciler) reconcileDelete(ctx context.Context, s *scope) (ctrl.Result, error) {
	if err := listMachines(ctx, r.APIReader, s); err != nil {
		return ctrl.Result{}, err
	}
	workers, err := r.workers(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	leftovers, err := r.leftovers(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}

	r.unfollow(s)
	s.leftovers = leftovers
	facts := plan.DeleteFacts{Workers: workers, Machines: len(s.machines), Leftovers: len(leftovers)}
	if isGone(s.cluster) {
		facts.ClusterGone = s.cluster.Name
	}
	s.deletion = plan.DecideDelete(facts)
	if s.effectErr = r.carryOut(ctx, s, s.deletion.Action); s.effectErr != nil {
		return ctrl.Result{}, s.effectErr
	}

	return requeue.After(r.Random, r.interval(s, s.deletion.Recheck)), nil
}

// removeFinalizer lets the control plane go.
func (r *Reconciler) removeFinalizer(_ context.Context, s *scope) error {
	controllerutil.RemoveFinalizer(s.controlPlane, controlplanev1.TalosControlPlaneFinalizer)
	r.certificates.Forget(s.clusterKey())

	return nil
}

// workers names the worker Machines and MachinePools of the Cluster.
func (r *Reconciler) workers(ctx context.Context, s *scope) ([]string, error) {
	var workers []string
	inCluster := []client.ListOption{client.InNamespace(s.cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: s.cluster.Name}}

	machines := &clusterv1.MachineList{}
	if err := r.Client.List(ctx, machines, inCluster...); err != nil {
		return nil, fmt.Errorf("listing the worker Machines: %w", err)
	}
	for i := range machines.Items {
		if machine := &machines.Items[i]; !util.IsControlPlaneMachine(machine) && !isControlled(s.controlPlane, machine) {
			workers = append(workers, "Machine "+machines.Items[i].Name)
		}
	}
	pools := &clusterv1.MachinePoolList{}
	if err := r.Client.List(ctx, pools, inCluster...); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("listing the MachinePools: %w", err)
	}
	for i := range pools.Items {
		workers = append(workers, "MachinePool "+pools.Items[i].Name)
	}
	slices.Sort(workers)

	return workers, nil
}

// deleteMachines drops our hook from all Machines and deletes them: with the
// whole control plane goes etcd, so no member needs care. What an aborted creation has
// left goes with them.
func (r *Reconciler) deleteMachines(ctx context.Context, s *scope) error {
	var errs []error
	for _, machine := range s.machines {
		if err := r.deleteMachine(ctx, s, machine); client.IgnoreNotFound(err) != nil {
			errs = append(errs, err)
		}
	}

	return errors.Join(append(errs, r.deleteLeftovers(ctx, s.leftovers))...)
}

func (r *Reconciler) deleteMachine(ctx context.Context, s *scope, machine *clusterv1.Machine) error {
	if err := r.dropHook(ctx, machine, false); err != nil {
		return err
	}
	if !machine.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := r.Client.Delete(ctx, machine); err != nil {
		return fmt.Errorf("deleting Machine %s: %w", machine.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleting control plane Machine", "Machine", logMachine(s, machine.Name))
	r.event(s, normal, "MachineDeleted", "DeleteMachine", "Deleting Machine %s with the control plane", machine.Name)

	return nil
}

// leftovers are the infrastructure machine and the TalosConfig that were created
// for a Machine that never came to be.
func (r *Reconciler) leftovers(ctx context.Context, s *scope) ([]client.Object, error) {
	name := s.controlPlane.Annotations[controlplanev1.NextMachineAnnotation]
	if name == "" || s.machine(name) != nil {
		return nil, nil
	}
	candidates := []client.Object{&bootstrapv1.TalosConfig{}}
	template, err := r.template(ctx, r.Client, s)
	switch {
	case err == nil:
		infraMachine := &unstructured.Unstructured{}
		gvk := template.GroupVersionKind()
		gvk.Kind = trimTemplate(gvk.Kind)
		infraMachine.SetGroupVersionKind(gvk)
		candidates = append(candidates, infraMachine)
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading the infrastructure machine template: %w", err)
	}

	var found []client.Object
	for _, candidate := range candidates {
		err := r.liveGet(ctx, client.ObjectKey{Namespace: s.controlPlane.Namespace, Name: name}, candidate)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("looking for leftovers of Machine %s: %w", name, err)
		case isReferenced(candidate.GetOwnerReferences(), s.controlPlane):
			found = append(found, candidate)
		}
	}

	return found, nil
}

func (r *Reconciler) deleteLeftovers(ctx context.Context, leftovers []client.Object) error {
	var errs []error
	for _, leftover := range leftovers {
		if !leftover.GetDeletionTimestamp().IsZero() {
			continue
		}
		if err := r.Client.Delete(ctx, leftover); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("deleting the leftover %s: %w", leftover.GetName(), err))
		}
	}

	return errors.Join(errs...)
}
