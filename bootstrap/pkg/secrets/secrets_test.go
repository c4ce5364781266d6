package secrets_test

import (
	"context"
	"encoding/pem"
	"errors"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinery "github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

var now = time.Unix(1<<30, 0)

func TestBundleSurvivesItsSecret(t *testing.T) {
	g := NewWithT(t)
	made, err := secrets.NewBundle(now, "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	stored := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secrets.BundleName("demo")},
		Data:       map[string][]byte{secrets.BundleKey: made.YAML()},
	}
	reader := fake.NewClientBuilder().WithObjects(stored).Build()

	read, err := secrets.GetBundle(t.Context(), reader, client.ObjectKey{Namespace: "ns", Name: "demo"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read.Digest()).To(Equal(made.Digest()))

	other, _ := bundles(t)
	g.Expect(other.Digest()).NotTo(Equal(made.Digest()))

	_, err = secrets.GetBundle(t.Context(), reader, client.ObjectKey{Namespace: "ns", Name: "other"})
	g.Expect(err).To(MatchError(secrets.ErrBundleMissing))
	_, err = secrets.ParseBundle([]byte("Certs: {}"))
	g.Expect(err).To(MatchError(secrets.ErrBundleInvalid))
}

func TestBundleTakesTheCAOfTheUser(t *testing.T) {
	g := NewWithT(t)
	users, _ := bundles(t)

	made, err := secrets.NewBundle(now, "v1.13", users.CASecretData())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.CASecretData()).To(Equal(users.CASecretData()))

	_, err = secrets.NewBundle(now, "v1.13", map[string][]byte{})
	g.Expect(err).To(MatchError(secrets.ErrBundleInvalid))
}

func TestTalosconfigCarriesCredentialsThere(t *testing.T) {
	g := NewWithT(t)
	bundle, _ := bundles(t)
	creds, err := bundle.ClientCredentials(secrets.RoleAdmin, now, time.Hour)
	g.Expect(err).NotTo(HaveOccurred())

	raw, err := secrets.Talosconfig("demo", []string{"10.0.0.5"}, creds)
	g.Expect(err).NotTo(HaveOccurred())
	read, endpoints, err := secrets.ParseTalosconfig(raw)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(endpoints).To(Equal([]string{"10.0.0.5"}))
	g.Expect(read).To(Equal(creds))

	_, notAfter, err := secrets.Validity(read)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(notAfter).To(BeTemporally("~", now.Add(time.Hour), time.Minute))
	_, err = bundle.ClientCredentials("os:everything", now, time.Hour)
	g.Expect(err).To(HaveOccurred())
	_, _, err = secrets.ParseTalosconfig([]byte("context: x"))
	g.Expect(err).To(HaveOccurred())
}

// A talosconfig that lacks something is none, whichever it lacks.
func TestATalosconfigHasACAACertificateAndAKey(t *testing.T) {
	g := NewWithT(t)
	whole := talosclient.Credentials{CA: []byte("a"), Cert: []byte("b"), Key: []byte("c")}
	for name, lack := range map[string]func(*talosclient.Credentials){
		"a CA": func(c *talosclient.Credentials) { c.CA = nil }, "a certificate": func(c *talosclient.Credentials) { c.Cert = nil }, "a key": func(c *talosclient.Credentials) { c.Key = nil },
	} {
		creds := whole
		lack(&creds)
		raw, err := secrets.Talosconfig("demo", nil, creds)
		g.Expect(err).NotTo(HaveOccurred())
		_, _, err = secrets.ParseTalosconfig(raw)
		g.Expect(err).To(HaveOccurred(), name)
	}
	raw, err := secrets.Talosconfig("demo", nil, whole)
	g.Expect(err).NotTo(HaveOccurred())
	read, _, err := secrets.ParseTalosconfig(raw)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read).To(Equal(whole))
	_, _, err = secrets.Validity(read)
	g.Expect(err).To(HaveOccurred(), "its certificate is none")
	_, err = secrets.TalosconfigExpiry(raw)
	g.Expect(err).To(HaveOccurred())
	_, _, err = secrets.Validity(talosclient.Credentials{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})})
	g.Expect(err).To(HaveOccurred(), "nor is what only looks like one")
	_, _, err = secrets.ParseTalosconfig([]byte("{"))
	g.Expect(err).To(HaveOccurred(), "it is no YAML")
	_, _, err = secrets.ParseTalosconfig([]byte("context: x\ncontexts: {x: {ca: '%', crt: '%', key: '%'}}"))
	g.Expect(err).To(HaveOccurred(), "it is not encoded")
	_, _, err = secrets.ParseTalosconfig([]byte("context: x\ncontexts: {x: {ca: 'YWJj%', crt: 'YWJj', key: 'YWJj'}}"))
	g.Expect(err).To(HaveOccurred(), "nor is all of it")
}

