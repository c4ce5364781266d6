package controllers

import (
	"context"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// reconcileOwnership keeps the Secrets of the cluster with it, so that a move to
// another management cluster takes them along: those that we made are owned by
// the Cluster, those that a user brought are labelled to be moved, and outlive
// it. The configs of control plane Machines do it.
func (r *Reconciler) reconcileOwnership(ctx context.Context, s *scope) error {
	if !s.controlPlane || s.bundle == nil {
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
		if err := r.patchSecret(ctx, stored, func(secret *corev1.Secret) { bind(s, secret) }); err != nil {
			return fmt.Errorf("keeping Secret %s with its cluster: %w", name, err)
		}
	}

	return nil
}

func bind(s *scope, secret *corev1.Secret) {
	switch {
	case metav1.HasAnnotation(secret.ObjectMeta, bootstrapv1.GeneratedAnnotation):
		secret.OwnerReferences = util.EnsureOwnerRef(secret.OwnerReferences, clusterOwner(s))
	case len(secret.OwnerReferences) == 0:
		metav1.SetMetaDataLabel(&secret.ObjectMeta, clusterctlv1.ClusterctlMoveLabel, "")
	}
}

// patchSecret writes what change makes of a Secret, if anything, unless somebody
// else has changed it in between.
func (r *Reconciler) patchSecret(ctx context.Context, secret *corev1.Secret, change func(*corev1.Secret)) error {
	before := secret.DeepCopy()
	change(secret)
	if reflect.DeepEqual(before, secret) {
		return nil
	}

	return r.Client.Patch(ctx, secret, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}
