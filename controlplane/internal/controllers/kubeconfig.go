package controllers

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

func kubeconfigName(cluster string) string {
	return secret.Name(cluster, secret.Kubeconfig)
}

func server(cluster *clusterv1.Cluster) string {
	return "https://" + cluster.Spec.ControlPlaneEndpoint.String()
}

// ownerRef makes the control plane the controller of a Secret.
func ownerRef(controlPlane *controlplanev1.TalosControlPlane) metav1.OwnerReference {
	return *metav1.NewControllerRef(controlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
}

// syncKubeconfig keeps the Secret <cluster>-kubeconfig, once the Cluster
// has an endpoint. One that a user has brought is read, and left alone.
func (r *Reconciler) syncKubeconfig(ctx context.Context, s *scope) error {
	if !s.cluster.Spec.ControlPlaneEndpoint.IsValid() {
		return nil
	}
	content, err := r.syncClientConfig(ctx, s, clientConfigSecret{
		name: kubeconfigName(s.cluster.Name), key: secret.KubeconfigDataName, certificate: metrics.CertificateKubeconfig,
		isOurs: func(stored *corev1.Secret) bool { return isOurKubeconfig(s, stored) },
		bind:   func(stored *corev1.Secret) { bindKubeconfig(s, stored) },
		made: func(content []byte) *corev1.Secret {
			made := capikubeconfig.GenerateSecretWithOwner(client.ObjectKeyFromObject(s.cluster), content, ownerRef(s.controlPlane))
			bindKubeconfig(s, made)
			return made
		},
		ensure: func(stored []byte, renew bool) (secrets.ClientConfig, error) {
			return s.bundle.EnsureKubeconfig(s.cluster.Name, server(s.cluster), stored, r.Clock.Now(), renew)
		},
		expiry: secrets.KubeconfigExpiry,
	})
	s.kubeconfig = content

	return err
}

// isOurKubeconfig tells that a Secret is not one that a user has brought: the
// control plane controls it, or it says that we have made it and has lost its
// owner.
func isOurKubeconfig(s *scope, stored *corev1.Secret) bool {
	if stored.Type != clusterv1.ClusterSecretType {
		return false
	}
	if metav1.GetControllerOf(stored) == nil {
		return metav1.HasAnnotation(stored.ObjectMeta, bootstrapv1.GeneratedAnnotation)
	}

	return util.IsControlledBy(stored, s.controlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind).GroupKind())
}

// bindKubeconfig keeps the Secret with the control plane, also when that has
// another UID than before.
func bindKubeconfig(s *scope, stored *corev1.Secret) {
	stored.OwnerReferences = util.EnsureOwnerRef(stored.OwnerReferences, ownerRef(s.controlPlane))
	markOurs(s, stored)
}

// markOurs gives a Secret that we have made the metadata by which it is known.
func markOurs(s *scope, stored *corev1.Secret) {
	metav1.SetMetaDataAnnotation(&stored.ObjectMeta, bootstrapv1.GeneratedAnnotation, stored.Annotations[bootstrapv1.GeneratedAnnotation])
	metav1.SetMetaDataLabel(&stored.ObjectMeta, clusterv1.ClusterNameLabel, s.cluster.Name)
}
