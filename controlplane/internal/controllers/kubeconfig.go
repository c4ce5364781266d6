package controllers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/certs"
	capikubeconfig "sigs.k8s.io/cluster-api/util/kubeconfig"
	"sigs.k8s.io/cluster-api/util/secret"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

func kubeconfigName(cluster string) string {
	return secret.Name(cluster, secret.Kubeconfig)
}

// reconcileKubeconfig keeps the Secret <cluster>-kubeconfig: made from
// <cluster>-ca once that is there, made anew when the endpoint changes or the
// certificate is past half of its life. A Secret that a user brought is read,
// and left alone.
func (r *Reconciler) reconcileKubeconfig(ctx context.Context, s *scope) error {
	if !s.cluster.Spec.ControlPlaneEndpoint.IsValid() {
		return nil
	}
	key := client.ObjectKey{Namespace: s.cluster.Namespace, Name: kubeconfigName(s.cluster.Name)}
	current := &corev1.Secret{}
	err := r.secrets().Get(ctx, key, current)
	switch {
	case apierrors.IsNotFound(err):
		return r.createKubeconfig(ctx, s)
	case err != nil:
		return fmt.Errorf("reading Secret %s: %w", key.Name, err)
	}

	return r.updateKubeconfig(ctx, s, current)
}

// kubeconfigKeyAlgorithm is the algorithm of client keys, as Talos' own are.
const kubeconfigKeyAlgorithm = "ECDSA-P256"

// ownerRef makes the control plane the controller of a Secret.
func ownerRef(controlPlane *controlplanev1.TalosControlPlane) metav1.OwnerReference {
	return *metav1.NewControllerRef(controlPlane, controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
}

func (r *Reconciler) createKubeconfig(ctx context.Context, s *scope) error {
	if s.bundle == nil {
		return nil
	}
	data, err := r.generateKubeconfig(ctx, s)
	if err != nil || data == nil {
		return err
	}
	created := capikubeconfig.GenerateSecretWithOwner(client.ObjectKeyFromObject(s.cluster), data, ownerRef(s.controlPlane))
	if err := r.Client.Create(ctx, created); err != nil {
		return fmt.Errorf("creating Secret %s: %w", created.Name, err)
	}
	s.kubeconfig = data

	return nil
}

func (r *Reconciler) updateKubeconfig(ctx context.Context, s *scope, current *corev1.Secret) error {
	s.kubeconfig = current.Data[secret.KubeconfigDataName]
	if current.Type != clusterv1.ClusterSecretType {
		return nil // Brought by a user.
	}
	updated := current.DeepCopy()
	if metav1.GetControllerOf(updated) != nil && !metav1.IsControlledBy(updated, s.controlPlane) {
		return nil
	}
	updated.OwnerReferences = util.EnsureOwnerRef(updated.OwnerReferences, ownerRef(s.controlPlane))
	if s.bundle != nil && r.isKubeconfigStale(s, updated.Data[secret.KubeconfigDataName]) {
		data, err := r.generateKubeconfig(ctx, s)
		if err != nil {
			return err
		}
		if data != nil {
			ctrl.LoggerFrom(ctx).Info("Renewing the kubeconfig", "Secret", updated.Name)
			updated.Data = map[string][]byte{secret.KubeconfigDataName: data}
			s.kubeconfig = data
		}
	}
	if err := patchIfChanged(ctx, r.Client, current, updated); err != nil {
		return fmt.Errorf("updating Secret %s: %w", current.Name, err)
	}

	return nil
}

// generateKubeconfig makes a kubeconfig for the endpoint of the Cluster; nil
// while <cluster>-ca is missing.
func (r *Reconciler) generateKubeconfig(ctx context.Context, s *scope) ([]byte, error) {
	name := secrets.CAName(s.cluster.Name)
	ca := &corev1.Secret{}
	err := r.secrets().Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, ca)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	cert, err := certs.DecodeCertPEM(ca.Data[secret.TLSCrtDataName])
	if err != nil || cert == nil {
		return nil, fmt.Errorf("reading the certificate in Secret %s: %w", name, errInvalidPEM)
	}
	key, err := certs.DecodePrivateKeyPEM(ca.Data[secret.TLSKeyDataName])
	if err != nil || key == nil {
		return nil, fmt.Errorf("reading the key in Secret %s: %w", name, errInvalidPEM)
	}
	config, err := capikubeconfig.New(s.cluster.Name, server(s.cluster), cert, key, capikubeconfig.KeyEncryptionAlgorithm(kubeconfigKeyAlgorithm))
	if err != nil {
		return nil, fmt.Errorf("making the kubeconfig: %w", err)
	}
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig: %w", err)
	}

	return data, nil
}

// errInvalidPEM replaces errors of parsers, which may quote what they read.
var errInvalidPEM = errors.New("it is not valid PEM")

func server(cluster *clusterv1.Cluster) string {
	return "https://" + cluster.Spec.ControlPlaneEndpoint.String()
}

// isKubeconfigStale tells that a kubeconfig of ours cannot be read, is for
// another endpoint, or has a certificate past half of its life. The beginning of
// its life is no help: client certificates begin with their CA.
func (r *Reconciler) isKubeconfigStale(s *scope, data []byte) bool {
	config, err := clientcmd.Load(data)
	if err != nil || len(config.Clusters) == 0 || len(config.AuthInfos) == 0 {
		return true
	}
	for _, cluster := range config.Clusters {
		if cluster.Server != server(s.cluster) {
			return true
		}
	}
	for _, user := range config.AuthInfos {
		cert, err := certs.DecodeCertPEM(user.ClientCertificateData)
		if err != nil || cert == nil || cert.NotAfter.Sub(r.Clock.Now()) < certs.ClientCertificateRenewalDuration {
			return true
		}
	}

	return false
}
