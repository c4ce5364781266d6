// Package twins finds TalosHosts that stand for one machine: only the first of
// them may be worked with. It is pure.
package twins

import (
	"net/netip"
	"slices"
	"strings"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/contact"
	"github.com/capi-talos/capi-talos/infrastructure/internal/identity"
)

// Used tells whether a host is in use, as far as its records (see Recorded) can be
// believed.
type Used func(host *infrav1.TalosHost) bool

// Of finds another host that names an address of host too, or stands for the
// machine of the given identity, and that goes before it; nil when there is none.
func Of(host *infrav1.TalosHost, told infrav1.HostIdentity, others []infrav1.TalosHost, used Used) *infrav1.TalosHost {
	for i := range others {
		if other := &others[i]; AreTwins(host, told, other) && isFirst(other, host, used) {
			return other
		}
	}

	return nil
}

// OfReleased finds another host in use that stands for the machine of a host that is
// being released, and for whose sake it is not wiped; nil when there is none. One that
// was handed over goes before one that never was; otherwise the order is that of Of.
func OfReleased(host *infrav1.TalosHost, told infrav1.HostIdentity, others []infrav1.TalosHost, used Used) *infrav1.TalosHost {
	for i := range others {
		other := &others[i]
		if !AreTwins(host, told, other) || !used(other) {
			continue
		}
		mine, theirs := isClaimed(host), isClaimed(other)
		if (theirs && !mine) || (theirs == mine && isFirst(other, host, used)) {
			return other
		}
	}

	return nil
}

// Text is how the conditions of host call another host. Those of another namespace are
// none of its users' business.
func Text(host, other *infrav1.TalosHost) string {
	if other.Namespace != host.Namespace {
		return "A TalosHost of another namespace"
	}

	return "TalosHost " + other.Name
}

// AreTwins tells whether other names an address of host, or stands for a machine
// of the identity that host's machine has told. Nothing told is nobody's twin.
func AreTwins(host *infrav1.TalosHost, told infrav1.HostIdentity, other *infrav1.TalosHost) bool {
	if other.Namespace == host.Namespace && other.Name == host.Name {
		return false
	}

	return shareAddress(host, other) || identity.Same(told, identity.Told(other)) || identity.Same(told, identity.Wanted(other))
}

func shareAddress(a, b *infrav1.TalosHost) bool {
	mine, theirs := addressesOf(a), addressesOf(b)

	return slices.ContainsFunc(mine, func(address string) bool { return slices.Contains(theirs, address) })
}

// addressesOf are the addresses of a host, each in one way of writing it.
func addressesOf(host *infrav1.TalosHost) []string {
	addresses := contact.Addresses(host)
	for i, address := range addresses {
		if ip, err := netip.ParseAddr(address); err == nil {
			addresses[i] = ip.Unmap().String()
			continue
		}
		addresses[i] = strings.ToLower(address)
	}

	return addresses
}

// isFirst tells whether host a goes before host b: one in use does, else the
// older one.
func isFirst(a, b *infrav1.TalosHost, used Used) bool {
	if usedByA := used(a); usedByA != used(b) {
		return usedByA
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}

	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) < 0
}

// Recorded tells whether a host records that it is in use.
func Recorded(host *infrav1.TalosHost) bool {
	return isClaimed(host) || host.Spec.Release.Policy != ""
}

func isClaimed(host *infrav1.TalosHost) bool {
	return host.Spec.ConsumerRef.Name != "" || host.Spec.Handover.ProviderID != ""
}
