package controllers

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// clientConfigSecret is a Secret with a client configuration of the cluster.
type clientConfigSecret struct {
	// name is that of the Secret, key the key of the content in it.
	name, key string
	// certificate names its certificate in metrics and messages.
	certificate string
	// isOurs tells the Secret from one that a user has brought.
	isOurs func(stored *corev1.Secret) bool
	// bind keeps the metadata of a Secret of ours.
	bind func(stored *corev1.Secret)
	// made is a new Secret.
	made func(content []byte) *corev1.Secret
	// ensure is what the Secret is to hold.
	ensure func(stored []byte, renew bool) (secrets.ClientConfig, error)
	// expiry is when the certificate in a content expires.
	expiry func(content []byte) (time.Time, error)
}

// syncClientConfigs keeps the kubeconfig and the talosconfig of the
// cluster: they are written when they are missing, due, asked for, or name
// another endpoint, and else not.
func (r *Reconciler) syncClientConfigs(ctx context.Context, s *scope) error {
	if err := r.noteCAs(s); err != nil {
		return err
	}
	if err := r.confirmRenewal(ctx, s); err != nil {
		return err
	}
	if err := r.syncKubeconfig(ctx, s); err != nil {
		return err
	}
	if err := r.syncTalosconfig(ctx, s); err != nil {
		return err
	}
	r.showExpiries(s)

	return r.finishRenewal(ctx, s)
}

// syncClientConfig keeps one Secret, and tells what it holds.
func (r *Reconciler) syncClientConfig(ctx context.Context, s *scope, c clientConfigSecret) ([]byte, error) {
	stored := &corev1.Secret{}
	err := r.secrets().Get(ctx, client.ObjectKey{Namespace: s.cluster.Namespace, Name: c.name}, stored)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", c.name, err)
	}
	exists := err == nil
	content := stored.Data[c.key]
	switch {
	case exists && !c.isOurs(stored):
		s.noteClientConfig(c, content, true)
		if s.renew {
			r.event(s, warning, "SecretLeftAlone", "RenewCredentials", "Secret %s was brought by a user, and is not renewed", c.name)
		}
		return content, nil
	case s.bundle == nil:
		s.noteClientConfig(c, content, false)
		return content, nil
	}

	desired, err := c.ensure(content, s.renew)
	if err != nil {
		return nil, fmt.Errorf("making the content of Secret %s: %w", c.name, err)
	}
	if !exists {
		err = r.Client.Create(ctx, c.made(desired.Content))
	} else {
		err = r.updateClientConfig(ctx, c, stored, desired.Content)
	}
	switch {
	case err == nil:
	case exists && objects.IsRefused(err):
		// The control plane needs care all the same, and what is there may be
		// of use for half of a life. A person's wish has had its answer.
		ctrl.LoggerFrom(ctx).Error(err, "Failed to update a client configuration", "Secret", c.name)
		if s.renew {
			r.event(s, warning, "RenewalFailed", "RenewCredentials", "Secret %s cannot be written, see the log of the manager", c.name)
		}
		s.noteClientConfig(c, content, false)
		return content, nil
	default:
		return nil, fmt.Errorf("writing Secret %s: %w", c.name, err)
	}
	if exists && desired.Renewed {
		ctrl.LoggerFrom(ctx).Info("Renewed a client certificate", "Secret", c.name)
		r.event(s, normal, "CredentialsRenewed", "RenewCredentials", "Renewed the client certificate in Secret %s", c.name)
		r.Metrics.CountRenewal(s.shown(), c.certificate)
	}
	s.noteClientConfig(c, desired.Content, false)

	return desired.Content, nil
}

func (r *Reconciler) updateClientConfig(ctx context.Context, c clientConfigSecret, stored *corev1.Secret, content []byte) error {
	updated := stored.DeepCopy()
	c.bind(updated)
	if !bytes.Equal(updated.Data[c.key], content) {
		if updated.Data == nil {
			updated.Data = map[string][]byte{}
		}
		updated.Data[c.key] = content
	}

	return objects.Patch(ctx, r.Client, stored, updated)
}

// confirmRenewal finds out whether a person wants new certificates. It looks
// live, because a cache that lags behind must not have them made twice.
func (r *Reconciler) confirmRenewal(ctx context.Context, s *scope) error {
	s.renew = false
	if s.bundle == nil || !metav1.HasAnnotation(s.controlPlane.ObjectMeta, controlplanev1.RenewCredentialsAnnotation) {
		return nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
	if err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(s.controlPlane), live); err != nil {
		return fmt.Errorf("reading the TalosControlPlane: %w", err)
	}
	s.renew = metav1.HasAnnotation(live.ObjectMeta, controlplanev1.RenewCredentialsAnnotation)

	return nil
}

// finishRenewal uses the person's wish up. If the manager dies before that, the
// certificates are made anew once more, which does no harm.
func (r *Reconciler) finishRenewal(ctx context.Context, s *scope) error {
	if !s.renew {
		return nil
	}
	if err := r.annotate(ctx, s, map[string]string{controlplanev1.RenewCredentialsAnnotation: ""}); err != nil {
		return fmt.Errorf("removing the annotation that asks for new client certificates: %w", err)
	}

	return nil
}
