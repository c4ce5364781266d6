package clientconfig

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

// keepTalosconfig keeps the Secret <cluster>-talosconfig. One that a user
// has brought is left alone. It belongs to the Cluster, like the secrets bundle.
func (s *update) keepTalosconfig(ctx context.Context) error {
	_, err := s.keep(ctx, secretKind{
		name: secrets.TalosconfigName(s.Cluster.Name), key: secrets.TalosconfigKey, certificate: metrics.CertificateTalosconfig,
		isOurs: s.isOurTalosconfig,
		bind:   s.bindTalosconfig,
		made: func(content []byte) *corev1.Secret {
			made := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.Cluster.Namespace, Name: secrets.TalosconfigName(s.Cluster.Name)},
				Type:       clusterv1.ClusterSecretType,
				Data:       map[string][]byte{secrets.TalosconfigKey: content},
			}
			s.bindTalosconfig(made)
			return made
		},
		ensure: func(stored []byte, renew bool) (secrets.ClientConfig, error) {
			return s.Bundle.EnsureTalosconfig(s.Cluster.Name, s.talosEndpoints(stored), stored, s.Clock.Now(), renew)
		},
		expiry: secrets.TalosconfigExpiry,
	})

	return err
}

// talosEndpoints are the endpoints that the talosconfig is to name. While there
// are Machines of somebody else, which are not looked at, the stored ones stay.
func (s *update) talosEndpoints(stored []byte) []string {
	if s.HasForeign {
		if _, present, err := secrets.ParseTalosconfig(stored); err == nil {
			return present
		}
	}

	return secrets.TalosEndpoints(s.Cluster, s.Machines)
}

func (s *update) isOurTalosconfig(stored *corev1.Secret) bool {
	return metav1.HasAnnotation(stored.ObjectMeta, bootstrapv1.GeneratedAnnotation) ||
		slices.ContainsFunc(stored.OwnerReferences, func(owner metav1.OwnerReference) bool {
			return owner.Kind == clusterv1.ClusterKind && owner.Name == s.Cluster.Name
		})
}

// bindTalosconfig keeps the Secret with the Cluster, so that a move takes it
// along.
func (s *update) bindTalosconfig(stored *corev1.Secret) {
	s.markOurs(stored)
	stored.OwnerReferences = util.EnsureOwnerRef(stored.OwnerReferences, metav1.OwnerReference{
		APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: s.Cluster.Name, UID: s.Cluster.UID,
	})
}
