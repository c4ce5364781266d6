package secrets_test

import (
	"testing"

	. "github.com/onsi/gomega"
	machinery "github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v4"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// edited is a bundle with something changed.
func edited(g Gomega, bundle *secrets.Bundle, edit func(*machinery.Bundle)) *secrets.Bundle {
	other, err := secrets.ParseBundle(bundle.YAML())
	g.Expect(err).NotTo(HaveOccurred())
	edit(other.Machinery())
	raw, err := yaml.Marshal(other.Machinery())
	g.Expect(err).NotTo(HaveOccurred())
	other, err = secrets.ParseBundle(raw)
	g.Expect(err).NotTo(HaveOccurred())

	return other
}

// Each part that a cluster cannot change counts by itself.
func TestTheDigestTellsEachPart(t *testing.T) {
	g := NewWithT(t)
	bundle, second := bundles(t)
	other := second.Machinery()
	for name, edit := range map[string]func(*machinery.Bundle){
		"the CA of the Talos API":         func(b *machinery.Bundle) { b.Certs.OS = other.Certs.OS },
		"the CA of Kubernetes":            func(b *machinery.Bundle) { b.Certs.K8s = other.Certs.K8s },
		"the CA of etcd":                  func(b *machinery.Bundle) { b.Certs.Etcd = other.Certs.Etcd },
		"the CA of the aggregation layer": func(b *machinery.Bundle) { b.Certs.K8sAggregator = other.Certs.K8sAggregator },
		"the service account key":         func(b *machinery.Bundle) { b.Certs.K8sServiceAccount = other.Certs.K8sServiceAccount },
		"the ID":                          func(b *machinery.Bundle) { b.Cluster.ID = other.Cluster.ID },
		"the secret":                      func(b *machinery.Bundle) { b.Cluster.Secret = other.Cluster.Secret },
		"the token":                       func(b *machinery.Bundle) { b.TrustdInfo.Token = other.TrustdInfo.Token },
	} {
		g.Expect(edited(g, bundle, edit).Digest()).NotTo(Equal(bundle.Digest()), name)
	}
	for name, edit := range map[string]func(*machinery.Bundle){
		"the key of secretbox": func(b *machinery.Bundle) {
			b.Secrets.SecretboxEncryptionSecret = other.Secrets.SecretboxEncryptionSecret
		},
		"the algorithm": func(b *machinery.Bundle) {
			b.Secrets.SecretboxEncryptionSecret, b.Secrets.AESCBCEncryptionSecret = "", b.Secrets.SecretboxEncryptionSecret
		},
	} {
		changed := edited(g, bundle, edit)
		g.Expect(changed.Digest()).To(Equal(bundle.Digest()), "it stays comparable with what was recorded: "+name)
		g.Expect(changed.EncryptionDigest()).NotTo(Equal(bundle.EncryptionDigest()), name)
	}
	g.Expect(edited(g, bundle, func(*machinery.Bundle) {}).EncryptionDigest()).To(Equal(bundle.EncryptionDigest()))

	// Who has not got the bundle cannot try keys.
	keyed := edited(g, bundle, func(b *machinery.Bundle) { b.Certs.K8sServiceAccount = other.Certs.K8sServiceAccount })
	g.Expect(keyed.EncryptionDigest()).NotTo(Equal(bundle.EncryptionDigest()))
}

// A configuration of a control plane is of a bundle only if all keys are.
func TestMadeTellsAConfigurationOfOtherKeys(t *testing.T) {
	g := NewWithT(t)
	bundle, second := bundles(t)
	render := func(role configgen.Role) []byte {
		rendered, err := configgen.Render(configgen.Input{
			Role: role, Contract: "v1.13", ClusterName: "one", Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3", Secrets: bundle.Machinery(),
		})
		g.Expect(err).NotTo(HaveOccurred())

		return rendered
	}
	etcd := edited(g, bundle, func(b *machinery.Bundle) { b.Certs.Etcd = second.Machinery().Certs.Etcd })
	for name, tc := range map[string]struct {
		bundle                *secrets.Bundle
		controlPlane, workers bool
	}{
		"its bundle": {bundle, true, true}, "one with another CA of etcd": {etcd, false, true}, "another one": {second, false, false},
	} {
		made, err := tc.bundle.Made(render(configgen.RoleControlPlane))
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(made).To(Equal(tc.controlPlane), name)
		// A worker has the CA of the Talos API alone.
		made, err = tc.bundle.Made(render(configgen.RoleWorker))
		g.Expect(err).NotTo(HaveOccurred(), name)
		g.Expect(made).To(Equal(tc.workers), name)
	}
}

// What cannot be read tells nothing of the machine that has it.
func TestWhatIsNoConfigurationIsAnError(t *testing.T) {
	g := NewWithT(t)
	bundle, _ := bundles(t)
	const link = "apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\n"
	for name, data := range map[string]string{"no YAML": "\tpassword", "a document about a link alone": link} {
		_, err := bundle.Made([]byte(data))
		g.Expect(err).To(MatchError(And(ContainSubstring("it is none"), Not(ContainSubstring("password")))), name)
		_, err = bundle.IsAdmitted([]byte(data))
		g.Expect(err).To(MatchError(And(ContainSubstring("it is none"), Not(ContainSubstring("password")))), name)
	}
}
