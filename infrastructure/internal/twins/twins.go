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

// Of names another host that names an address of host too, or stands for the
// machine of the given identity, and that goes before it; empty when there is
// none.
func Of(host *infrav1.TalosHost, told infrav1.HostIdentity, others []infrav1.TalosHost) string {
	for i := range others {
		if other := &others[i]; AreTwins(host, told, other) && IsFirst(other, host) {
			return other.Namespace + "/" + other.Name
		}
	}

	return ""
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

// IsFirst tells whether host a goes before host b: one in use does, else the
// older one.
func IsFirst(a, b *infrav1.TalosHost) bool {
	if isInUse(a) != isInUse(b) {
		return isInUse(a)
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}

	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) < 0
}

func isInUse(host *infrav1.TalosHost) bool {
	return host.Spec.ConsumerRef.Name != "" || host.Spec.Handover.ProviderID != "" || host.Spec.Release.Policy != ""
}
