package controllers

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// reconcileOwnership keeps the Secrets of the cluster with it, so that a move to
// another management cluster takes them along: those that we made are owned by
// the Cluster, those that a user brought are labelled to be moved, and outlive
// it. All get the label of the Cluster, without which they are not watched; also
// those that cannot be used, so that their change is seen. The configs of control
// plane Machines do it.
func (r *Reconciler) reconcileOwnership(ctx context.Context, s *scope) error {
	if !s.controlPlane {
		return nil
	}
	for _, name := range []string{secrets.BundleName(s.cluster.Name), secrets.CAName(s.cluster.Name), secrets.TalosconfigName(s.cluster.Name)} {
		stored, err := r.getSecret(ctx, s, name)
		if err != nil {
			return err
		}
		if stored == nil {
			continue
		}
		if err := objects.Change(ctx, r.Client, stored, func(secret *corev1.Secret) { bind(s, secret) }); err != nil {
			return fmt.Errorf("keeping Secret %s with its cluster: %w", name, err)
		}
	}

	return nil
}

func bind(s *scope, secret *corev1.Secret) {
	metav1.SetMetaDataLabel(&secret.ObjectMeta, clusterv1.ClusterNameLabel, s.cluster.Name)
	switch {
	case metav1.HasAnnotation(secret.ObjectMeta, bootstrapv1.GeneratedAnnotation):
		secret.OwnerReferences = util.EnsureOwnerRef(secret.OwnerReferences, clusterOwner(s))
	case !slices.ContainsFunc(secret.OwnerReferences, s.leadsToCluster):
		metav1.SetMetaDataLabel(&secret.ObjectMeta, clusterctlv1.ClusterctlMoveLabel, "")
	}
}

// leadsToCluster reports whether an owner is moved with the Cluster, and what it
// owns with it: the Cluster itself, and its control plane. What makes the Secrets of
// users, such as an ExternalSecret, stays behind.
func (s *scope) leadsToCluster(owner metav1.OwnerReference) bool {
	controlPlane := s.cluster.Spec.ControlPlaneRef
	isCluster := owner.Kind == clusterv1.ClusterKind && owner.Name == s.cluster.Name && groupOf(&owner) == clusterv1.GroupVersion.Group

	return isCluster || owner.Kind == controlPlane.Kind && owner.Name == controlPlane.Name && groupOf(&owner) == controlPlane.APIGroup
}
