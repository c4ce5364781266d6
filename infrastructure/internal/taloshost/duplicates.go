package taloshost

import (
	"net/netip"
	"slices"
	"strings"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Used reports whether a host is in use, as far as its records (see RecordsUse) can be
// believed.
type Used func(host *infrav1.TalosHost) bool

// DuplicateOf finds another host that names an address of host too, or stands for the
// machine of the given identity, and that goes before it; nil when there is none.
func DuplicateOf(host *infrav1.TalosHost, told infrav1.HostIdentity, others []infrav1.TalosHost, used Used) *infrav1.TalosHost {
	for i := range others {
		if other := &others[i]; AreDuplicates(host, told, other, used) && isFirst(other, host, told, used) {
			return other
		}
	}

	return nil
}

// DuplicateInUse finds another host in use that stands for the machine of a host that is
// being released, and for whose sake it is not wiped; nil when there is none. One that
// was handed over goes before one that never was; otherwise the order is that of DuplicateOf.
func DuplicateInUse(host *infrav1.TalosHost, told infrav1.HostIdentity, others []infrav1.TalosHost, used Used) *infrav1.TalosHost {
	for i := range others {
		other := &others[i]
		if !AreDuplicates(host, told, other, used) || !used(other) {
			continue
		}
		mine, theirs := isClaimed(host), isClaimed(other)
		if (theirs && !mine) || (theirs == mine && isFirst(other, host, told, used)) {
			return other
		}
	}

	return nil
}

// DuplicateAhead finds another host in use to which the machine of a claimed host is left, which
// is about to be given a configuration; nil when there is none. It is one whose machine was
// handed over, or is about to be. Where the host itself has no hand-over yet, it is also one that
// goes before it: of two that were claimed in one moment, one waits from the start.
func DuplicateAhead(host *infrav1.TalosHost, told infrav1.HostIdentity, others []infrav1.TalosHost, used Used) *infrav1.TalosHost {
	for i := range others {
		other := &others[i]
		if !AreDuplicates(host, told, other, used) || !used(other) {
			continue
		}
		if other.Spec.Handover.ProviderID != "" || (host.Spec.Handover.ProviderID == "" && isFirst(other, host, told, used)) {
			return other
		}
	}

	return nil
}

// DuplicateText is how the conditions of host call another host. Those of another namespace are
// none of its users' business.
func DuplicateText(host, other *infrav1.TalosHost) string {
	if other.Namespace != host.Namespace {
		return "A TalosHost of another namespace"
	}

	return "TalosHost " + other.Name
}

// AreDuplicates reports whether other names an address of host, or stands for a machine
// of the identity that host's machine has told. Nothing told is a duplicate of nothing. What
// the users of another namespace only name keeps nobody here from anything, but for the
// identity of a machine that host is to find by its address alone: of their hosts that
// counts what the manager has seen.
func AreDuplicates(host *infrav1.TalosHost, told infrav1.HostIdentity, other *infrav1.TalosHost, used Used) bool {
	switch {
	case other.Namespace != host.Namespace:
		theirs := metIdentity(other, used)
		if !Identifies(theirs) && !Identifies(host.Spec.Identity) {
			theirs = other.Spec.Identity
		}
		return answersAt(other, host) || IsSameMachine(told, theirs)
	case other.Name == host.Name:
		return false
	}

	return shareAddress(host, other) || IsSameMachine(told, KnownIdentity(other)) || IsSameMachine(told, WantedIdentity(other))
}

// answersAt reports whether the machine of seen has answered at an address that host
// names too.
func answersAt(seen, host *infrav1.TalosHost) bool {
	address := normal(seen.Status.Address)

	return address != "" && slices.Contains(addressesOf(seen), address) && slices.Contains(addressesOf(host), address)
}

// metIdentity is the identity of the machine that the manager has met. Records are worth what
// the use is worth that they tell of.
func metIdentity(host *infrav1.TalosHost, used Used) infrav1.HostIdentity {
	if told := ObservedIdentity(host); Identifies(told) || !used(host) {
		return told
	}

	return RecordedIdentity(host)
}

// Titles to a machine that hosts of two namespaces stand for, the weakest first.
const (
	namesAddress = iota
	namesIdentity
	wasSeen
)

// title is what a host has to show for it that other, whose machine has told what it
// is, is the wrong one: the manager has met its machine, or its users know more of it than
// an address.
func title(host, other *infrav1.TalosHost, told infrav1.HostIdentity, used Used) int {
	met := metIdentity(host, used)
	switch {
	case answersAt(host, other), IsSameMachine(met, told), IsSameMachine(met, WantedIdentity(other)):
		return wasSeen
	case Identifies(host.Spec.Identity):
		return namesIdentity
	}

	return namesAddress
}

func shareAddress(a, b *infrav1.TalosHost) bool {
	mine, theirs := addressesOf(a), addressesOf(b)

	return slices.ContainsFunc(mine, func(address string) bool { return slices.Contains(theirs, address) })
}

// addressesOf are the addresses of a host, each in one way of writing it.
func addressesOf(host *infrav1.TalosHost) []string {
	addresses := AddressesOf(host)
	for i, address := range addresses {
		addresses[i] = normal(address)
	}

	return addresses
}

func normal(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().String()
	}

	return strings.ToLower(address)
}

// isFirst reports whether other goes before host, whose machine has told what it is: one
// in use does; of two namespaces the one with the better title, because a host that is older
// may name another machine at any time; else the older one.
func isFirst(other, host *infrav1.TalosHost, told infrav1.HostIdentity, used Used) bool {
	if theirs := used(other); theirs != used(host) {
		return theirs
	}
	if other.Namespace != host.Namespace {
		if theirs, mine := title(other, host, told, used), title(host, other, KnownIdentity(other), used); theirs != mine {
			return theirs > mine
		}
	}
	if !other.CreationTimestamp.Equal(&host.CreationTimestamp) {
		return other.CreationTimestamp.Before(&host.CreationTimestamp)
	}

	return strings.Compare(other.Namespace+"/"+other.Name, host.Namespace+"/"+host.Name) < 0
}
