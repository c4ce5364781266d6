package talosclient

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/resources/etcd"
	"go.yaml.in/yaml/v4"
)

func TestEtcdQuota(t *testing.T) {
	t.Parallel()
	for sentence, tt := range map[string]struct {
		spec string
		want int64
	}{
		"nothing is said":                {spec: "extraArgs: {}", want: DefaultEtcdQuota},
		"something else is said":         {spec: "extraArgs: {max-txn-ops: {values: [\"9\"]}}", want: DefaultEtcdQuota},
		"Talos v1.12":                    {spec: "extraArgs: {quota-backend-bytes: \"8589934592\"}", want: 8 << 30},
		"Talos v1.13 and later":          {spec: "extraArgs:\n  quota-backend-bytes:\n    values:\n      - \"8589934592\"", want: 8 << 30},
		"the last of two counts":         {spec: "extraArgs: {quota-backend-bytes: {values: [\"1\", \"2\"]}}", want: 2},
		"0 is the default":               {spec: "extraArgs: {quota-backend-bytes: {values: [\"0\"]}}", want: DefaultEtcdQuota},
		"a negative one switches it off": {spec: "extraArgs: {quota-backend-bytes: {values: [\"-1\"]}}"},
		"it is no number":                {spec: "extraArgs: {quota-backend-bytes: {values: [much]}}"},
		"it has another form":            {spec: "extraArgs: {quota-backend-bytes: [\"1\"]}"},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			got, err := etcdSpec([]byte("name: one\n" + tt.spec))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(EtcdSpec{Hostname: "one", QuotaBytes: tt.want}), "what else is said is known in any case")
		})
	}
}

func TestTheVersionOfEtcdIsThatOfItsImage(t *testing.T) {
	t.Parallel()
	const digest = "@sha256:9d4d0b1a9a3a1f1b8f3e2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f"
	for image, want := range map[string]string{
		"registry.k8s.io/etcd:v3.6.12":            "3.6.12",
		"registry.k8s.io/etcd:3.7.1":              "3.7.1",
		"registry.k8s.io/etcd:3.6.5-0":            "3.6.5-0",
		"registry.example.com:5000/etcd:v3.6.12":  "3.6.12",
		"registry.k8s.io/etcd:v3.6.12" + digest:   "3.6.12",
		"registry.k8s.io/etcd" + digest:           "",
		"registry.example.com:5000/etcd":          "",
		"registry.example.com:5000/etcd" + digest: "",
		"registry.example.com/etcd:latest":        "",
		"registry.example.com:5000/of/etcd:v3":    "",
		"":                                        "",
	} {
		t.Run(image, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			got, err := etcdSpec([]byte("name: one\nimage: \"" + image + "\""))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(EtcdSpec{Hostname: "one", QuotaBytes: DefaultEtcdQuota, Version: want}))
		})
	}
}

func TestWhereEtcdSaysItIs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	spec := etcd.NewSpec(etcd.NamespaceName, etcd.SpecID)
	spec.TypedSpec().Name, spec.TypedSpec().Image = "one", "registry.k8s.io/etcd:v3.6.12"
	spec.TypedSpec().AdvertisedAddresses = []netip.Addr{netip.MustParseAddr("10.9.0.4"), netip.MustParseAddr("fd00::4")}
	text, err := yaml.Marshal(spec.TypedSpec())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(etcdSpec(text)).To(Equal(EtcdSpec{
		Hostname: "one", AdvertisedAddresses: []string{"10.9.0.4", "fd00::4"}, QuotaBytes: DefaultEtcdQuota, Version: "3.6.12",
	}))
	_, err = etcdSpec([]byte("advertisedAddresses: much"))
	g.Expect(err).To(HaveOccurred())
}

func TestAMemberIsAtAnAddressHoweverItIsWritten(t *testing.T) {
	t.Parallel()
	for host, tt := range map[string]struct {
		peerURL string
		want    bool
	}{
		"10.0.0.1":        {"https://10.0.0.1:2380", true},
		"10.0.0.2":        {"https://10.0.0.1:2380", false},
		"::ffff:10.0.0.1": {"https://10.0.0.1:2380", true},
		"10.0.0.3":        {"https://[::ffff:10.0.0.3]:2380", true},
		"fd00:0:0:0::1":   {"https://[fd00::1]:2380", true},
		"FD00::2":         {"https://[fd00::2]:2380", true},
		"fd00::3":         {"https://[fd00::2]:2380", false},
		"one.example.com": {"https://one.example.com:2380", true},
		"two.example.com": {"https://one.example.com:2380", false},
		"":                {"https://10.0.0.1:2380", false},
	} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			member := EtcdMember{PeerURLs: []string{"%", tt.peerURL}}
			NewWithT(t).Expect(member.IsAt([]string{"192.0.2.1", host})).To(Equal(tt.want))
		})
	}
}
