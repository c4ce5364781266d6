package controllers

import (
	"context"
	"fmt"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/clientconfig"
)

// syncClientConfigs keeps the kubeconfig and the talosconfig of the cluster, and uses up a
// person's wish for new certificates.
func (r *Reconciler) syncClientConfigs(ctx context.Context, s *scope) error {
	keeper := clientconfig.Keeper{
		Client: r.Client, Secrets: r.secrets(), Live: r.APIReader, Clock: r.Clock, Recorder: r.Recorder, Metrics: r.Metrics,
	}
	kept, err := keeper.Sync(ctx, clientconfig.Input{
		Cluster: s.cluster, ControlPlane: s.controlPlane, Machines: s.machines, HasForeign: len(s.foreign) > 0, Bundle: s.bundle,
	})
	s.kubeconfig, s.expiries = kept.Kubeconfig, kept.Expiries
	if err != nil || !kept.Renewed {
		return err
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.RenewCredentialsAnnotation: ""}); err != nil {
		return fmt.Errorf("removing the annotation that asks for new client certificates: %w", err)
	}

	return nil
}
