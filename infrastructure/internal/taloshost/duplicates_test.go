package taloshost

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const (
	uuid  = "4c4c4544-0042-3510-8053-b4c04f4d4e31"
	other = "4c4c4544-0042-3510-8053-b4c04f4d4e32"
)

func host(name, address string, changes ...func(*infrav1.TalosHost)) infrav1.TalosHost {
	h := infrav1.TalosHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.Unix(1<<30, 0)},
		Spec:       infrav1.TalosHostSpec{Addresses: []string{address}},
	}
	for _, change := range changes {
		change(&h)
	}

	return h
}

func tells(id string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) { h.Status.Hardware.SystemUUID = id }
}

func TestDuplicateOf(t *testing.T) {
	later := func(h *infrav1.TalosHost) { h.CreationTimestamp = metav1.Unix(1<<30+60, 0) }
	claimed := func(h *infrav1.TalosHost) { h.Spec.ConsumerRef.Name = "m" }
	tests := map[string]struct {
		host, other infrav1.TalosHost
		told        string
		duplicate   bool
	}{
		"two machines":                                   {host: host("b", "192.0.2.2"), other: host("a", "192.0.2.1", tells(uuid)), told: other},
		"one address":                                    {host: host("b", "192.0.2.1"), other: host("a", "192.0.2.1"), duplicate: true},
		"one address, written in two ways":               {host: host("b", "2001:DB8::1"), other: host("a", "2001:db8:0::1"), duplicate: true},
		"one address, the one written as IPv6":           {host: host("b", "::ffff:192.0.2.1"), other: host("a", "192.0.2.1"), duplicate: true},
		"one name, written in two ways":                  {host: host("b", "Node.example.com"), other: host("a", "node.example.com"), duplicate: true},
		"an address that the other is given":             {host: host("b", "192.0.2.1"), other: host("a", "192.0.2.9", func(h *infrav1.TalosHost) { h.Spec.Network.Addresses = []string{"192.0.2.1/24"} }), duplicate: true},
		"one identity at two addresses":                  {host: host("b", "192.0.2.2"), other: host("a", "192.0.2.1", tells(uuid)), told: uuid, duplicate: true},
		"an identity that the other names, and not told": {host: host("b", "192.0.2.2"), other: host("a", "192.0.2.1", func(h *infrav1.TalosHost) { h.Spec.Identity.UUID = uuid }), told: uuid, duplicate: true},
		"an identity that it names, and another one told": {
			host: host("b", "192.0.2.2"), other: host("a", "192.0.2.1", tells(other), func(h *infrav1.TalosHost) { h.Spec.Identity.UUID = uuid }), told: uuid, duplicate: true,
		},
		"the first is not the second's twin":          {host: host("a", "192.0.2.1"), other: host("b", "192.0.2.1")},
		"the older one is the first":                  {host: host("b", "192.0.2.1"), other: host("a", "192.0.2.1", later)},
		"the one in use is the first":                 {host: host("a", "192.0.2.1"), other: host("b", "192.0.2.1", later, claimed), duplicate: true},
		"nobody is the duplicate of a silent machine": {host: host("b", "192.0.2.2"), other: host("a", "192.0.2.1")},
		"a host is not its own twin":                  {host: host("a", "192.0.2.1"), other: host("a", "192.0.2.1", claimed)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			found := DuplicateOf(&tt.host, infrav1.HostIdentity{UUID: tt.told}, []infrav1.TalosHost{tt.host, tt.other}, RecordsUse)
			if !tt.duplicate {
				NewWithT(t).Expect(found).To(BeNil())
				return
			}
			NewWithT(t).Expect(found).To(HaveField("Name", tt.other.Name))
		})
	}
}

