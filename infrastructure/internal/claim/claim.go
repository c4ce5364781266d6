// Package claim decides which TalosHost a TalosMachine takes (design D10). It
// is pure.
package claim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/versions"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// Request is what a TalosMachine wants.
type Request struct {
	// Selector selects hosts by their labels; nil selects all.
	Selector labels.Selector
	// FailureDomain is the wished failure domain; empty for any.
	FailureDomain string
	// FailureDomainPolicy tells what the wish is worth.
	FailureDomainPolicy infrav1.FailureDomainPolicy
	// TalosContract is the version contract of the machine configuration, such
	// as v1.13; empty when unknown.
	TalosContract string
	// TalosVersion is the Talos release to install; empty for the host's own.
	TalosVersion string
	// KubernetesVersion is the version of the Machine; empty when unknown.
	KubernetesVersion string
	// InstallDisk is the disk to install on that the machine configuration names,
	// or how to find it. What a host says goes before it.
	InstallDisk installdisk.Wish
	// InstallForm is how the machine configuration states that disk.
	InstallForm configgen.InstallForm
	// Now is the present time.
	Now time.Time
}

// Rejection is what keeps a host from being claimed. Empty means nothing.
type Rejection string

// Rejections, in the order in which they are reported. Each reads as "3 hosts
// <rejection>".
const (
	Deleting            Rejection = "being deleted"
	NotSelected         Rejection = "not selected by hostSelector"
	Claimed             Rejection = "claimed"
	Releasing           Rejection = "being released"
	Unschedulable       Rejection = "unschedulable"
	Paused              Rejection = "paused"
	NotAvailable        Rejection = "not available"
	OtherFailureDomain  Rejection = "in another failure domain"
	Quarantined         Rejection = "in quarantine"
	FingerprintMismatch Rejection = "with another maintenance certificate than demanded"
	ContractTooNew      Rejection = "with a Talos release older than the contract of the machine configuration"
	OtherRelease        Rejection = "with another Talos release installed than wished"
	KubernetesUnfit     Rejection = "with a Talos release that does not support the Kubernetes version"
	NoInstallDisk       Rejection = "without an install disk named"
	InstallDiskUnstated Rejection = "with an install disk selector that the machine configuration cannot state"
	TooManyDisks        Rejection = "with more disks than it lists, and no install disk of its own"
	InstallDiskMissing  Rejection = "without a disk that fits the install disk named"
	InstallDiskUnclear  Rejection = "with several disks that fit the install disk selector"
	ProviderIDTaken     Rejection = "with the provider ID of another host in use"
)

var reported = []Rejection{
	Deleting, NotSelected, Claimed, Releasing, Unschedulable, Paused, FingerprintMismatch, NotAvailable, OtherFailureDomain, Quarantined,
	ContractTooNew, OtherRelease, KubernetesUnfit, NoInstallDisk, InstallDiskUnstated, TooManyDisks, InstallDiskMissing, InstallDiskUnclear, ProviderIDTaken,
}

// Judge says what keeps a host from being claimed.
func Judge(host *infrav1.TalosHost, request Request) Rejection {
	for _, check := range []struct {
		rejection Rejection
		applies   bool
	}{
		{Deleting, !host.DeletionTimestamp.IsZero() || taloshost.IsMoved(host)},
		{NotSelected, request.Selector != nil && !request.Selector.Matches(labels.Set(host.Labels))},
		{Releasing, host.Spec.Release.Policy != ""},
		{Claimed, host.Spec.ConsumerRef.Name != "" || host.Spec.Handover.ProviderID != ""},
		{Unschedulable, ptr.Deref(host.Spec.Unschedulable, false)},
		{Paused, isPaused(host)},
		{FingerprintMismatch, taloshost.IsOtherBoot(host)},
		{NotAvailable, host.Status.State != infrav1.HostAvailable},
		{OtherFailureDomain, request.FailureDomainPolicy == infrav1.FailureDomainRequired && isElsewhere(host, request)},
		{Quarantined, inQuarantine(host, request.Now)},
		{ContractTooNew, contractTooNew(host, request)},
		{OtherRelease, KeepsOtherRelease(host.Status.Hardware, request.TalosVersion)},
		{KubernetesUnfit, kubernetesUnfit(host, request)},
	} {
		if check.applies {
			return check.rejection
		}
	}

	return judgeInstallDisk(host, request)
}

