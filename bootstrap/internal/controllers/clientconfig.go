package controllers

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// reconcileClientConfig keeps the administrator's client configuration of the
// Talos API, and tells whether it is there. The configs of control plane
// Machines do it. A TalosControlPlane keeps that of its Cluster by itself, so
// that one hand writes it.
func (r *Reconciler) reconcileClientConfig(ctx context.Context, s *scope) error {
	if !s.controlPlane {
		return nil
	}
	if s.bundle == nil {
		s.clientConfig = condition.False(bootstrapv1.ClientConfigWaitingReason, "Waiting for the secrets of the cluster; see condition CertificatesAvailable")
		return nil
	}
	name := secrets.TalosconfigName(s.cluster.Name)
	stored, err := r.getSecret(ctx, s, name)
	switch {
	case err != nil:
		s.clientConfig = failed(bootstrapv1.ClientConfigErrorReason, "Secret "+name+" cannot be read", err)
		return err
	case hasTalosControlPlane(s.cluster) && stored == nil:
		s.clientConfig = condition.Falsef(bootstrapv1.ClientConfigWaitingReason, "Waiting for the control plane provider to make Secret %s", name)
		return nil
	case hasTalosControlPlane(s.cluster) || isUsers(stored):
		s.clientConfig = condition.True(bootstrapv1.ClientConfigAvailableReason, "")
		return nil
	}
	if err := r.writeClientConfig(ctx, s, stored); err != nil {
		s.clientConfig = failed(bootstrapv1.ClientConfigErrorReason, "Secret "+name+" cannot be written", err)
		return err
	}
	s.clientConfig = condition.True(bootstrapv1.ClientConfigAvailableReason, "")

	return nil
}

func hasTalosControlPlane(cluster *clusterv1.Cluster) bool {
	ref := cluster.Spec.ControlPlaneRef

	return ref.APIGroup == controlplanev1.GroupVersion.Group && ref.Kind == controlplanev1.TalosControlPlaneKind
}

// isUsers reports whether a Secret was brought by a user.
func isUsers(secret *corev1.Secret) bool {
	return secret != nil && !metav1.HasAnnotation(secret.ObjectMeta, bootstrapv1.GeneratedAnnotation) && len(secret.OwnerReferences) == 0
}

// writeClientConfig brings the Secret up to date; stored is nil when there is
// none.
func (r *Reconciler) writeClientConfig(ctx context.Context, s *scope, stored *corev1.Secret) error {
	machines, err := collections.GetFilteredMachinesForCluster(ctx, r.Client, s.cluster, collections.ControlPlaneMachines(s.cluster.Name))
	if err != nil {
		return fmt.Errorf("listing the control plane Machines: %w", err)
	}
	var content []byte
	if stored != nil {
		content = stored.Data[secrets.TalosconfigKey]
	}
	now := r.Clock.Now()
	desired, err := s.bundle.EnsureTalosconfig(s.cluster.Name, secrets.TalosEndpoints(s.cluster, machines.UnsortedList()), content, now, false)
	if err != nil {
		return err
	}
	if !desired.RenewAt.IsZero() {
		s.renewAfter = desired.RenewAt.Sub(now)
	}
	name := secrets.TalosconfigName(s.cluster.Name)
	switch {
	case bytes.Equal(content, desired.Content):
		return nil
	case stored == nil:
		made := &corev1.Secret{
			ObjectMeta: clusterSecretMeta(s, name),
			Type:       clusterv1.ClusterSecretType,
			Data:       map[string][]byte{secrets.TalosconfigKey: desired.Content},
		}
		if err := r.Client.Create(ctx, made); err != nil {
			return fmt.Errorf("creating Secret %s: %w", name, err)
		}
	default:
		if err := objects.Change(ctx, r.Client, stored, func(secret *corev1.Secret) {
			if secret.Data == nil {
				secret.Data = map[string][]byte{}
			}
			secret.Data[secrets.TalosconfigKey] = desired.Content
		}); err != nil {
			return fmt.Errorf("renewing Secret %s: %w", name, err)
		}
	}

	return nil
}
