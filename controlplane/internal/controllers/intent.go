package controllers

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// reconcileIntent finds out, when the Machine in the bootstrap intent is not there
// any more, whether nothing is left of it: then nothing was, or is left of what was,
// bootstrapped on it. Machines of other vendors do not tell.
func (r *Reconciler) reconcileIntent(ctx context.Context, s *scope) error {
	s.intentWiped = false // The facts may be gathered again, after another Machine was recorded.
	intent := s.intent()
	if intent == nil || intent.Initialized || intent.ProviderID == "" {
		return nil
	}
	if machine := s.machine(intent.Name); machine != nil && machine.Spec.ProviderID == intent.ProviderID {
		return nil
	}
	for _, proof := range []func(context.Context, *scope, string) (bool, error){r.hostWiped, r.podGone} {
		proven, err := proof(ctx, s, intent.ProviderID)
		if err != nil {
			return err
		}
		s.intentWiped = s.intentWiped || proven
	}

	return nil
}

// hostWiped tells that a host was proven wiped of a machine.
func (r *Reconciler) hostWiped(ctx context.Context, s *scope, providerID string) (bool, error) {
	hosts, err := r.listOurs(ctx, s, infrav1.TalosHostKind)
	if err != nil {
		return false, fmt.Errorf("looking for the host on which etcd was to be bootstrapped: %w", err)
	}
	wiped := false
	for _, item := range hosts {
		host := &infrav1.TalosHost{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, host); err != nil {
			return false, fmt.Errorf("reading TalosHost %s: %w", item.GetName(), err)
		}
		if host.Spec.Handover.ProviderID == providerID {
			return false, nil
		}
		wiped = wiped || slices.ContainsFunc(host.Spec.Wiped, func(wipe infrav1.HostWipe) bool { return wipe.ProviderID == providerID })
	}

	return wiped, nil
}

// podGone tells that nothing is left of a machine in a Pod: the infrastructure
// provider has recorded it, and its TalosMachine is gone.
func (r *Reconciler) podGone(ctx context.Context, s *scope, providerID string) (bool, error) {
	cluster, err := talosCluster(ctx, r.APIReader, s.cluster)
	if err != nil || cluster == nil {
		return false, err
	}
	if !slices.Contains(infrav1.GoneMachines(cluster.GetAnnotations()), providerID) {
		return false, nil
	}
	machines, err := r.listOurs(ctx, s, infrav1.TalosMachineKind)
	if err != nil {
		return false, fmt.Errorf("looking for the machine on which etcd was to be bootstrapped: %w", err)
	}

	return !slices.ContainsFunc(machines, func(machine unstructured.Unstructured) bool {
		id, _, err := unstructured.NestedString(machine.Object, "spec", "providerID")
		return err != nil || id == providerID
	}), nil
}

// listOurs reads all objects live that are of a kind of our infrastructure
// provider; there are none where that is not installed.
func (r *Reconciler) listOurs(ctx context.Context, s *scope, kind string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(infrav1.GroupVersion.WithKind(kind + "List"))
	err := r.APIReader.List(ctx, list, client.InNamespace(s.controlPlane.Namespace))
	if meta.IsNoMatchError(err) {
		return nil, nil
	}

	return list.Items, err
}
