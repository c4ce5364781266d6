package secrets_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

const (
	oneServer = "https://10.0.0.100:6443"
	newServer = "https://10.0.0.200:6443"
	day       = 24 * time.Hour
)

// made are two bundles. Keys are dear, so they are shared: a test that changes one parses
// it anew.
var made = sync.OnceValues(func() ([2]*secrets.Bundle, error) {
	one, err := secrets.NewBundle(now, "v1.13", nil)
	other, otherErr := secrets.NewBundle(now, "v1.13", nil)

	return [2]*secrets.Bundle{one, other}, errors.Join(err, otherErr)
})

func bundles(t *testing.T) (one, other *secrets.Bundle) {
	t.Helper()
	both, err := made()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return both[0], both[1]
}

// ensurer makes one of the two client configurations; variant changes what it
// is for.
type ensurer func(bundle *secrets.Bundle, stored []byte, variant int, at time.Time, renew bool) (secrets.ClientConfig, error)

func ensurers() map[string]ensurer {
	return map[string]ensurer{
		"talosconfig": func(b *secrets.Bundle, stored []byte, variant int, at time.Time, renew bool) (secrets.ClientConfig, error) {
			return b.EnsureTalosconfig("one", [][]string{{"10.0.0.1", "10.0.0.2"}, {"10.0.0.3"}}[variant], stored, at, renew)
		},
		"kubeconfig": func(b *secrets.Bundle, stored []byte, variant int, at time.Time, renew bool) (secrets.ClientConfig, error) {
			return b.EnsureKubeconfig("one", []string{oneServer, newServer}[variant], stored, at, renew)
		},
	}
}

func TestClientConfigurationsAreRenewedWhenTheyAreDue(t *testing.T) {
	bundle, other := bundles(t)
	for kind, ensure := range ensurers() {
		for name, tc := range map[string]struct {
			stored           func([]byte) []byte
			from             *secrets.Bundle
			after            time.Duration
			variant          int
			renew            bool
			renewed, changed bool
		}{
			"not at once":                             {},
			"not when less than half of it is over":   {after: secrets.ClientConfigLife/2 - time.Hour},
			"when half of its life is over":           {after: secrets.ClientConfigLife/2 + time.Hour, renewed: true, changed: true},
			"when it has expired":                     {after: 2 * secrets.ClientConfigLife, renewed: true, changed: true},
			"on demand":                               {renew: true, renewed: true, changed: true},
			"not when only what it is for changes":    {variant: 1, changed: true},
			"when it is of another cluster":           {from: other, renewed: true, changed: true},
			"when it is missing":                      {stored: func([]byte) []byte { return nil }, renewed: true, changed: true},
			"when it cannot be read":                  {stored: func([]byte) []byte { return []byte("{") }, renewed: true, changed: true},
			"when it is something else that is read":  {stored: func([]byte) []byte { return []byte("{}") }, renewed: true, changed: true},
			"when it was cut off":                     {stored: func(b []byte) []byte { return b[:len(b)/2] }, renewed: true, changed: true},
			"when its certificate is not readable":    {stored: spoil, renewed: true, changed: true},
			"when half is over, also for another use": {after: secrets.ClientConfigLife * 3 / 4, variant: 1, renewed: true, changed: true},
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				maker := bundle
				if tc.from != nil {
					maker = tc.from
				}
				first, err := ensure(maker, nil, 0, now, false)
				g.Expect(err).NotTo(HaveOccurred())
				stored := first.Content
				if tc.stored != nil {
					stored = tc.stored(stored)
				}
				at := now.Add(tc.after)

				second, err := ensure(bundle, stored, tc.variant, at, tc.renew)

				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(second.Renewed).To(Equal(tc.renewed))
				g.Expect(string(second.Content) != string(stored)).To(Equal(tc.changed))
				g.Expect(second.NotAfter).To(BeTemporally(">", at))
				g.Expect(second.RenewAt).To(BeTemporally(">", at))

				third, err := ensure(bundle, second.Content, tc.variant, at, false)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(string(third.Content)).To(Equal(string(second.Content)), "the same inputs give the same bytes")
				g.Expect(third.Renewed).To(BeFalse())
				g.Expect(third.NotAfter).To(Equal(second.NotAfter))
			})
		}
	}
}

