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
// any more, whether its host was proven wiped: then nothing was, or is left of
// what was, bootstrapped on it. Hosts of other vendors do not tell.
func (r *Reconciler) reconcileIntent(ctx context.Context, s *scope) error {
	intent := s.intent()
	if intent == nil || intent.Initialized || intent.ProviderID == "" {
		return nil
	}
	if machine := s.machine(intent.Name); machine != nil && machine.Spec.ProviderID == intent.ProviderID {
		return nil
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(infrav1.GroupVersion.WithKind("TalosHostList"))
	if err := r.APIReader.List(ctx, list, client.InNamespace(s.controlPlane.Namespace)); err != nil {
		if meta.IsNoMatchError(err) {
			return nil
		}
		return fmt.Errorf("looking for the host on which etcd was to be bootstrapped: %w", err)
	}
	for _, item := range list.Items {
		host := &infrav1.TalosHost{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, host); err != nil {
			return fmt.Errorf("reading TalosHost %s: %w", item.GetName(), err)
		}
		if host.Spec.Handover.ProviderID == intent.ProviderID {
			s.intentWiped = false
			return nil
		}
		if slices.ContainsFunc(host.Spec.Wiped, func(wipe infrav1.HostWipe) bool { return wipe.ProviderID == intent.ProviderID }) {
			s.intentWiped = true
		}
	}

	return nil
}