// TestDuplicateOfOtherNamespaces: of two tenants, the one keeps the machine whose host has met it.
func TestDuplicateOfOtherNamespaces(t *testing.T) {
	const mac = "52:54:00:12:34:56"
	theirs := func(h *infrav1.TalosHost) { h.Namespace = "tenant" }
	older := func(h *infrav1.TalosHost) { h.CreationTimestamp = metav1.Unix(1<<30-60, 0) }
	claimed := func(h *infrav1.TalosHost) { h.Spec.ConsumerRef.Name = "m" }
	answered := func(address string) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Status.Address = address }
	}
	also := func(address string) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Spec.Addresses = append(h.Spec.Addresses, address) }
	}
	names := func(id infrav1.HostIdentity) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Spec.Identity = id }
	}
	handedOver := func(h *infrav1.TalosHost) {
		h.Spec.Handover = infrav1.HostHandover{ProviderID: "talos://1", Identity: infrav1.HostIdentity{UUID: uuid}}
	}
	free := host("a", "192.0.2.1", answered("192.0.2.1"), tells(uuid))
	for name, tt := range map[string]struct {
		host, other infrav1.TalosHost
		told        infrav1.HostIdentity
		duplicate   bool
	}{
		"an older one that names the address": {host: free, told: infrav1.HostIdentity{UUID: uuid}, other: host("b", "192.0.2.1", theirs, older)},
		"an older one that names the address of a machine that nobody has seen": {
			host: host("a", "192.0.2.1"), other: host("b", "192.0.2.1", theirs, older),
		},
		"an older one with a machine of its own that names the address too": {
			host: free, told: infrav1.HostIdentity{UUID: uuid},
			other: host("b", "192.0.2.2", theirs, older, tells(other), answered("192.0.2.2"), also("192.0.2.1")),
		},
		"one in use that names the address too": {
			host: free, told: infrav1.HostIdentity{UUID: uuid},
			other: host("b", "192.0.2.2", theirs, older, claimed, tells(other), answered("192.0.2.2"), also("192.0.2.1")),
		},
		"one in use that names a hardware address of the machine": {
			host: host("a", "192.0.2.1"), told: infrav1.HostIdentity{MACAddresses: []string{mac}},
			other: host("b", "192.0.2.2", theirs, older, claimed, tells(other), names(infrav1.HostIdentity{UUID: other, MACAddresses: []string{mac}}), also("192.0.2.1")),
		},
		"an older one that names the machine too, and has met none": {
			host: host("a", "192.0.2.1", names(infrav1.HostIdentity{UUID: uuid})), told: infrav1.HostIdentity{UUID: uuid},
			other: host("b", "192.0.2.1", theirs, older, names(infrav1.HostIdentity{UUID: uuid})),
		},
		"one that was seen at the address": {
			host: host("a", "192.0.2.1"), other: host("b", "192.0.2.1", theirs, answered("192.0.2.1"), tells(uuid)), duplicate: true,
		},
		"one of the same name that was seen at the address": {
			host: host("a", "192.0.2.1"), other: host("a", "192.0.2.1", theirs, answered("192.0.2.1"), tells(uuid)), duplicate: true,
		},
		"one that was seen there, and names another address now": {
			host: host("a", "192.0.2.1"), other: host("b", "192.0.2.2", theirs, answered("192.0.2.1"), tells(uuid)),
		},
		"one that was seen at the address, beside an older one that was not": {
			host: host("a", "192.0.2.1", older), other: host("b", "192.0.2.1", theirs, answered("192.0.2.1"), tells(uuid)), duplicate: true,
		},
		"one that was seen at another address": {
			host: host("a", "node.example.com", older), told: infrav1.HostIdentity{UUID: uuid},
			other: host("b", "192.0.2.1", theirs, answered("192.0.2.1"), tells(uuid)), duplicate: true,
		},
		"one that was handed over, and lost its status": {
			host: host("a", "192.0.2.1", older), told: infrav1.HostIdentity{UUID: uuid}, other: host("b", "192.0.2.1", theirs, handedOver), duplicate: true,
		},
		"one that names the machine that an older one finds by its address": {
			host: host("a", "192.0.2.1", older), told: infrav1.HostIdentity{UUID: uuid},
			other: host("b", "192.0.2.1", theirs, names(infrav1.HostIdentity{UUID: uuid})), duplicate: true,
		},
		"an older one that names the machine of one that was seen": {
			host: free, told: infrav1.HostIdentity{UUID: uuid}, other: host("b", "192.0.2.2", theirs, older, names(infrav1.HostIdentity{UUID: uuid})),
		},
		"of two that were seen the older one": {
			host: free, told: infrav1.HostIdentity{UUID: uuid}, other: host("b", "192.0.2.1", theirs, older, answered("192.0.2.1"), tells(uuid)), duplicate: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			found := DuplicateOf(&tt.host, tt.told, []infrav1.TalosHost{tt.host, tt.other}, RecordsUse)
			NewWithT(t).Expect(found != nil).To(Equal(tt.duplicate))
		})
	}
}

func TestDuplicateInUse(t *testing.T) {
	const address = "192.0.2.1"
	later := func(h *infrav1.TalosHost) { h.CreationTimestamp = metav1.Unix(1<<30+60, 0) }
	released := func(h *infrav1.TalosHost) { h.Spec.Release.Policy = infrav1.ReleaseWipeSystem }
	handedOver := func(h *infrav1.TalosHost) { h.Spec.Handover.ProviderID = "talos://1" }
	for name, tt := range map[string]struct {
		host, other infrav1.TalosHost
		duplicate   bool
	}{
		"a free one does not count":                   {host: host("b", address, released), other: host("a", address)},
		"another machine does not count":              {host: host("b", address, released), other: host("a", "192.0.2.2", handedOver)},
		"the older one is the first":                  {host: host("b", address, released), other: host("a", address, released), duplicate: true},
		"the younger one is not":                      {host: host("a", address, released), other: host("b", address, released)},
		"one that was handed over is the first":       {host: host("a", address, released), other: host("b", address, later, handedOver), duplicate: true},
		"one that was not does not hold up one that":  {host: host("b", address, later, released, handedOver), other: host("a", address, released)},
		"of two that were the older one is the first": {host: host("b", address, later, released, handedOver), other: host("a", address, handedOver), duplicate: true},
		"and the younger one is not":                  {host: host("a", address, released, handedOver), other: host("b", address, later, handedOver)},
	} {
		t.Run(name, func(t *testing.T) {
			found := DuplicateInUse(&tt.host, infrav1.HostIdentity{}, []infrav1.TalosHost{tt.host, tt.other}, RecordsUse)
			NewWithT(t).Expect(found != nil).To(Equal(tt.duplicate))
		})
	}
	mine, theirs := host("b", address, released), host("a", address, handedOver)
	nobody := func(*infrav1.TalosHost) bool { return false }
	NewWithT(t).Expect(DuplicateInUse(&mine, infrav1.HostIdentity{}, []infrav1.TalosHost{theirs}, nobody)).To(BeNil(), "its records are not believed")
}

func TestDuplicateText(t *testing.T) {
	mine, beside, foreign := host("a", "192.0.2.1"), host("b", "192.0.2.1"), host("b", "192.0.2.1", func(h *infrav1.TalosHost) { h.Namespace = "tenant" })
	NewWithT(t).Expect(DuplicateText(&mine, &beside)).To(Equal("TalosHost b"))
	NewWithT(t).Expect(DuplicateText(&mine, &foreign)).To(Equal("A TalosHost of another namespace"))
}
