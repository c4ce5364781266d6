package controllers

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/clusterrecord"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/clientconfig"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// isClusterSecret reports whether a Secret is one on which a control plane depends.
func isClusterSecret(cluster, name string) bool {
	return slices.Contains([]string{
		secrets.BundleName(cluster), secrets.CAName(cluster), secrets.TalosconfigName(cluster), clientconfig.KubeconfigName(cluster),
	}, name)
}

// secrets reads Secrets of clusters.
func (r *Reconciler) secrets() client.Reader {
	return secretcache.NewReader(r.SecretCachingClient, r.APIReader)
}

// gatherCertificates reads the key material of the cluster. The bootstrap
// provider creates it with the first control plane TalosConfig; none is created
// here, so that a cluster never gets a second set.
func (r *Reconciler) gatherCertificates(ctx context.Context, s *scope) error {
	s.certificates, s.bundle, s.invalidBundle, s.missingSecrets = plan.CertificatesMissing, nil, false, nil
	s.networkProblem = ""
	cluster := client.ObjectKeyFromObject(s.cluster)

	bundle, err := secrets.GetBundle(ctx, r.secrets(), cluster)
	switch {
	case errors.Is(err, secrets.ErrBundleMissing):
		s.missingSecrets = append(s.missingSecrets, secrets.BundleName(cluster.Name))
	case errors.Is(err, secrets.ErrBundleInvalid):
		s.invalidBundle = true
		return nil
	case err != nil:
		s.certificatesErr = err
		return err
	default:
		recorded := s.controlPlane.Annotations[controlplanev1.BundleDigestAnnotation]
		if recorded != "" && recorded != bundle.Digest() {
			s.certificates = plan.CertificatesChanged
			return nil
		}
		s.certificates = plan.CertificatesPresent
		s.bundle = bundle
	}

	ca := &corev1.Secret{}
	ca.Name = secrets.CAName(cluster.Name)
	err = r.secrets().Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ca.Name}, ca)
	switch {
	case apierrors.IsNotFound(err):
		s.missingSecrets = append(s.missingSecrets, ca.Name)
	case err != nil:
		s.certificatesErr = err
		return err
	default:
		compareRecord(s, clusterrecord.Of(ca))
	}

	return nil
}

// compareRecord compares with what the cluster began, once it has: before that the
// record may be that of another Cluster, which the Secret of a user outlived. What
// differs gives machines that are made now no configuration, or a useless one.
func compareRecord(s *scope, record clusterrecord.Record) {
	if s.intent() == nil && !s.initialized() {
		return
	}
	s.networkProblem = record.NetworkProblem(s.cluster)
	if s.bundle != nil && record.HasOtherEncryption(s.bundle) {
		s.certificates, s.bundle = plan.CertificatesChanged, nil
	}
}