func inQuarantine(host *infrav1.TalosHost, now time.Time) bool {
	return now.Before(taloshost.QuarantineEnds(host))
}

func isPaused(host *infrav1.TalosHost) bool {
	_, paused := host.Annotations[clusterv1.PausedAnnotation]

	return paused
}

func isElsewhere(host *infrav1.TalosHost, request Request) bool {
	return request.FailureDomain != "" && host.Spec.FailureDomain != request.FailureDomain
}

// contractTooNew compares with the release that reads the configuration, in
// maintenance mode, and with the one that is installed.
func contractTooNew(host *infrav1.TalosHost, request Request) bool {
	if request.TalosContract == "" {
		return false
	}
	contract, err := config.ParseContractFromVersion(request.TalosContract)
	if err != nil {
		return false
	}
	for _, version := range []string{host.Status.Hardware.TalosVersion, request.TalosVersion} {
		if version == "" {
			continue
		}
		release, err := config.ParseContractFromVersion(version)
		if err == nil && contract.Greater(release) {
			return true
		}
	}

	return false
}

// KeepsOtherRelease reports whether a machine goes on with another Talos release than
// the one that is wished; empty wishes for none. Talos installs nothing where META is
// (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer.go, Install), lets
// nobody upgrade it in maintenance mode without a certificate (role os:admin in 1.12,
// 1.13 and 1.14), and installs nothing in a container. What such a machine runs in
// maintenance mode is what it runs once it is configured.
func KeepsOtherRelease(found infrav1.HostHardware, wished string) bool {
	keeps := ptr.Deref(found.Installed, false) || found.Platform == containerPlatform

	return keeps && wished != "" && found.TalosVersion != "" && found.TalosVersion != wished
}

// containerPlatform is the platform of Talos in a container.
const containerPlatform = "container"

// kubernetesUnfit judges by the release that will run: the one that is wished, else
// the one that the machine has. A host that keeps another one was refused before.
func kubernetesUnfit(host *infrav1.TalosHost, request Request) bool {
	release := request.TalosVersion
	if release == "" {
		release = host.Status.Hardware.TalosVersion
	}
	if release == "" || request.KubernetesVersion == "" {
		return false
	}

	return !versions.IsSupported(release, request.KubernetesVersion)
}

// judgeInstallDisk finds the disk to install on among those of a host. One
// without disks is a container, or cannot tell.
func judgeInstallDisk(host *infrav1.TalosHost, request Request) Rejection {
	disks := host.Status.Hardware.Disks
	if len(disks) == 0 {
		return ""
	}
	wish, err := installdisk.OfHost(host.Spec.Install, request.InstallForm)
	if err != nil {
		return InstallDiskUnstated
	}
	isOwn := !wish.IsZero()
	if !isOwn {
		wish = request.InstallDisk
	}
	switch {
	case wish.IsZero():
		return NoInstallDisk
	case !isOwn && ptr.Deref(host.Status.Hardware.DisksOmitted, 0) > 0:
		// A disk that is not listed may fit as well.
		return TooManyDisks
	}
	fitting, err := wish.Among(disks)
	switch {
	case err != nil || len(fitting) == 0:
		return InstallDiskMissing
	case len(fitting) > 1:
		return InstallDiskUnclear
	}

	return ""
}

// Result is a choice.
type Result struct {
	// Host is the host to claim; nil when none fits.
	Host *infrav1.TalosHost
	// Rejected are the hosts that do not fit, by what keeps them from it.
	Rejected map[Rejection][]*infrav1.TalosHost
	// RetryAfter is when a quarantine ends, if no host fits before; else zero.
	RetryAfter time.Duration
}

