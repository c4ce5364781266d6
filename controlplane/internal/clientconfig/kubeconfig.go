package clientconfig

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	capikubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
)

// KubeconfigName is the name of the Secret with the kubeconfig of a cluster.
func KubeconfigName(cluster string) string {
	return secret.Name(cluster, secret.Kubeconfig)
}

func server(cluster *clusterv1.Cluster) string {
	return "https://" + cluster.Spec.ControlPlaneEndpoint.String()
}

// ownerRef makes the control plane the controller of a Secret.
func ownerRef(controlPlane *controlplanev1.TalosControlPlane) metav1.OwnerReference {
	return *metav1.NewControllerRef(controlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
}

// keepKubeconfig keeps the Secret <cluster>-kubeconfig, once the Cluster
// has an endpoint. One that a user has brought is read, and left alone.
func (s *update) keepKubeconfig(ctx context.Context) error {
	if !s.Cluster.Spec.ControlPlaneEndpoint.IsValid() {
		return nil
	}
	content, err := s.keep(ctx, secretKind{
		name: KubeconfigName(s.Cluster.Name), key: secret.KubeconfigDataName, certificate: metrics.CertificateKubeconfig,
		isOurs: s.isOurKubeconfig,
		bind:   s.bindKubeconfig,
		made: func(content []byte) *corev1.Secret {
			made := capikubeconfig.GenerateSecretWithOwner(client.ObjectKeyFromObject(s.Cluster), content, ownerRef(s.ControlPlane))
			s.bindKubeconfig(made)
			return made
		},
		ensure: func(stored []byte, renew bool) (secrets.ClientConfig, error) {
			return s.Bundle.EnsureKubeconfig(s.Cluster.Name, server(s.Cluster), stored, s.Clock.Now(), renew)
		},
		expiry: secrets.KubeconfigExpiry,
	})
	s.kept.Kubeconfig = content

	return err
}

// isOurKubeconfig reports whether a Secret is not one that a user has brought: the
// control plane controls it, or it says that we have made it and has lost its owner.
func (s *update) isOurKubeconfig(stored *corev1.Secret) bool {
	if stored.Type != clusterv1.ClusterSecretType {
		return false
	}
	if metav1.GetControllerOf(stored) == nil {
		return metav1.HasAnnotation(stored.ObjectMeta, bootstrapv1.GeneratedAnnotation)
	}

	return util.IsControlledBy(stored, s.ControlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind).GroupKind())
}

// bindKubeconfig keeps the Secret with the control plane, also when that has
// another UID than before.
func (s *update) bindKubeconfig(stored *corev1.Secret) {
	stored.OwnerReferences = util.EnsureOwnerRef(stored.OwnerReferences, ownerRef(s.ControlPlane))
	s.markOurs(stored)
}