// TestAClientConfigurationOfAClockThatWasAhead is made anew: nodes take it for one that is not
// valid yet. One whose CA is from the future is not, for no other would be valid.
func TestAClientConfigurationOfAClockThatWasAhead(t *testing.T) {
	bundle, _ := bundles(t)
	for kind, ensure := range ensurers() {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			first, err := ensure(bundle, nil, 0, now.Add(300*day), false)
			g.Expect(err).NotTo(HaveOccurred())
			second, err := ensure(bundle, first.Content, 0, now, false)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(begins(g, kind, second.Content)).NotTo(BeTemporally(">", now))

			before := now.Add(-30 * day)
			third, err := ensure(bundle, nil, 0, before, false)
			g.Expect(err).NotTo(HaveOccurred())
			fourth, err := ensure(bundle, third.Content, 0, before, false)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(fourth.Renewed).To(BeFalse())
		})
	}
}

// begins is from when on a client configuration is valid.
func begins(g *WithT, kind string, content []byte) time.Time {
	if kind == "talosconfig" {
		credentials, _, err := secrets.ParseTalosconfig(content)
		g.Expect(err).NotTo(HaveOccurred())
		notBefore, _, err := secrets.Validity(credentials)
		g.Expect(err).NotTo(HaveOccurred())
		return notBefore
	}
	config, err := clientcmd.Load(content)
	g.Expect(err).NotTo(HaveOccurred())
	block, _ := pem.Decode(config.AuthInfos[config.Contexts[config.CurrentContext].AuthInfo].ClientCertificateData)
	cert, err := x509.ParseCertificate(block.Bytes)
	g.Expect(err).NotTo(HaveOccurred())

	return cert.NotBefore
}

// spoil changes a letter in the middle.
func spoil(content []byte) []byte {
	spoiled := append([]byte(nil), content...)
	spoiled[len(spoiled)/2] = '!'

	return spoiled
}

func TestAClientConfigurationEndsWithItsCAAndIsNotRenewedInVain(t *testing.T) {
	bundle, _ := bundles(t)
	cas, err := bundle.CAExpiries()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for kind, ensure := range ensurers() {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			end := map[string]time.Time{"talosconfig": cas.Talos, "kubeconfig": cas.Kubernetes}[kind]
			for _, left := range []time.Duration{300 * day, 10 * day, -day} {
				at := end.Add(-left)
				first, err := ensure(bundle, nil, 0, at, false)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(first.NotAfter).To(BeTemporally("~", end, time.Second))
				g.Expect(first.RenewAt).To(BeZero())

				for _, later := range []time.Duration{0, max(left-day, 0), left + day} {
					second, err := ensure(bundle, first.Content, 0, at.Add(later), false)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(string(second.Content)).To(Equal(string(first.Content)))
				}
			}
		})
	}
}

func TestTheKubeconfigIsOfTheAdministrator(t *testing.T) {
	g := NewWithT(t)
	bundle, _ := bundles(t)
	made, err := bundle.EnsureKubeconfig("one", oneServer, nil, now, false)
	g.Expect(err).NotTo(HaveOccurred())

	config, err := clientcmd.Load(made.Content)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(config.CurrentContext).To(Equal("one-admin@one"))
	g.Expect(config.Clusters["one"].Server).To(Equal(oneServer))
	user := config.AuthInfos["one-admin"]
	block, _ := pem.Decode(user.ClientCertificateData)
	cert, err := x509.ParseCertificate(block.Bytes)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cert.Subject.CommonName).To(Equal("kubernetes-admin"))
	g.Expect(cert.Subject.Organization).To(Equal([]string{"system:masters"}))
	roots := x509.NewCertPool()
	g.Expect(roots.AppendCertsFromPEM(config.Clusters["one"].CertificateAuthorityData)).To(BeTrue())
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now.Add(day), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	g.Expect(err).NotTo(HaveOccurred())
	rest, err := clientcmd.RESTConfigFromKubeConfig(made.Content)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rest.Host).To(Equal(oneServer))

	expires, err := secrets.KubeconfigExpiry(made.Content)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(expires).To(Equal(made.NotAfter))
	g.Expect(expires).To(BeTemporally("~", now.Add(secrets.ClientConfigLife), time.Second))
}

