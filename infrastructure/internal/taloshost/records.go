// Package taloshost is all that is known of a TalosHost: the records in its spec and
// who may write them when, the machine that it stands for and how that is told from
// others, other hosts that stand for the same machine, and what its machine says of
// itself. But for the functions that take a client.Reader it is pure.
package taloshost

import (
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// HandoverSettle is how long a machine that was given a configuration may stay in
// maintenance mode: it says that it has taken it before it reboots, and a slow one
// writes to its disk meanwhile. Only after that it is given the configuration again, or
// counts as one that has never taken it.
const HandoverSettle = time.Minute

// RecordsUse reports whether a host records that it is in use.
func RecordsUse(host *infrav1.TalosHost) bool {
	return isClaimed(host) || host.Spec.Release.Policy != ""
}

func isClaimed(host *infrav1.TalosHost) bool {
	return host.Spec.ConsumerRef.Name != "" || host.Spec.Handover.ProviderID != ""
}

// IsClaimedBy reports whether a host is claimed for a TalosMachine. A UID is none of
// it: a move gives every object a new one.
func IsClaimedBy(host *infrav1.TalosHost, machine *infrav1.TalosMachine) bool {
	ref := host.Spec.ConsumerRef

	return ref.Kind == infrav1.TalosMachineKind && ref.Namespace == machine.Namespace && ref.Name == machine.Name &&
		ref.ProviderID != "" && ref.ProviderID == machine.Spec.ProviderID
}

// IsReprovisioned reports whether the machine of a host is being re-provisioned.
func IsReprovisioned(host *infrav1.TalosHost) bool {
	return host.Spec.Reprovision.Previous.ProviderID != ""
}

// IsConfiguredAgain reports whether a machine that is being re-provisioned is proven
// wiped, and was not seen running since.
func IsConfiguredAgain(host *infrav1.TalosHost) bool {
	return IsReprovisioned(host) && host.Spec.Release.Policy == "" && host.Spec.Handover.Progress != infrav1.HandoverRan
}

// HasRunBefore reports whether a machine that is being re-provisioned had run before.
func HasRunBefore(host *infrav1.TalosHost) bool {
	return host.Spec.Reprovision.Previous.Progress == infrav1.HandoverRan
}

// IsMoved reports whether an object lives on in another management cluster.
func IsMoved(object metav1.Object) bool {
	_, moved := object.GetAnnotations()[infrav1.DeleteForMoveAnnotation]

	return moved
}

// IsOtherBoot reports whether a host demands another maintenance certificate than its
// machine presents.
func IsOtherBoot(host *infrav1.TalosHost) bool {
	demanded, told := host.Spec.MaintenanceCertFingerprint, host.Status.MaintenanceCertFingerprint

	return demanded != "" && told != "" && demanded != told
}

// RetryAfter is how long a host is in quarantine, and a machine that came back unwiped
// is left alone.
func RetryAfter(host *infrav1.TalosHost) time.Duration {
	return time.Duration(ptr.Deref(host.Spec.HostRetryAfterSeconds, infrav1.DefaultHostRetryAfterSeconds)) * time.Second
}

// QuarantineEnds is when the quarantine of a host ends; zero when it is in none.
func QuarantineEnds(host *infrav1.TalosHost) time.Time {
	since := host.Spec.Quarantine.Since
	if since.IsZero() {
		return time.Time{}
	}

	return since.Add(RetryAfter(host))
}

// ReleaseTimeout is how long a TalosMachine waits for the release of its host.
func ReleaseTimeout(release infrav1.HostRelease) time.Duration {
	return time.Duration(ptr.Deref(release.TimeoutSeconds, infrav1.DefaultReleaseTimeoutSeconds)) * time.Second
}

// AddressesOf are all addresses of a host: those that the user has named, then
// those that we configure.
func AddressesOf(host *infrav1.TalosHost) []string {
	addresses := slices.Clone(host.Spec.Addresses)
	for _, cidr := range host.Spec.Network.Addresses {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			continue
		}
		if address := prefix.Addr().String(); !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}

	return addresses
}
