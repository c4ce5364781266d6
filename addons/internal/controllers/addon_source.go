package controllers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/content"
	"github.com/capi-talos/capi-talos/addons/internal/source"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

const (
	// defaultChartKey is the key of an archive in a ConfigMap.
	defaultChartKey = "chart.tgz"
	// sourceRetryInterval is how soon a source is asked again that had no chart.
	sourceRetryInterval = time.Minute
)

// reconcileSource resolves the source where that is due. A source that cannot be asked
// leaves the chart that it had.
func (r *AddonReconciler) reconcileSource(ctx context.Context, s *addonScope) error {
	s.chart = s.addon.Status.Chart
	from := s.addon.Spec.Source
	digest := digestOf(withoutInterval(from))
	access, versions, err := accessTo(ctx, r.Content, s.addon.Namespace, from)
	if err == nil && from.ConfigMap.Name != "" {
		return r.takeConfigMap(ctx, s, digest)
	}
	if err == nil {
		try := try{source: digest, access: versions}
		due, wait := r.due(s, try)
		if !due {
			s.again(wait)
			s.chartFound = r.lastFinding(s)
			return nil
		}
		var found addonv1.ChartStatus
		found, err = r.Charts.Resolve(ctx, from, access, s.chart)
		if err == nil {
			r.resolved(s, found, digest)
			s.again(interval(from))
		}
		err = r.unresolved(s, err)
		r.tries.note(client.ObjectKeyFromObject(s.addon), try, s.chartFound)
		return err
	}

	return r.unresolved(s, err)
}

// unresolved tells why a source has no chart. What its server or its user must mend is no
// error of the reconcile.
func (r *AddonReconciler) unresolved(s *addonScope, err error) error {
	if err == nil {
		return nil
	}
	said := (*source.Error)(nil)
	if !errors.As(err, &said) {
		return err
	}
	s.again(sourceRetryInterval)
	s.chartFound = condition.False(said.Reason, said.Message)

	return nil
}

func (r *AddonReconciler) resolved(s *addonScope, found addonv1.ChartStatus, digest string) {
	found.SourceDigest = digest
	found.ResolvedAt = metav1.NewTime(r.Clock.Now())
	s.chart = found
	s.chartFound = available(found)
}

func available(chart addonv1.ChartStatus) condition.Finding {
	return condition.True(addonv1.ChartAvailableReason, fmt.Sprintf("%s %s", chart.Name, chart.Version))
}

// lastFinding is what was found when the source was asked last. That may not have been written
// then: somebody else has changed the add-on meanwhile.
func (r *AddonReconciler) lastFinding(s *addonScope) condition.Finding {
	if last, known := r.tries.last(client.ObjectKeyFromObject(s.addon)); known {
		return last.found
	}

	return available(s.chart)
}

// due reports whether a source is to be asked, or how long to wait. It is when it was not
// asked yet, is another one, can be used by others, or has not been asked for its interval.
func (r *AddonReconciler) due(s *addonScope, now try) (bool, time.Duration) {
	last, known := r.tries.last(client.ObjectKeyFromObject(s.addon))
	if known && last.try == now && last.isFailed() {
		wait := last.at.Add(sourceRetryInterval).Sub(r.Clock.Now())
		return wait <= 0, wait
	}
	if s.chart.SourceDigest != now.source || (known && last.try != now) {
		return true, 0
	}
	every := interval(s.addon.Spec.Source)
	if every == 0 {
		return false, 0
	}
	wait := s.chart.ResolvedAt.Add(every).Sub(r.Clock.Now())

	return wait <= 0, wait
}

func interval(from addonv1.AddonSource) time.Duration {
	return time.Duration(ptr.Deref(from.IntervalSeconds, addonv1.DefaultSourceIntervalSeconds)) * time.Second
}

func withoutInterval(from addonv1.AddonSource) addonv1.AddonSource {
	from.IntervalSeconds = nil

	return from
}

// takeConfigMap takes the archive of a ConfigMap. It changes with the ConfigMap, and needs
// no interval.
func (r *AddonReconciler) takeConfigMap(ctx context.Context, s *addonScope, digest string) error {
	archive, err := archiveOf(ctx, r.Content, s.addon.Namespace, s.addon.Spec.Source.ConfigMap)
	if err != nil {
		return r.unresolved(s, err)
	}
	if s.chart.SourceDigest == digest && s.chart.Digest == source.DigestOf(archive) {
		s.chartFound = available(s.chart)
		return nil
	}
	found, err := r.Charts.Take(archive)
	if err == nil {
		r.resolved(s, found, digest)
	}

	return r.unresolved(s, err)
}

