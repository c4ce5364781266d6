package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/clusterrecord"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secretcache"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

const (
	// missingInterval is how often a bundle that is missed is looked for.
	missingInterval = time.Minute
	// missingJitter is by what part of it that is put off at most.
	missingJitter = 0.25
)

// errConflictingCA says that the user made two Secrets that do not fit.
var errConflictingCA = errors.New("it holds another Kubernetes CA than the Secret with the CA; delete the one that is wrong")

// reconcileCertificates finds the secrets bundle of the cluster, and makes it
// where it may: once, and never again (design D6).
func (r *Reconciler) reconcileCertificates(ctx context.Context, s *scope) error {
	err := r.findCertificates(ctx, s)
	if err != nil && s.certificates.Status == "" {
		s.certificates = failed(bootstrapv1.CertificatesErrorReason, "The Secrets with the keys of the cluster cannot be read or made", err)
	}

	return err
}

// failed is what a condition says about a Secret that cannot be had: False, when the API
// server does not take it, and else Unknown, as a call that fails tells nothing about it.
// None, when somebody else was faster: the next reconcile sees what is there then.
func failed(reason, what string, err error) condition.Finding {
	message := objects.Explain(what+"; it is tried again", err)
	switch {
	case objects.IsLostRace(err):
		return condition.Finding{}
	case objects.IsNotTaken(err):
		return condition.False(reason, message)
	default:
		return condition.Unknown(reason, message)
	}
}

// findCertificates takes the bundle that is there, or makes one.
func (r *Reconciler) findCertificates(ctx context.Context, s *scope) error {
	if !ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false) {
		s.certificates = condition.False(bootstrapv1.CertificatesWaitingReason, "Waiting for the infrastructure of the Cluster to be provisioned")
		return nil
	}
	ca, err := r.getSecret(ctx, s, secrets.CAName(s.cluster.Name))
	if err != nil {
		return err
	}
	bundle, err := secrets.GetBundle(ctx, r.secrets(), client.ObjectKeyFromObject(s.cluster))
	if errors.Is(err, secrets.ErrBundleMissing) {
		if bundle, err = r.createBundle(ctx, s, ca); bundle == nil {
			return err
		}
	}
	switch {
	case errors.Is(err, secrets.ErrBundleInvalid):
		s.certificates = condition.Falsef(bootstrapv1.BundleInvalidReason, "Secret %s holds no Talos secrets bundle; restore its content, or delete it before the cluster is initialized",
			secrets.BundleName(s.cluster.Name))
		return nil
	case err != nil:
		return err
	}

	return r.acceptBundle(ctx, s, ca, bundle)
}

// acceptBundle takes the bundle, unless the cluster has begun with another one,
// and records with what it begins.
func (r *Reconciler) acceptBundle(ctx context.Context, s *scope, ca *corev1.Secret, bundle *secrets.Bundle) error {
	stored, present := clusterrecord.Of(ca), clusterrecord.For(s.cluster, bundle)
	if stored != present {
		kept, changed, err := r.compare(ctx, s, ca, bundle, stored, present)
		switch {
		case err != nil:
			return err
		case changed != "":
			s.certificates = condition.Falsef(bootstrapv1.BundleChangedReason, "Secret %s is not the one that the cluster began with: %s; restore its former content",
				secrets.BundleName(s.cluster.Name), changed)
			return nil
		}
		if err := r.recordBundle(ctx, s, ca, bundle, kept); err != nil {
			return err
		}
		s.networkProblem = kept.NetworkProblem(s.cluster)
	}
	if s.certificates.Status == "" {
		s.bundle = bundle
		s.certificates = condition.True(bootstrapv1.CertificatesAvailableReason, "")
	}

	return nil
}

// compare judges a difference to what is recorded. Where no record tells whether the
// bundle is the same, what was rendered does.
func (r *Reconciler) compare(
	ctx context.Context, s *scope, ca *corev1.Secret, bundle *secrets.Bundle, stored, present clusterrecord.Record,
) (kept clusterrecord.Record, changed string, err error) {
	begun, err := r.beginning(ctx, s, ca)
	if err != nil {
		return stored, "", err
	}
	kept, changed = judge(stored, present, begun, metav1.HasAnnotation(s.cluster.ObjectMeta, bootstrapv1.AllowNetworkChangeAnnotation))
	if changed != "" || stored.Bundle != "" || begun.digest != "" {
		return kept, changed, nil
	}
	its, err := r.isOfTheCluster(ctx, s, bundle)
	if err == nil && !its {
		changed = otherKeys
	}

	return kept, changed, err
}

