package controllers

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
)

// syncTalosconfig keeps the Secret <cluster>-talosconfig. One that a user
// has brought is left alone. It belongs to the Cluster, like the secrets bundle.
func (r *Reconciler) syncTalosconfig(ctx context.Context, s *scope) error {
	_, err := r.syncClientConfig(ctx, s, clientConfigSecret{
		name: secrets.TalosconfigName(s.cluster.Name), key: secrets.TalosconfigKey, certificate: metrics.CertificateTalosconfig,
		isOurs: func(stored *corev1.Secret) bool { return isOurTalosconfig(s, stored) },
		bind:   func(stored *corev1.Secret) { bindTalosconfig(s, stored) },
		made: func(content []byte) *corev1.Secret {
			made := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.cluster.Namespace, Name: secrets.TalosconfigName(s.cluster.Name)},
				Type:       clusterv1.ClusterSecretType,
				Data:       map[string][]byte{secrets.TalosconfigKey: content},
			}
			bindTalosconfig(s, made)
			return made
		},
		ensure: func(stored []byte, renew bool) (secrets.ClientConfig, error) {
			return s.bundle.EnsureTalosconfig(s.cluster.Name, talosEndpoints(s, stored), stored, r.Clock.Now(), renew)
		},
		expiry: secrets.TalosconfigExpiry,
	})

	return err
}

// talosEndpoints are the endpoints that the talosconfig is to name. While there
// are Machines of somebody else, which are not looked at, the stored ones stay.
func talosEndpoints(s *scope, stored []byte) []string {
	if s.foreign {
		if _, present, err := secrets.ParseTalosconfig(stored); err == nil {
			return present
		}
	}

	return secrets.TalosEndpoints(s.cluster, s.machines)
}

func isOurTalosconfig(s *scope, stored *corev1.Secret) bool {
	return metav1.HasAnnotation(stored.ObjectMeta, bootstrapv1.GeneratedAnnotation) ||
		slices.ContainsFunc(stored.OwnerReferences, func(owner metav1.OwnerReference) bool {
			return owner.Kind == clusterv1.ClusterKind && owner.Name == s.cluster.Name
		})
}

// bindTalosconfig keeps the Secret with the Cluster, so that a move takes it
// along.
func bindTalosconfig(s *scope, stored *corev1.Secret) {
	markOurs(s, stored)
	stored.OwnerReferences = util.EnsureOwnerRef(stored.OwnerReferences, metav1.OwnerReference{
		APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: s.cluster.Name, UID: s.cluster.UID,
	})
}
