package clientconfig

import (
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

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

// Expiry is when a certificate of the cluster expires.
type Expiry struct {
	// Certificate names it in metrics.
	Certificate string
	// Name names it in messages.
	Name string
	// At is when it expires.
	At time.Time
	// Warning is how long before there is a warning.
	Warning time.Duration
	// Remedy is what a person can do.
	Remedy string
}

const (
	caRemedy       = "no CA is replaced by this release, see the documentation of secrets"
	usersRemedy    = "replace it, because the Secret was brought by a user"
	talosCAName    = "the CA of the Talos API"
	etcdCAName     = "the CA of etcd"
	k8sCAName      = "the CA of Kubernetes"
	aggregatorName = "the CA of the Kubernetes aggregation layer"
)

// noteCAs notes when the CAs expire.
func (s *update) noteCAs() error {
	if s.Bundle == nil {
		return nil
	}
	found, err := s.Bundle.CAExpiries()
	if err != nil {
		return err
	}
	s.kept.Expiries = []Expiry{
		{metrics.CertificateKubernetesCA, k8sCAName, found.Kubernetes, caWarning, caRemedy},
		{metrics.CertificateAggregatorCA, aggregatorName, found.Aggregator, caWarning, caRemedy},
		{metrics.CertificateEtcdCA, etcdCAName, found.Etcd, caWarning, caRemedy},
		{metrics.CertificateTalosCA, talosCAName, found.Talos, caWarning, caRemedy},
	}

	return nil
}

// note notes when the certificate in a client configuration
// expires, if there is one.
func (s *update) note(c secretKind, content []byte, users bool) {
	at, err := c.expiry(content)
	if err != nil || s.Bundle == nil {
		return
	}
	noted := Expiry{c.certificate, "the client certificate in Secret " + c.name, at, clientConfigWarning, "its renewal fails, see the log of the manager"}
	if users {
		noted.Remedy = usersRemedy
	}
	s.kept.Expiries = append(s.kept.Expiries, noted)
}

// shown names the control plane in metrics.
func (s *update) shown() metrics.ControlPlane {
	return metrics.ControlPlane{Key: client.ObjectKeyFromObject(s.ControlPlane), Cluster: s.Cluster.Name}
}

// showExpiries shows what is known in metrics; else what was known stays.
func (s *update) showExpiries() {
	if s.kept.Expiries == nil {
		return
	}
	expiries := map[string]time.Time{}
	for _, expiry := range s.kept.Expiries {
		expiries[expiry.Certificate] = expiry.At
	}
	s.Metrics.SetCertificates(s.shown(), expiries)
}
