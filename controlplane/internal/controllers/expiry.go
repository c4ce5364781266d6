package controllers

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/metrics"
)

// How long before a certificate expires there is a warning.
const (
	// caWarning leaves time to plan: nothing renews a CA by itself.
	caWarning = 180 * 24 * time.Hour
	// clientConfigWarning is less than half of their life, so it is for those
	// only that are not renewed.
	clientConfigWarning = 30 * 24 * time.Hour
)

// expiry is when a certificate of the cluster expires.
type expiry struct {
	// certificate names it in metrics.
	certificate string
	// name names it in messages.
	name string
	at   time.Time
	// warning is how long before there is a warning.
	warning time.Duration
	// cure is what a person can do.
	cure string
}

const (
	caCure         = "no CA is replaced by this release, see the documentation of secrets"
	usersCure      = "replace it, because the Secret was brought by a user"
	talosCAName    = "the CA of the Talos API"
	etcdCAName     = "the CA of etcd"
	k8sCAName      = "the CA of Kubernetes"
	aggregatorName = "the CA of the Kubernetes aggregation layer"
)

// noteCAs notes when the CAs expire.
func (r *Reconciler) noteCAs(s *scope) error {
	s.expiries = nil
	if s.bundle == nil {
		return nil
	}
	found, err := s.bundle.CAExpiries()
	if err != nil {
		return err
	}
	s.expiries = []expiry{
		{metrics.CertificateKubernetesCA, k8sCAName, found.Kubernetes, caWarning, caCure},
		{metrics.CertificateAggregatorCA, aggregatorName, found.Aggregator, caWarning, caCure},
		{metrics.CertificateEtcdCA, etcdCAName, found.Etcd, caWarning, caCure},
		{metrics.CertificateTalosCA, talosCAName, found.Talos, caWarning, caCure},
	}

	return nil
}

// noteClientConfig notes when the certificate in a client configuration
// expires, if there is one.
func (s *scope) noteClientConfig(c clientConfigSecret, content []byte, users bool) {
	at, err := c.expiry(content)
	if err != nil || s.bundle == nil {
		return
	}
	noted := expiry{c.certificate, "the client certificate in Secret " + c.name, at, clientConfigWarning, "its renewal fails, see the log of the manager"}
	if users {
		noted.cure = usersCure
	}
	s.expiries = append(s.expiries, noted)
}

// shown names the control plane in metrics.
func (s *scope) shown() metrics.ControlPlane {
	return metrics.ControlPlane{Key: client.ObjectKeyFromObject(s.controlPlane), Cluster: s.cluster.Name}
}

// showExpiries shows what is known in metrics; else what was known stays.
func (r *Reconciler) showExpiries(s *scope) {
	if s.expiries == nil {
		return
	}
	expiries := map[string]time.Time{}
	for _, expiry := range s.expiries {
		expiries[expiry.certificate] = expiry.at
	}
	r.Metrics.SetCertificates(s.shown(), expiries)
}

// setExpiringCondition tells when the certificates of the cluster expire, and
// warns once of those that do so soon.
func (r *Reconciler) setExpiringCondition(s *scope) {
	const conditionType = controlplanev1.CertificatesExpiringCondition
	before := conditions.Get(s.controlPlane, conditionType)
	if s.expiries == nil {
		if before == nil || s.decision.Action != "" {
			condition.Set(s.controlPlane, conditionType, condition.Unknown(controlplanev1.CertificatesExpiryUnknownReason,
				"The CAs of the cluster cannot be read; see condition "+controlplanev1.CertificatesAvailableCondition))
		}
		return
	}
	found := judgeExpiries(s.expiries, r.Clock.Now())
	condition.Set(s.controlPlane, conditionType, found)
	if found.Status == metav1.ConditionTrue && (before == nil || before.Reason != found.Reason || before.Message != found.Message) {
		r.event(s, warning, "Certificates"+found.Reason, "Observe", "%s", found.Message)
	}
}

// judgeExpiries words the condition CertificatesExpiring. Its message has dates,
// which change only with the certificates.
func judgeExpiries(expiries []expiry, now time.Time) condition.Finding {
	found := condition.False(controlplanev1.CertificatesNotExpiringReason, "")
	var urgent, other []string
	for _, expiry := range expiries {
		sentence := fmt.Sprintf("%s: %s", expiry.at.UTC().Format(time.RFC3339), expiry.name)
		switch {
		case !now.Before(expiry.at):
			found = condition.True(controlplanev1.CertificatesExpiredReason, "")
			urgent = append(urgent, sentence+" has expired; "+expiry.cure)
		case !now.Before(expiry.at.Add(-expiry.warning)):
			if found.Status == metav1.ConditionFalse {
				found = condition.True(controlplanev1.CertificatesExpiringReason, "")
			}
			urgent = append(urgent, sentence+" expires soon; "+expiry.cure)
		default:
			other = append(other, sentence+" expires")
		}
	}

	found.Message = bullets(append(urgent, other...))

	return found
}