// What is read of a configuration is the key material of a control plane, or nothing.
func TestABundleIsReadFromAControlPlaneAlone(t *testing.T) {
	g := NewWithT(t)
	made, _ := bundles(t)
	in := inputOf(made)
	in.Contract = "v1.13"
	rendered, err := configgen.Render(in)
	g.Expect(err).NotTo(HaveOccurred())
	read, err := secrets.BundleOf(rendered)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(read.Digest()).To(Equal(made.Digest()))

	in.Role, in.Hostname = configgen.RoleWorker, ""
	worker, err := configgen.Render(in)
	g.Expect(err).NotTo(HaveOccurred())
	was, err := made.Made([]byte("version: v1alpha1\nmachine: {type: worker}\n"))
	g.Expect(err).To(MatchError(ContainSubstring("no CA")))
	g.Expect(was).To(BeFalse())
	for name, raw := range map[string][]byte{
		"a worker": worker, "no configuration": []byte("a: ["), "another document alone": []byte("apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n"),
		"a control plane without keys":       []byte("version: v1alpha1\nmachine: {type: controlplane}\ncluster: {id: a}\n"),
		"a control plane without an etcd CA": regexp.MustCompile(`(?m)^    etcd:\n(        .*\n)+`).ReplaceAll(rendered, nil),
	} {
		bundle, err := secrets.BundleOf(raw)
		g.Expect(err).To(MatchError(secrets.ErrBundleInvalid), name)
		g.Expect(bundle).To(BeNil(), name)
		if name == "a worker" {
			continue
		}
		was, err := made.Made(raw)
		g.Expect(err).To(HaveOccurred(), name)
		g.Expect(was).To(BeFalse(), name)
	}
}

// broken is a bundle that is not what it says.
func broken(t *testing.T, spoil func(*machinery.Bundle)) *secrets.Bundle {
	t.Helper()
	whole, _ := bundles(t)
	bundle, err := secrets.ParseBundle(whole.YAML())
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	spoil(bundle.Machinery())

	return bundle
}

// Keys that cannot be used are an error, which does not quote them.
func TestKeysThatCannotBeUsed(t *testing.T) {
	const rubbish = "rubbish"
	whole, other := bundles(t)
	credentials := func(b *secrets.Bundle) error {
		_, err := b.ClientCredentials(secrets.RoleReader, now, time.Hour)
		return err
	}
	talosconfig := func(b *secrets.Bundle) error { _, err := b.EnsureTalosconfig("one", nil, nil, now, false); return err }
	kubeconfig := func(b *secrets.Bundle) error {
		_, err := b.EnsureKubeconfig("one", oneServer, nil, now, false)
		return err
	}
	expiries := func(b *secrets.Bundle) error { _, err := b.CAExpiries(); return err }
	for name, tc := range map[string]struct {
		spoil func(*machinery.Bundle)
		fails []func(*secrets.Bundle) error
	}{
		"the CA of the Talos API":         {func(b *machinery.Bundle) { b.Certs.OS.Crt = []byte(rubbish) }, []func(*secrets.Bundle) error{credentials, talosconfig, expiries}},
		"the key of that":                 {func(b *machinery.Bundle) { b.Certs.OS.Key = []byte(rubbish) }, []func(*secrets.Bundle) error{credentials, talosconfig}},
		"the CA of Kubernetes":            {func(b *machinery.Bundle) { b.Certs.K8s.Crt = []byte(rubbish) }, []func(*secrets.Bundle) error{kubeconfig, expiries}},
		"the key of that, too":            {func(b *machinery.Bundle) { b.Certs.K8s.Key = []byte(rubbish) }, []func(*secrets.Bundle) error{kubeconfig}},
		"the key of another one":          {func(b *machinery.Bundle) { _, b.Certs.K8s.Key = other.KubernetesCA() }, []func(*secrets.Bundle) error{kubeconfig}},
		"a key in the place of a CA":      {func(b *machinery.Bundle) { b.Certs.K8s.Crt = b.Certs.K8s.Key }, []func(*secrets.Bundle) error{kubeconfig, expiries}},
		"the CA of etcd":                  {func(b *machinery.Bundle) { b.Certs.Etcd.Crt = []byte(rubbish) }, []func(*secrets.Bundle) error{expiries}},
		"the CA of the aggregation layer": {func(b *machinery.Bundle) { b.Certs.K8sAggregator.Crt = []byte(rubbish) }, []func(*secrets.Bundle) error{expiries}},
		"a certificate that is none": {func(b *machinery.Bundle) {
			b.Certs.Etcd.Crt = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(rubbish)})
		}, []func(*secrets.Bundle) error{expiries}},
	} {
		for _, use := range tc.fails {
			NewWithT(t).Expect(use(whole)).To(Succeed())
			err := use(broken(t, tc.spoil))
			NewWithT(t).Expect(err).To(HaveOccurred(), name)
			NewWithT(t).Expect(err.Error()).NotTo(ContainSubstring(rubbish), name)
		}
	}
}

