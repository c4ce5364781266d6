package taloshost

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const (
	uuidA = "4c4c4544-0042-3510-8053-b4c04f4d4e31"
	uuidB = "4c4c4544-0042-3510-8053-b4c04f4d4e32"
	macA  = "52:54:00:aa:00:01"
	macB  = "b0:26:28:00:00:02"
)

func machine(uuid string, macs ...string) talosclient.Hardware {
	hardware := talosclient.Hardware{SystemUUID: uuid}
	for _, mac := range macs {
		hardware.Links = append(hardware.Links, talosclient.Link{Name: "eth", HardwareAddress: mac})
	}

	return hardware
}

func TestVerifyIdentity(t *testing.T) {
	tests := map[string]struct {
		want      infrav1.HostIdentity
		hardware  talosclient.Hardware
		ambiguous []string
		verdict   Verdict
	}{
		"the UUID decides, whatever its case": {
			want:     infrav1.HostIdentity{UUID: "4C4C4544-0042-3510-8053-B4C04F4D4E31"},
			hardware: machine(uuidA, macA),
			verdict:  IdentityMatches,
		},
		"the UUID decides although a network card was changed": {
			want:     infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macA}},
			hardware: machine(uuidA, macB),
			verdict:  IdentityMatches,
		},
		"another UUID is another machine although it has the network card": {
			want:     infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macA}},
			hardware: machine(uuidB, macA),
			verdict:  IdentityMismatch,
		},
		"a machine that tells no UUID cannot prove one": {
			want:     infrav1.HostIdentity{UUID: uuidA},
			hardware: machine("", macA),
			verdict:  IdentityMismatch,
		},
		"a placeholder leaves it to the hardware addresses": {
			want:     infrav1.HostIdentity{UUID: "03000200-0400-0500-0006-000700080009", MACAddresses: []string{macA}},
			hardware: machine("03000200-0400-0500-0006-000700080009", macA),
			verdict:  IdentityMatches,
		},
		"a placeholder alone identifies nothing": {
			want:     infrav1.HostIdentity{UUID: "00000000-0000-0000-0000-000000000000"},
			hardware: machine("00000000-0000-0000-0000-000000000000", macA),
			verdict:  IdentityUnusable,
		},
		"a UUID that is ambiguous, and nothing else, identifies nothing": {
			want:      infrav1.HostIdentity{UUID: uuidA},
			hardware:  machine(uuidA, macA),
			ambiguous: []string{uuidA},
			verdict:   IdentityUnusable,
		},
		"an ambiguous UUID leaves it to the hardware addresses": {
			want:      infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macB}},
			hardware:  machine(uuidA, macA),
			ambiguous: []string{uuidA},
			verdict:   IdentityMismatch,
		},
		"all wanted hardware addresses must be there": {
			want:     infrav1.HostIdentity{MACAddresses: []string{macA, macB}},
			hardware: machine("", macA),
			verdict:  IdentityMismatch,
		},
		"further links do no harm": {
			want:     infrav1.HostIdentity{MACAddresses: []string{macA}},
			hardware: machine("", macB, macA),
			verdict:  IdentityMatches,
		},
		"another serial number is another machine": {
			want:     infrav1.HostIdentity{UUID: uuidA, SerialNumber: "X1"},
			hardware: machine(uuidA, macA),
			verdict:  IdentityMismatch,
		},
		"nothing wanted takes a machine with an identity": {
			hardware: machine("", macA),
			verdict:  IdentityDiscovered,
		},
		"nothing wanted refuses a machine without any": {
			hardware: machine("ffffffff-ffff-ffff-ffff-ffffffffffff", "00:00:00:00:00:00"),
			verdict:  IdentityUnusable,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(VerifyIdentity(tt.want, tt.hardware, tt.ambiguous)).To(Equal(tt.verdict))
		})
	}
}

func TestIdentityOf(t *testing.T) {
	t.Run("addresses that were made up count only where there are no others", func(t *testing.T) {
		g := NewWithT(t)
		g.Expect(IdentityOf(machine("", macA, macB)).MACAddresses).To(Equal([]string{macB}))
		g.Expect(IdentityOf(machine("", macA)).MACAddresses).To(Equal([]string{macA}))
	})
	t.Run("a placeholder is not told", func(t *testing.T) {
		NewWithT(t).Expect(IdentityOf(machine("ffffffff-ffff-ffff-ffff-ffffffffffff", macA)).UUID).To(BeEmpty())
	})
}