// What Cluster API's helper has written, as earlier releases had it do, is kept.
func TestAKubeconfigInAnotherFormIsKept(t *testing.T) {
	g := NewWithT(t)
	bundle, _ := bundles(t)
	made, err := bundle.EnsureKubeconfig("one", oneServer, nil, now, false)
	g.Expect(err).NotTo(HaveOccurred())
	config, err := clientcmd.Load(made.Content)
	g.Expect(err).NotTo(HaveOccurred())
	config.Clusters["one"].CertificateAuthorityData = append(config.Clusters["one"].CertificateAuthorityData, '\n')
	config.Contexts["mine"] = config.Contexts[config.CurrentContext]
	config.CurrentContext = "mine"
	stored, err := clientcmd.Write(*config)
	g.Expect(err).NotTo(HaveOccurred())

	kept, err := bundle.EnsureKubeconfig("one", oneServer, stored, now, false)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(kept.Content)).To(Equal(string(stored)))
}

func TestExpiriesNeedACertificate(t *testing.T) {
	for _, raw := range []string{"", "{", "{}", "current-context: a", "context: a"} {
		g := NewWithT(t)
		_, err := secrets.KubeconfigExpiry([]byte(raw))
		g.Expect(err).To(HaveOccurred())
		_, err = secrets.TalosconfigExpiry([]byte(raw))
		g.Expect(err).To(HaveOccurred())
	}
}

func TestEndpointsOfTheTalosAPI(t *testing.T) {
	const internal, external, name = clusterv1.MachineInternalIP, clusterv1.MachineExternalIP, clusterv1.MachineHostName
	machine := func(addresses ...clusterv1.MachineAddress) *clusterv1.Machine {
		return &clusterv1.Machine{Status: clusterv1.MachineStatus{Addresses: addresses}}
	}
	deleted := machine(clusterv1.MachineAddress{Type: internal, Address: "10.0.0.9"})
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	for behaviour, tc := range map[string]struct {
		endpoint string
		machines []*clusterv1.Machine
		want     []string
	}{
		"none without Machines": {endpoint: "10.0.0.100"},
		"all IP addresses, sorted, each once": {
			endpoint: "10.0.0.100",
			machines: []*clusterv1.Machine{
				machine(clusterv1.MachineAddress{Type: external, Address: "192.0.2.7"}, clusterv1.MachineAddress{Type: internal, Address: "10.0.0.2"}),
				machine(clusterv1.MachineAddress{Type: internal, Address: "10.0.0.1"}, clusterv1.MachineAddress{Type: external, Address: "10.0.0.1"}),
			},
			want: []string{"10.0.0.1", "10.0.0.2", "192.0.2.7"},
		},
		"no host names":                     {machines: []*clusterv1.Machine{machine(clusterv1.MachineAddress{Type: name, Address: "one"})}},
		"none of a Machine that is deleted": {machines: []*clusterv1.Machine{deleted}},
		"not the virtual address": {
			endpoint: "10.0.0.100",
			machines: []*clusterv1.Machine{machine(clusterv1.MachineAddress{Type: internal, Address: "10.0.0.100"}, clusterv1.MachineAddress{Type: internal, Address: "10.0.0.1"})},
			want:     []string{"10.0.0.1"},
		},
		"not the virtual address, written in another way": {
			endpoint: "fd00:0:0:0::1",
			machines: []*clusterv1.Machine{machine(clusterv1.MachineAddress{Type: internal, Address: "fd00::1"}, clusterv1.MachineAddress{Type: internal, Address: "fd00::2"})},
			want:     []string{"fd00::2"},
		},
		"not the virtual address, mapped": {
			endpoint: "::ffff:10.0.0.100",
			machines: []*clusterv1.Machine{machine(clusterv1.MachineAddress{Type: internal, Address: "10.0.0.100"})},
		},
	} {
		t.Run(behaviour, func(t *testing.T) {
			cluster := &clusterv1.Cluster{Spec: clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: tc.endpoint, Port: 6443}}}
			NewWithT(t).Expect(secrets.TalosEndpoints(cluster, tc.machines)).To(Equal(tc.want))
		})
	}
}
