package taloshost

import (
	"context"
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Verdict is what a comparison of identities has found.
type Verdict string

const (
	// IdentityMatches says that the machine is the wanted one.
	IdentityMatches Verdict = "Matches"
	// IdentityDiscovered says that nothing was wanted, and that the machine has a usable
	// identity.
	IdentityDiscovered Verdict = "Discovered"
	// IdentityMismatch says that the machine is another one, or cannot prove that it is
	// the wanted one.
	IdentityMismatch Verdict = "Mismatch"
	// IdentityUnusable says that there is nothing to tell the machine from others by:
	// nothing was wanted and the machine has nothing, or what was wanted is told
	// by several machines.
	IdentityUnusable Verdict = "Unusable"
)

// OK reports whether the machine may be worked with.
func (v Verdict) OK() bool {
	return v == IdentityMatches || v == IdentityDiscovered
}

// placeholders are UUIDs that vendors ship in many machines, beside those of
// one repeated byte.
var placeholders = []string{
	"00112233-4455-6677-8899-aabbccddeeff",
	"01020304-0506-0708-090a-0b0c0d0e0f10",
	"11111111-2222-3333-4444-555555555555",
	"6ab5b300-538d-1014-9fb5-b0684d007b53",
	"03000200-0400-0500-0006-000700080009",
	"00020003-0004-0005-0006-000700080009",
	"12345678-1234-5678-90ab-cddeefaabbcc",
	"12345678-1234-1234-1234-123456789abc",
	"01234567-8910-1112-1314-151617181920",
	"4c4c4544-0000-2010-8020-80c04f202020",
}

// UsableUUID reports whether uuid identifies a machine. Empty, repeated bytes
// (all zero, all F) and known placeholders do not.
func UsableUUID(uuid string) bool {
	const digitsOfUUID, bytesOfUUID = 32, 16
	uuid = strings.ToLower(uuid)
	digits := strings.ReplaceAll(uuid, "-", "")
	if len(digits) != digitsOfUUID || digits == strings.Repeat(digits[:2], bytesOfUUID) {
		return false
	}

	return !slices.Contains(placeholders, uuid)
}

// UsableMAC reports whether a hardware address may belong to one link only.
func UsableMAC(mac string) bool {
	switch strings.ToLower(mac) {
	case "", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff":
		return false
	}

	return true
}

// maxMACAddresses is how many hardware addresses a HostIdentity may name.
const maxMACAddresses = 32

// IdentityOf is the identity that a machine tells. Hardware addresses that somebody
// has made up (virtual functions get new ones at each boot) count only where
// there are no others. Of very many the first ones in their order count.
func IdentityOf(hardware talosclient.Hardware) infrav1.HostIdentity {
	found := infrav1.HostIdentity{}
	if UsableUUID(hardware.SystemUUID) {
		found.UUID = strings.ToLower(hardware.SystemUUID)
		found.SerialNumber = hardware.SerialNumber
	}
	var global, local []string
	for _, link := range hardware.Links {
		mac := strings.ToLower(link.HardwareAddress)
		switch {
		case !UsableMAC(mac) || len(mac) != len("00:00:00:00:00:00"):
		case isLocal(mac):
			local = append(local, mac)
		default:
			global = append(global, mac)
		}
	}
	found.MACAddresses = global
	if len(global) == 0 {
		found.MACAddresses = local
	}
	slices.Sort(found.MACAddresses)
	found.MACAddresses = slices.Compact(found.MACAddresses)
	found.MACAddresses = found.MACAddresses[:min(len(found.MACAddresses), maxMACAddresses)]

	return found
}

// isLocal tells a locally administered address: the second bit of its first
// byte is set.
func isLocal(mac string) bool {
	return strings.ContainsRune("2367abef", rune(mac[1]))
}

// AmbiguousUUIDs picks those of some UUIDs that are known from more than one machine.
// Such a UUID identifies none.
type AmbiguousUUIDs func(ctx context.Context, uuids ...string) ([]string, error)

// VerifyIdentity compares what a machine tells with what is wanted. UUIDs that are
// ambiguous are worth nothing.
func VerifyIdentity(want infrav1.HostIdentity, hardware talosclient.Hardware, ambiguous []string) Verdict {
	worthless := func(uuid string) bool {
		return !UsableUUID(uuid) || slices.ContainsFunc(ambiguous, func(other string) bool { return strings.EqualFold(uuid, other) })
	}
	if want.SerialNumber != "" && want.SerialNumber != hardware.SerialNumber {
		return IdentityMismatch
	}
	if !worthless(want.UUID) {
		if strings.EqualFold(want.UUID, hardware.SystemUUID) {
			return IdentityMatches
		}

		return IdentityMismatch
	}
	if len(want.MACAddresses) > 0 {
		return verifyLinks(want.MACAddresses, hardware.Links)
	}
	if want.UUID != "" || want.SerialNumber != "" {
		// Something was wanted, but it identifies no machine.
		return IdentityUnusable
	}
	told := IdentityOf(hardware)
	if (worthless(told.UUID)) && len(told.MACAddresses) == 0 {
		return IdentityUnusable
	}

	return IdentityDiscovered
}

func verifyLinks(want []string, links []talosclient.Link) Verdict {
	for _, mac := range want {
		has := slices.ContainsFunc(links, func(link talosclient.Link) bool {
			return strings.EqualFold(link.HardwareAddress, mac)
		})
		if !has || !UsableMAC(mac) {
			return IdentityMismatch
		}
	}

	return IdentityMatches
}

// WantedIdentity is the identity that the machine of a host must have: the one that
// the user has named, else the one of the hand-over, also of one that is undone
// to be made again, or of an adoption.
func WantedIdentity(host *infrav1.TalosHost) infrav1.HostIdentity {
	want := host.Spec.Identity
	if Identifies(want) {
		return want
	}
	if recorded := RecordedIdentity(host); Identifies(recorded) {
		return recorded
	}

	return want
}

// RecordedIdentity is the identity that the manager has written down before it acted; it is
// empty where it did not.
func RecordedIdentity(host *infrav1.TalosHost) infrav1.HostIdentity {
	for _, found := range []infrav1.HostIdentity{host.Spec.Handover.Identity, host.Spec.Reprovision.Previous.Identity, host.Spec.Release.Identity} {
		if Identifies(found) {
			return found
		}
	}

	return infrav1.HostIdentity{}
}

// ObservedIdentity is the identity of the machine that the manager has met as that of a free host,
// whatever the user names; it is empty where it has met none.
func ObservedIdentity(host *infrav1.TalosHost) infrav1.HostIdentity {
	return identityInStatus(host)
}

// ExpectedIdentity is WantedIdentity; where nobody has said what the machine must be, it is the one
// that has answered before. That the status remembers it is a help against
// swapped addresses, no more: where the status is lost any machine is taken, as
// it was at first.
func ExpectedIdentity(host *infrav1.TalosHost) infrav1.HostIdentity {
	want := WantedIdentity(host)
	if Identifies(want) {
		return want
	}
	if told := identityInStatus(host); Identifies(told) {
		told.SerialNumber = want.SerialNumber
		return told
	}

	return want
}

// Identifies reports whether an identity can tell one machine from all others.
func Identifies(identity infrav1.HostIdentity) bool {
	return UsableUUID(identity.UUID) || len(identity.MACAddresses) > 0
}

// IsSameMachine reports whether two identities are of one machine: a UUID that is usable
// and not seen on several machines, else a common hardware address.
func IsSameMachine(a, b infrav1.HostIdentity) bool {
	if UsableUUID(a.UUID) && UsableUUID(b.UUID) && !strings.EqualFold(a.UUID, b.UUID) {
		return false
	}
	common := slices.ContainsFunc(a.MACAddresses, func(mac string) bool {
		return UsableMAC(mac) && slices.ContainsFunc(b.MACAddresses, func(other string) bool { return strings.EqualFold(mac, other) })
	})
	if len(a.MACAddresses) > 0 && len(b.MACAddresses) > 0 {
		return common
	}

	return UsableUUID(a.UUID) && strings.EqualFold(a.UUID, b.UUID)
}

// KnownIdentity is what is known of the identity of a host: what its machine has told,
// else what the user has named.
func KnownIdentity(host *infrav1.TalosHost) infrav1.HostIdentity {
	if told := identityInStatus(host); Identifies(told) {
		return told
	}

	return WantedIdentity(host)
}

func identityInStatus(host *infrav1.TalosHost) infrav1.HostIdentity {
	hardware := talosclient.Hardware{SystemUUID: host.Status.Hardware.SystemUUID}
	for _, link := range host.Status.Hardware.Links {
		hardware.Links = append(hardware.Links, talosclient.Link{HardwareAddress: link.HardwareAddress})
	}

	return IdentityOf(hardware)
}

// isAmbiguous reports whether several machines tell a UUID. A machine that two hosts
// stand for is not several.
func isAmbiguous(uuid string, hosts []infrav1.TalosHost) bool {
	var first *infrav1.HostIdentity
	for i := range hosts {
		told := KnownIdentity(&hosts[i])
		switch {
		case !UsableUUID(told.UUID) || !strings.EqualFold(told.UUID, uuid):
		case first == nil:
			first = &told
		case !IsSameMachine(*first, told):
			return true
		}
	}

	return false
}