func TestIsSameMachine(t *testing.T) {
	tests := map[string]struct {
		a, b infrav1.HostIdentity
		same bool
	}{
		"one UUID and one card":          {infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macA}}, infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macA}}, true},
		"one UUID on two sets of cards":  {infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macA}}, infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macB}}, false},
		"two UUIDs and one card":         {infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macA}}, infrav1.HostIdentity{UUID: uuidB, MACAddresses: []string{macA}}, false},
		"one UUID and no cards known":    {infrav1.HostIdentity{UUID: uuidA}, infrav1.HostIdentity{UUID: uuidA}, true},
		"nothing known":                  {infrav1.HostIdentity{}, infrav1.HostIdentity{}, false},
		"no UUID and one card in common": {infrav1.HostIdentity{MACAddresses: []string{macA, macB}}, infrav1.HostIdentity{MACAddresses: []string{macB}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(IsSameMachine(tt.a, tt.b)).To(Equal(tt.same))
		})
	}
}

func TestIdentitiesThatAreNone(t *testing.T) {
	for name, uuid := range map[string]string{
		"nothing":                 "",
		"all zero":                "00000000-0000-0000-0000-000000000000",
		"all F":                   "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
		"one byte again":          "fefefefe-fefe-fefe-fefe-fefefefefefe",
		"a vendor's placeholder":  "03000200-0400-0500-0006-000700080009",
		"the same, bytes swapped": "00020003-0004-0005-0006-000700080009",
		"no UUID":                 "Not Settable",
	} {
		t.Run(name, func(t *testing.T) { NewWithT(t).Expect(UsableUUID(uuid)).To(BeFalse()) })
	}
	t.Run("a UUID that two machines tell", func(t *testing.T) {
		g := NewWithT(t)
		tells := func(name, mac string) infrav1.TalosHost {
			host := infrav1.TalosHost{}
			host.Name = name
			host.Status.Hardware = infrav1.HostHardware{SystemUUID: uuidA, Links: []infrav1.HostLink{{Name: "eno1", HardwareAddress: mac}}}

			return host
		}
		g.Expect(isAmbiguous(uuidA, []infrav1.TalosHost{tells("a", macA), tells("b", macB)})).To(BeTrue())
		g.Expect(isAmbiguous(uuidA, []infrav1.TalosHost{tells("a", macA), tells("b", macA)})).To(BeFalse(), "two hosts for one machine")
	})
}

func TestExpectedIdentity(t *testing.T) {
	host := infrav1.TalosHost{}
	host.Status.Hardware = infrav1.HostHardware{SystemUUID: uuidA, Links: []infrav1.HostLink{{Name: "eno1", HardwareAddress: macB}}}
	g := NewWithT(t)
	g.Expect(ExpectedIdentity(&host)).To(Equal(infrav1.HostIdentity{UUID: uuidA, MACAddresses: []string{macB}}), "the machine that has answered before")
	host.Spec.Identity.SerialNumber = "X1"
	g.Expect(ExpectedIdentity(&host).SerialNumber).To(Equal("X1"))
	g.Expect(ExpectedIdentity(&host).UUID).To(Equal(uuidA))
	host.Spec.Reprovision.Previous.Identity.UUID = uuidB
	g.Expect(ExpectedIdentity(&host).UUID).To(Equal(uuidB), "the one that is to be configured again")
	host.Spec.Reprovision = infrav1.HostReprovision{}
	host.Spec.Handover.Identity.UUID = uuidB
	g.Expect(ExpectedIdentity(&host).UUID).To(Equal(uuidB))
	host.Spec.Identity = infrav1.HostIdentity{MACAddresses: []string{macA}}
	g.Expect(ExpectedIdentity(&host)).To(Equal(host.Spec.Identity))
	g.Expect(ExpectedIdentity(&infrav1.TalosHost{})).To(BeZero())
}

func TestAnIdentityNamesNoMoreAddressesThanItMay(t *testing.T) {
	g := NewWithT(t)
	var told talosclient.Hardware
	for i := range 90 {
		told.Links = append(told.Links, talosclient.Link{HardwareAddress: fmt.Sprintf("b0:26:28:00:00:%02x", 89-i)})
	}
	found := IdentityOf(told)
	g.Expect(found.MACAddresses).To(HaveLen(32))
	g.Expect(found.MACAddresses[0]).To(Equal("b0:26:28:00:00:00"))
	g.Expect(VerifyIdentity(found, told, nil)).To(Equal(IdentityMatches))
}