// archiveOf is the archive in a ConfigMap.
func archiveOf(ctx context.Context, reader *content.Reader, namespace string, from addonv1.ConfigMapSource) ([]byte, error) {
	found, err := reader.Get(ctx, addonv1.ConfigMapValues, types.NamespacedName{Namespace: namespace, Name: from.Name})
	if apierrors.IsNotFound(err) {
		return nil, &source.Error{Reason: addonv1.SourceNotFoundReason, Message: fmt.Sprintf("there is no ConfigMap %s", from.Name)}
	}
	if err != nil {
		return nil, err
	}
	archive := found.Data[cmp.Or(from.Key, defaultChartKey)]
	if len(archive) == 0 {
		return nil, &source.Error{Reason: addonv1.SourceNotFoundReason, Message: fmt.Sprintf("ConfigMap %s has no key %s", from.Name, cmp.Or(from.Key, defaultChartKey))}
	}

	return archive, nil
}

// accessTo reads what it takes to use a source, and the versions of the Secrets that it was
// read from.
func accessTo(ctx context.Context, reader *content.Reader, namespace string, from addonv1.AddonSource) (source.Access, string, error) {
	var access source.Access
	var versions string
	read := func(name string) (content.Content, error) {
		found, err := reader.Get(ctx, addonv1.SecretValues, types.NamespacedName{Namespace: namespace, Name: name})
		if apierrors.IsNotFound(err) {
			return found, &source.Error{Reason: addonv1.SecretInvalidReason, Message: fmt.Sprintf("there is no Secret %s", name)}
		}
		versions += found.Version + " "
		return found, err
	}
	wants := func(found content.Content, name string, wanted corev1.SecretType) error {
		if found.Type == wanted {
			return nil
		}
		return &source.Error{Reason: addonv1.SecretInvalidReason, Message: fmt.Sprintf("Secret %s is of type %s; this source needs one of type %s", name, found.Type, wanted)}
	}
	if name := from.Repository.CredentialsSecretName; name != "" {
		found, err := read(name)
		if err == nil {
			err = wants(found, name, corev1.SecretTypeBasicAuth)
		}
		if err != nil {
			return access, "", err
		}
		access.Username, access.Password = string(found.Data[corev1.BasicAuthUsernameKey]), string(found.Data[corev1.BasicAuthPasswordKey])
	}
	if name := from.Registry.CredentialsSecretName; name != "" {
		found, err := read(name)
		if err == nil {
			err = wants(found, name, corev1.SecretTypeDockerConfigJson)
		}
		if err != nil {
			return access, "", err
		}
		access.DockerConfig = found.Data[corev1.DockerConfigJsonKey]
	}
	if name := cmp.Or(from.Repository.CASecretName, from.Registry.CASecretName); name != "" {
		found, err := read(name)
		if err != nil {
			return access, "", err
		}
		if access.CA = found.Data["ca.crt"]; len(access.CA) == 0 {
			return access, "", &source.Error{Reason: addonv1.SecretInvalidReason, Message: fmt.Sprintf("Secret %s has no key ca.crt", name)}
		}
	}

	return access, versions, nil
}

// digestOf is a digest of what can be written as JSON.
func digestOf(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		// Types of the API can be.
		panic(fmt.Sprintf("writing %T as JSON: %v", value, err))
	}
	sum := sha256.Sum256(text)

	return "sha256:" + hex.EncodeToString(sum[:])
}

// try is a try to resolve a source.
type try struct {
	// source is the digest of the source, and access tells the Secrets that were used.
	source, access string
}

type lastTry struct {
	try

	at time.Time
	// found is what condition ChartAvailable says of it; nothing where it has ended without a
	// reason.
	found condition.Finding
}

func (t lastTry) isFailed() bool { return t.found.Status != metav1.ConditionTrue }

// tries are the last tries to resolve sources. They need not outlive the process: then a
// source is asked once more.
type tries struct {
	clock clock.PassiveClock

	mu    sync.Mutex
	known map[types.NamespacedName]lastTry
}

func newTries(clock clock.PassiveClock) *tries {
	return &tries{clock: clock, known: map[types.NamespacedName]lastTry{}}
}

func (t *tries) note(name types.NamespacedName, made try, found condition.Finding) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[name] = lastTry{made, t.clock.Now(), found}
}

func (t *tries) last(name types.NamespacedName) (lastTry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, known := t.known[name]

	return found, known
}

func (t *tries) forget(name types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, name)
}