// Choose picks a host, random among equals. Better ones go first: those without
// a history of failure, then those of the wished failure domain.
func Choose(hosts []*infrav1.TalosHost, request Request, random requeue.Random) Result {
	result := Result{Rejected: map[Rejection][]*infrav1.TalosHost{}}
	const tiers = 4
	var fitting [tiers][]*infrav1.TalosHost
	taken := takenProviderIDs(hosts)
	for _, host := range hosts {
		rejection := Judge(host, request)
		if rejection == "" && taken[host.Spec.ProviderID] {
			rejection = ProviderIDTaken
		}
		if rejection != "" {
			result.Rejected[rejection] = append(result.Rejected[rejection], host)
			continue
		}
		tier := 0
		if isElsewhere(host, request) {
			tier++
		}
		if !host.Spec.Quarantine.Since.IsZero() {
			tier += 2
		}
		fitting[tier] = append(fitting[tier], host)
	}
	for _, tier := range fitting {
		if len(tier) > 0 {
			result.Host = tier[random.IntN(len(tier))]
			return result
		}
	}
	for _, host := range result.Rejected[Quarantined] {
		if left := taloshost.QuarantineEnds(host).Sub(request.Now); result.RetryAfter == 0 || left < result.RetryAfter {
			result.RetryAfter = left
		}
	}

	return result
}

// takenProviderIDs are those of the hosts in use: a provider ID that users name
// twice would make two Nodes one.
func takenProviderIDs(hosts []*infrav1.TalosHost) map[string]bool {
	taken := map[string]bool{}
	for _, host := range hosts {
		for _, id := range []string{host.Spec.ConsumerRef.ProviderID, host.Spec.Handover.ProviderID} {
			if id != "" {
				taken[id] = true
			}
		}
	}

	return taken
}

// maxListedHosts and maxListedDisks bound the message of a condition, which may have
// 32 KiB.
const maxListedHosts, maxListedDisks = 3, 16

// Message tells why no host fits, with counts per reason.
func (r Result) Message() string {
	total := 0
	var counts []string
	for _, rejection := range reported {
		if n := len(r.Rejected[rejection]); n > 0 {
			total += n
			counts = append(counts, fmt.Sprintf("%d %s", n, rejection))
		}
	}
	if total == 0 {
		return "No TalosHost can be claimed: the namespace has none"
	}
	message := fmt.Sprintf("No TalosHost of %d can be claimed: %s", total, strings.Join(counts, ", "))

	return message + releaseHint(r.Rejected[OtherRelease]) + diskHint(slices.Concat(r.Rejected[NoInstallDisk], r.Rejected[InstallDiskUnstated],
		r.Rejected[TooManyDisks], r.Rejected[InstallDiskMissing], r.Rejected[InstallDiskUnclear]))
}

// releaseHint says which releases are there, and the way out.
func releaseHint(hosts []*infrav1.TalosHost) string {
	return hint("Talos installs nothing over an installation: wish the release that is installed, or wipe the system disk with the boot loader", hosts,
		func(host *infrav1.TalosHost) string { return host.Status.Hardware.TalosVersion })
}

// diskHint lists the disks that could be named.
func diskHint(hosts []*infrav1.TalosHost) string {
	return hint("set install.disk or install.diskSelector to exactly one", hosts, func(host *infrav1.TalosHost) string {
		disks := host.Status.Hardware.Disks
		if len(disks) > maxListedDisks {
			return installdisk.List(disks[:maxListedDisks]) + ", ..."
		}

		return installdisk.List(disks)
	})
}

// hint says what to do about hosts, and what each of the first ones has.
func hint(what string, hosts []*infrav1.TalosHost, has func(*infrav1.TalosHost) string) string {
	var found []string
	for _, host := range hosts {
		if len(found) == maxListedHosts {
			found = append(found, "...")
			break
		}
		found = append(found, host.Name+" has "+has(host))
	}
	if len(found) == 0 {
		return ""
	}

	return "; " + what + ": " + strings.Join(found, "; ")
}