// What a cluster cannot change counts where it is, not only what it is together.
func TestTheDigestTellsWhereAPartEnds(t *testing.T) {
	whole, _ := bundles(t)
	moved := broken(t, func(b *machinery.Bundle) {
		b.Cluster.ID, b.Cluster.Secret = b.Cluster.ID+b.Cluster.Secret[:1], b.Cluster.Secret[1:]
	})
	NewWithT(t).Expect(moved.Digest()).NotTo(Equal(whole.Digest()))
}

func TestABundleThatCannotBeReadIsNone(t *testing.T) {
	g := NewWithT(t)
	_, err := secrets.ParseBundle([]byte("\t: ["))
	g.Expect(err).To(MatchError(secrets.ErrBundleInvalid))
	_, err = secrets.NewBundle(now, "one", nil)
	g.Expect(err).To(MatchError(ContainSubstring("contract")))

	key := client.ObjectKey{Namespace: "ns", Name: "demo"}
	spoiled := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: secrets.BundleName("demo")}, Data: map[string][]byte{secrets.BundleKey: []byte("a: b")}}
	bundle, err := secrets.GetBundle(t.Context(), fake.NewClientBuilder().WithObjects(spoiled).Build(), key)
	g.Expect(err).To(MatchError(secrets.ErrBundleInvalid))
	g.Expect(bundle).To(BeNil())
	_, err = secrets.GetBundle(t.Context(), failing{}, key)
	g.Expect(err).To(And(MatchError(errFailing), Not(MatchError(secrets.ErrBundleMissing))), "what is not known is not missing")
}

// failing is a reader that does not answer.
type failing struct{ client.Reader }

var errFailing = errors.New("no answer")

func (failing) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errFailing
}

// The names are those that other tools read.
func TestNamesOfSecrets(t *testing.T) {
	g := NewWithT(t)
	g.Expect(secrets.BundleName("one")).To(Equal("one-talos"))
	g.Expect(secrets.CAName("one")).To(Equal("one-ca"))
	g.Expect(secrets.TalosconfigName("one")).To(Equal("one-talosconfig"))
}

// A client configuration of a key that is not that of its certificate is of no use.
func TestAClientConfigurationWithAnotherKeyIsRenewed(t *testing.T) {
	g := NewWithT(t)
	bundle, _ := bundles(t)
	first, err := bundle.EnsureKubeconfig("one", oneServer, nil, now, false)
	g.Expect(err).NotTo(HaveOccurred())
	second, err := bundle.EnsureKubeconfig("one", oneServer, nil, now, false)
	g.Expect(err).NotTo(HaveOccurred())
	mixed, err := clientcmd.Load(first.Content)
	g.Expect(err).NotTo(HaveOccurred())
	other, err := clientcmd.Load(second.Content)
	g.Expect(err).NotTo(HaveOccurred())
	mixed.AuthInfos["one-admin"].ClientKeyData = other.AuthInfos["one-admin"].ClientKeyData
	stored, err := clientcmd.Write(*mixed)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bundle.EnsureKubeconfig("one", oneServer, stored, now, false)).To(HaveField("Renewed", true))

	for name, lack := range map[string]func(*clientcmdapi.Config){
		"a certificate":          func(c *clientcmdapi.Config) { c.AuthInfos["one-admin"].ClientCertificateData = nil },
		"a key":                  func(c *clientcmdapi.Config) { c.AuthInfos["one-admin"].ClientKeyData = nil },
		"a user":                 func(c *clientcmdapi.Config) { c.AuthInfos = nil },
		"a cluster":              func(c *clientcmdapi.Config) { c.Clusters = nil },
		"a readable certificate": func(c *clientcmdapi.Config) { c.AuthInfos["one-admin"].ClientCertificateData = []byte("x") },
	} {
		lacking, err := clientcmd.Load(first.Content)
		g.Expect(err).NotTo(HaveOccurred())
		lack(lacking)
		stored, err := clientcmd.Write(*lacking)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = secrets.KubeconfigExpiry(stored)
		g.Expect(err).To(HaveOccurred(), name)
		g.Expect(bundle.EnsureKubeconfig("one", oneServer, stored, now, false)).To(HaveField("Renewed", true), name)
	}
}