// createBundle makes the bundle of a new cluster. It returns nil, and says in
// the condition why, when it must not.
func (r *Reconciler) createBundle(ctx context.Context, s *scope, ca *corev1.Secret) (*secrets.Bundle, error) {
	name := secrets.BundleName(s.cluster.Name)
	begun, err := r.beginning(ctx, s, ca)
	if err != nil {
		return nil, err
	}
	if begun.shown != "" {
		s.certificates = condition.Falsef(bootstrapv1.BundleMissingReason, "Secret %s is missing, and the cluster has begun with it, as %s: no other is ever made. %s",
			name, begun.shown, begun.wayOut)
		// One that is restored without the label of the Cluster is not watched.
		s.renewAfter = wait.Jitter(missingInterval, missingJitter)
		return nil, nil
	}
	if !s.controlPlane && s.cluster.Spec.ControlPlaneRef.IsDefined() {
		s.certificates = condition.Falsef(bootstrapv1.CertificatesWaitingReason, "Waiting for Secret %s, which is made with the first control plane Machine", name)
		return nil, nil
	}
	bundle, err := r.newBundle(s, ca)
	if err != nil {
		s.certificates = condition.Falsef(bootstrapv1.BundleInvalidReason, "No secrets bundle can be made: %v", err)
		return nil, nil //nolint:nilerr // Only the user can mend it; the Secret is labelled, and so watched.
	}
	made := &corev1.Secret{
		ObjectMeta: clusterSecretMeta(s, name),
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{secrets.BundleKey: bundle.YAML()},
	}
	if err := r.Client.Create(ctx, made); err != nil {
		if apierrors.IsAlreadyExists(err) {
			// Another config of the cluster was faster: its bundle is the one.
			return secrets.GetBundle(ctx, r.APIReader, client.ObjectKeyFromObject(s.cluster))
		}
		return nil, fmt.Errorf("creating Secret %s: %w", name, err)
	}
	r.Recorder.Eventf(s.config, s.cluster, corev1.EventTypeNormal, "BundleCreated", "Create", "Made the secrets of the cluster: Secret %s", name)

	return bundle, nil
}

// newBundle makes key material: from a user's complete configuration with its patches,
// else anew, with the CA that the user made beforehand.
func (r *Reconciler) newBundle(s *scope, ca *corev1.Secret) (*secrets.Bundle, error) {
	switch {
	case s.config.Spec.GenerateType != bootstrapv1.GenerateTypeNone:
	case !s.controlPlane:
		// It has none: what is missing is said without its patches.
		return secrets.BundleOf([]byte(s.config.Spec.Data))
	default:
		rendered, err := render(s)
		if err != nil {
			return nil, err
		}
		return secrets.BundleOf(rendered)
	}
	var users map[string][]byte
	if ca != nil {
		users = ca.Data
	}

	return secrets.NewBundle(r.Clock.Now(), s.config.Spec.TalosVersion, users)
}

// isOfTheCluster compares a bundle with a machine configuration that was
// rendered before. It is true where there is none.
func (r *Reconciler) isOfTheCluster(ctx context.Context, s *scope, bundle *secrets.Bundle) (bool, error) {
	rendered, err := r.renderedConfigs(ctx, s)
	if err != nil {
		return false, err
	}
	for _, config := range rendered {
		stored := &corev1.Secret{}
		// Live: the cache does not keep the content of these Secrets.
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: config}, stored)
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("reading Secret %s: %w", config, err)
		}
		if made, err := bundle.Made(stored.Data[dataKey]); err == nil {
			return made, nil
		}
	}

	return true, nil
}

// recordBundle makes the Secret with the Kubernetes CA, which other tools and
// Cluster API read, and records there with what the cluster began.
func (r *Reconciler) recordBundle(ctx context.Context, s *scope, ca *corev1.Secret, bundle *secrets.Bundle, record clusterrecord.Record) error {
	if ca == nil {
		made := &corev1.Secret{
			ObjectMeta: clusterSecretMeta(s, secrets.CAName(s.cluster.Name)),
			Type:       clusterv1.ClusterSecretType,
			Data:       bundle.CASecretData(),
		}
		record.WriteTo(&made.ObjectMeta)
		if err := r.Client.Create(ctx, made); err != nil {
			return fmt.Errorf("creating Secret %s: %w", made.Name, err)
		}
		return nil
	}
	stored := clusterrecord.Of(ca)
	if stored == record || stored.Bundle == record.Bundle && !s.controlPlane && s.cluster.Spec.ControlPlaneRef.IsDefined() {
		return nil // The control plane completes what an earlier release recorded: one hand, not that of each worker.
	}
	certificate, _ := bundle.KubernetesCA()
	if stored.Bundle != record.Bundle && string(ca.Data[secret.TLSCrtDataName]) != string(certificate) {
		s.certificates = condition.Falsef(bootstrapv1.BundleInvalidReason, "Secret %s: %v", secrets.BundleName(s.cluster.Name), errConflictingCA)
		return nil
	}
	if err := objects.Change(ctx, r.Client, ca, func(ca *corev1.Secret) {
		record.WriteTo(&ca.ObjectMeta)
		metav1.SetMetaDataLabel(&ca.ObjectMeta, clusterv1.ClusterNameLabel, s.cluster.Name)
	}); err != nil {
		return fmt.Errorf("recording the secrets bundle on Secret %s: %w", ca.Name, err)
	}

	return nil
}

// getSecret reads a Secret of the cluster; nil when there is none.
func (r *Reconciler) getSecret(ctx context.Context, s *scope, name string) (*corev1.Secret, error) {
	found := &corev1.Secret{}
	if err := r.secrets().Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: name}, found); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	}

	return found, nil
}

func (r *Reconciler) secrets() client.Reader {
	return secretcache.NewReader(r.SecretCachingClient, r.APIReader)
}
