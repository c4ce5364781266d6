package controllers

import (
	"context"
	"errors"
	"fmt"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/clientconfig"
)

// syncClientConfigs keeps the kubeconfig and the talosconfig of the cluster, and uses up a
// person's wish for new certificates. What is left of it stays in the annotation.
func (r *Reconciler) syncClientConfigs(ctx context.Context, s *scope) error {
	keeper := clientconfig.Keeper{
		Client: r.Client, Secrets: r.secrets(), Live: r.APIReader, Clock: r.Clock, Recorder: r.Recorder, Metrics: r.Metrics,
	}
	kept, err := keeper.Sync(ctx, clientconfig.Input{
		Cluster: s.cluster, ControlPlane: s.controlPlane, Machines: s.machines, HasForeign: len(s.foreign) > 0, Bundle: s.bundle,
	})
	s.kubeconfig, s.expiries, s.notRenewed = kept.Kubeconfig, kept.Expiries, kept.Failures
	if !kept.Renewed {
		return err
	}
	if wishErr := r.annotate(ctx, s, map[string]string{controlplanev1.RenewCredentialsAnnotation: kept.Left}); wishErr != nil {
		err = errors.Join(err, fmt.Errorf("writing what is left of the annotation that asks for new client certificates: %w", wishErr))
	}

	return err
}
