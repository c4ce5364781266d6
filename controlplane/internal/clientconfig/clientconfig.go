// Package clientconfig keeps the kubeconfig and the talosconfig of a cluster in Secrets:
// written when they are missing, due, asked for, or name another endpoint, and else not.
package clientconfig

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
)

// Keeper keeps the Secrets. All fields are required.
type Keeper struct {
	// Client writes Secrets.
	Client client.Client
	// Secrets reads Secrets, with their data.
	Secrets client.Reader
	// Live reads whether a person wants new certificates.
	Live client.Reader
	// Clock tells the time.
	Clock clock.PassiveClock
	// Recorder records events of the control plane.
	Recorder events.EventRecorder
	// Metrics shows when certificates expire, and counts renewals.
	Metrics *metrics.Recorder
}

// Input is what the client configurations are made from.
type Input struct {
	Cluster      *clusterv1.Cluster
	ControlPlane *controlplanev1.TalosControlPlane
	// Machines are the control plane Machines.
	Machines []*clusterv1.Machine
	// HasForeign reports whether there are control plane Machines of somebody else, which
	// are not looked at: the endpoints in the talosconfig stay then.
	HasForeign bool
	// Bundle are the keys of the cluster; nil while they cannot be used. Nothing is
	// written then.
	Bundle *secrets.Bundle
}

// Kept is what the Secrets hold.
type Kept struct {
	// Kubeconfig is empty until there is one.
	Kubeconfig []byte
	// Expiries are when the certificates of the cluster expire; nil when the bundle cannot
	// be used.
	Expiries []Expiry
	// Renewed reports whether a person's wish for new certificates was answered, all of it or
	// in part. The annotation that says so is to be Left then: if the manager dies before
	// that, they are made anew once more, which does no harm.
	Renewed bool
	// Left names the Secret in which the certificate could not be made anew beside that; it
	// is empty when there is none.
	Left string
	// Failures say of which Secrets the API server did not take the new certificate that a
	// person wants, and why.
	Failures []string
}

// update is one reconcile of the Secrets.
type update struct {
	Keeper
	Input

	kept *Kept
	// wish is what the annotation says by which a person wants new certificates; nil when
	// nobody does.
	wish *string
	// answered says by the name of each Secret of which a new certificate is wanted whether
	// the wish is answered.
	answered map[string]bool
}

// secretKind is a Secret with a client configuration of the cluster.
type secretKind struct {
	// name is that of the Secret, key the key of the content in it.
	name, key string
	// certificate names its certificate in metrics and messages.
	certificate string
	// isOurs reports whether a Secret is not one that a user has brought.
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

// Sync keeps both Secrets. What it has found is told also beside an error.
func (k Keeper) Sync(ctx context.Context, in Input) (Kept, error) {
	kept := Kept{}
	s := &update{Keeper: k, Input: in, kept: &kept, answered: map[string]bool{}}
	if err := s.noteCAs(); err != nil {
		return kept, err
	}
	if err := s.confirmRenewal(ctx); err != nil {
		return kept, err
	}
	err := s.keepKubeconfig(ctx)
	if err == nil {
		err = s.keepTalosconfig(ctx)
	}
	s.noteWish()
	if err != nil {
		return kept, err
	}
	s.showExpiries()

	return kept, nil
}

// keep keeps one Secret, and returns what it holds.
func (s *update) keep(ctx context.Context, c secretKind) ([]byte, error) {
	renew := s.wants(c)
	if renew {
		s.answered[c.name] = false
	}
	stored := &corev1.Secret{}
	err := s.Secrets.Get(ctx, client.ObjectKey{Namespace: s.Cluster.Namespace, Name: c.name}, stored)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", c.name, err)
	}
	exists := err == nil
	content := stored.Data[c.key]
	switch {
	case exists && !c.isOurs(stored):
		s.note(c, content, true)
		s.leaveAlone(c)
		return content, nil
	case s.Bundle == nil:
		s.note(c, content, false)
		return content, nil
	}

	desired, err := c.ensure(content, renew)
	if err != nil {
		return nil, fmt.Errorf("making the content of Secret %s: %w", c.name, err)
	}
	if !exists {
		err = s.Client.Create(ctx, c.made(desired.Content))
	} else {
		err = s.write(ctx, c, stored, desired.Content)
	}
	switch {
	case err == nil:
	case exists && objects.IsNotTaken(err):
		s.miss(ctx, c, err)
		s.note(c, content, false)
		return content, nil
	default:
		return nil, fmt.Errorf("writing Secret %s: %w", c.name, err)
	}
	s.answer(c)
	if exists && desired.Renewed {
		ctrl.LoggerFrom(ctx).Info("Renewed a client certificate", "Secret", c.name)
		s.event(corev1.EventTypeNormal, "CredentialsRenewed", "RenewCredentials", "Renewed the client certificate in Secret %s", c.name)
		s.Metrics.CountRenewal(s.shown(), c.certificate)
	}
	s.note(c, desired.Content, false)

	return desired.Content, nil
}

