package talosclient

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
)

func TestTheAddressesOfANode(t *testing.T) {
	t.Parallel()
	ips := func(texts ...string) []netip.Addr {
		var parsed []netip.Addr
		for _, text := range texts {
			parsed = append(parsed, netip.MustParseAddr(text))
		}
		return parsed
	}
	for sentence, tt := range map[string]struct {
		told told
		want Addresses
	}{
		"nothing is known yet": {},
		"one network": {
			told{nodeIPs: ips("10.0.0.1"), lists: map[string][]netip.Addr{"current": ips("10.0.0.1"), "routed": ips("10.0.0.1")}},
			Addresses{Node: []string{"10.0.0.1"}},
		},
		"two networks, of which the second is that of the Node": {
			told{nodeIPs: ips("10.9.0.1"), lists: map[string][]netip.Addr{"current": ips("10.0.0.1", "10.9.0.1"), "routed": ips("10.0.0.1", "10.9.0.1")}},
			Addresses{Node: []string{"10.9.0.1"}, Internal: []string{"10.0.0.1"}},
		},
		"external ones": {
			told{nodeIPs: ips("10.0.0.1"), lists: map[string][]netip.Addr{"current": ips("10.0.0.1", "192.0.2.1"), "routed": ips("10.0.0.1")}},
			Addresses{Node: []string{"10.0.0.1"}, External: []string{"192.0.2.1"}},
		},
		"without a Node": {
			told{lists: map[string][]netip.Addr{"current": ips("10.0.0.1"), "routed": ips("10.0.0.1")}}, Addresses{Internal: []string{"10.0.0.1"}},
		},
		"without those of Pods and Services": {
			told{nodeIPs: ips("10.0.0.1"), lists: map[string][]netip.Addr{
				"current": ips("10.0.0.1", "10.244.0.1"), "routed": ips("10.0.0.1", "10.244.0.1"),
				"current-no-k8s": ips("10.0.0.1"), "routed-no-k8s": ips("10.0.0.1"), "current-only-k8s": ips("10.244.0.1"),
			}},
			Addresses{Node: []string{"10.0.0.1"}},
		},
		"without virtual and link-local ones, and those on links of others": {
			told{
				nodeIPs: ips("fe80::1", "10.0.0.1"), virtual: ips("10.0.0.100"), linked: ips("10.0.0.200", "fdae:41e4:649b:9303::1", "fd83:b1f7:fcb5:2802::1"),
				lists: map[string][]netip.Addr{
					"current": ips("10.0.0.1", "10.0.0.100", "10.0.0.200", "169.254.1.1", "fe80::1", "fdae:41e4:649b:9303::1", "fd83:b1f7:fcb5:2802::1"),
					"routed":  ips("10.0.0.1", "10.0.0.100", "10.0.0.200", "fd83:b1f7:fcb5:2802::1"),
				},
			},
			Addresses{Node: []string{"10.0.0.1"}},
		},
		"a virtual one is that of the Node": {
			told{nodeIPs: ips("10.0.0.100"), virtual: ips("10.0.0.100"), lists: map[string][]netip.Addr{"routed": ips("10.0.0.100")}},
			Addresses{Node: []string{"10.0.0.100"}},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(tt.told.addresses()).To(Equal(tt.want))
		})
	}
}
