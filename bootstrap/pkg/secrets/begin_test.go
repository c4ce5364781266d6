package secrets_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// TestClientCertificatesBeginBeforeTheyAreMade: the clock of a node may lag.
func TestClientCertificatesBeginBeforeTheyAreMade(t *testing.T) {
	const leeway = 10 * time.Minute
	g := NewWithT(t)
	bundle, _ := bundles(t)
	for name, c := range map[string]struct{ at, begins time.Time }{
		"ten minutes before":                      {at: now.Add(day), begins: now.Add(day - leeway)},
		"but not before its CA, which does, too":  {at: now, begins: now.Add(-leeway)},
		"nor where the clock was set back by far": {at: now.Add(-5 * time.Minute), begins: now.Add(-leeway)},
	} {
		for _, role := range []string{secrets.RoleReader, secrets.RoleAdmin} {
			creds, err := bundle.ClientCredentials(role, c.at, time.Hour)
			g.Expect(err).NotTo(HaveOccurred())
			begins, ends, err := secrets.Validity(creds)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(begins).To(BeTemporally("~", c.begins, time.Second), name+" as "+role)
			g.Expect(ends).To(BeTemporally("~", c.at.Add(time.Hour), time.Second), name+" as "+role)
		}
	}

	made, err := bundle.EnsureTalosconfig("one", nil, nil, now.Add(day), false)
	g.Expect(err).NotTo(HaveOccurred())
	creds, _, err := secrets.ParseTalosconfig(made.Content)
	g.Expect(err).NotTo(HaveOccurred())
	begins, ends, err := secrets.Validity(creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(begins).To(BeTemporally("~", now.Add(day-leeway), time.Second))
	g.Expect(ends).To(BeTemporally("~", now.Add(day+secrets.ClientConfigLife), time.Second))
	g.Expect(talosclient.ClockLeeway).To(Equal(leeway), "the conditions and the pages say ten minutes")
}

// TestAKubeconfigTrustsTheCAOfTheBundle: one whose certificate is ours, and which
// trusts somebody else's API server, is corrected, and keeps its certificate.
func TestAKubeconfigTrustsTheCAOfTheBundle(t *testing.T) {
	g := NewWithT(t)
	bundle, other := bundles(t)
	made, err := bundle.EnsureKubeconfig("one", oneServer, nil, now, false)
	g.Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.Load(made.Content)
	g.Expect(err).NotTo(HaveOccurred())
	config.Clusters["one"].CertificateAuthorityData, _ = other.KubernetesCA()
	stale, err := clientcmd.Write(*config)
	g.Expect(err).NotTo(HaveOccurred())

	mended, err := bundle.EnsureKubeconfig("one", oneServer, stale, now, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(mended.Renewed).To(BeFalse())
	g.Expect(string(mended.Content)).To(Equal(string(made.Content)))
}