// leaveAlone answers the wish for a new certificate in a Secret of a user.
func (s *update) leaveAlone(c secretKind) {
	if s.wants(c) {
		s.event(corev1.EventTypeWarning, "SecretLeftAlone", "RenewCredentials", "Secret %s was brought by a user, and is not renewed", c.name)
		s.answer(c)
	}
}

// miss notes that the API server has not taken a Secret. That is no error: the control
// plane needs care all the same, and what is there may be of use for half of a life. A
// person's wish for a new certificate stays.
func (s *update) miss(ctx context.Context, c secretKind, err error) {
	ctrl.LoggerFrom(ctx).Error(err, "Failed to update a client configuration", "Secret", c.name)
	if s.wants(c) {
		s.kept.Failures = append(s.kept.Failures,
			objects.Explain("Secret "+c.name+" cannot be written, and has no new certificate yet; it is tried again", err))
	}
}

func (s *update) write(ctx context.Context, c secretKind, stored *corev1.Secret, content []byte) error {
	updated := stored.DeepCopy()
	c.bind(updated)
	if !bytes.Equal(updated.Data[c.key], content) {
		if updated.Data == nil {
			updated.Data = map[string][]byte{}
		}
		updated.Data[c.key] = content
	}

	return objects.Patch(ctx, s.Client, stored, updated)
}

// confirmRenewal finds out whether a person wants new certificates. It looks
// live, because a cache that lags behind must not have them made twice.
func (s *update) confirmRenewal(ctx context.Context) error {
	if s.Bundle == nil || !metav1.HasAnnotation(s.ControlPlane.ObjectMeta, controlplanev1.RenewCredentialsAnnotation) {
		return nil
	}
	live := &metav1.PartialObjectMetadata{}
	live.SetGroupVersionKind(controlplanev1.GroupVersion.WithKind(controlplanev1.TalosControlPlaneKind))
	if err := s.Live.Get(ctx, client.ObjectKeyFromObject(s.ControlPlane), live); err != nil {
		return fmt.Errorf("reading the TalosControlPlane: %w", err)
	}
	if wish, found := live.Annotations[controlplanev1.RenewCredentialsAnnotation]; found {
		s.wish = &wish
	}

	return nil
}

// wants reports whether a person wants a new certificate in a Secret. A wish that names one
// of both is for that one alone: it is what was left of a wish.
func (s *update) wants(c secretKind) bool {
	if s.wish == nil {
		return false
	}
	namesOne := *s.wish == KubeconfigName(s.Cluster.Name) || *s.wish == secrets.TalosconfigName(s.Cluster.Name)

	return !namesOne || *s.wish == c.name
}

// answer notes that a person has what is wanted of a Secret.
func (s *update) answer(c secretKind) {
	if s.wants(c) {
		s.answered[c.name] = true
	}
}

// noteWish notes what is left of a wish.
func (s *update) noteWish() {
	left := ""
	for name, answered := range s.answered {
		if answered {
			s.kept.Renewed = true
		} else {
			left = name
		}
	}
	if s.kept.Renewed {
		s.kept.Left = left
	}
}

// event records an event of the control plane.
func (s *update) event(eventType, reason, action, note string, args ...any) {
	s.Recorder.Eventf(s.ControlPlane, nil, eventType, reason, action, note, args...)
}

// markOurs gives a Secret that we have made the metadata by which it is known.
func (s *update) markOurs(stored *corev1.Secret) {
	metav1.SetMetaDataAnnotation(&stored.ObjectMeta, bootstrapv1.GeneratedAnnotation, stored.Annotations[bootstrapv1.GeneratedAnnotation])
	metav1.SetMetaDataLabel(&stored.ObjectMeta, clusterv1.ClusterNameLabel, s.Cluster.Name)
}
