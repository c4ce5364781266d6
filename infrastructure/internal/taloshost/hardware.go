package taloshost

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
)

const (
	// container is the mode, and the platform, of Talos in a container.
	container = "container"
	// maxDisks, maxLinks and maxSymlinks are how many disks, network links, and
	// links to one disk a TalosHost may list.
	maxDisks, maxLinks, maxSymlinks = 128, 64, 32
	// maxText is how long a text may be that is recorded, and maxShortText how long
	// that of a field of 64 characters.
	maxText, maxShortText = 256, 64
	// maxSymlinkBytes bounds the links to all disks together, so that a host with
	// many fits into etcd, which takes 1.5 MiB at most.
	maxSymlinkBytes = 256 << 10
)

// IsContainer reports whether a machine that answers is a container: nothing is
// installed there, and it has no volumes of its own.
func IsContainer(told talosclient.Hardware) bool {
	return told.Mode == container || (told.Mode == "" && told.Platform == container)
}

// HardwareOf is what a machine of the given release tells, as far as a TalosHost may hold
// it. Of too many disks those are kept that the host's install names, then the
// smallest; of too many links those by which the machine is identified.
func HardwareOf(told talosclient.Hardware, release string, install infrav1.HostInstall) infrav1.HostHardware {
	found := infrav1.HostHardware{
		TalosVersion: cut(release, maxShortText), Platform: cut(told.Platform, maxShortText), Architecture: cut(told.Architecture, maxShortText),
		SystemUUID: cut(told.SystemUUID, maxShortText), SerialNumber: cut(told.SerialNumber, maxText),
		Manufacturer: cut(told.Manufacturer, maxText), ProductName: cut(told.ProductName, maxText),
		Schematic: told.Schematic, ImageFactory: cut(told.ImageFactory, maxText-3),
		SecureBoot: ptr.To(told.SecureBoot), Installed: ptr.To(told.Installed),
	}
	if told.CPUs > 0 {
		found.CPUs = ptr.To(told.CPUs)
	}
	if told.MemoryBytes > 0 {
		found.MemoryBytes = ptr.To(told.MemoryBytes)
	}
	found.Disks, found.DisksOmitted = bounded(DisksOf(told), maxDisks, byUse(install))
	symlinkBytes := 0
	for i := range found.Disks {
		for n, link := range found.Disks[i].Symlinks {
			if symlinkBytes += len(link); symlinkBytes > maxSymlinkBytes {
				found.Disks[i].Symlinks = found.Disks[i].Symlinks[:n]
				break
			}
		}
	}
	found.Links, found.LinksOmitted = bounded(links(told), maxLinks, byIdentity(told))

	return found
}

// DisksOf are all disks of a machine, without those that cannot be written.
func DisksOf(told talosclient.Hardware) []infrav1.HostDisk {
	var found []infrav1.HostDisk
	for _, disk := range told.Disks {
		if disk.ReadOnly || disk.CDROM {
			continue
		}
		found = append(found, infrav1.HostDisk{
			DevPath: cut(disk.DevPath, maxText), SizeBytes: ptr.To(disk.SizeBytes), Model: cut(disk.Model, maxText), Serial: cut(disk.Serial, maxText),
			WWID: cut(disk.WWID, maxText), BusPath: cut(disk.BusPath, maxText), Transport: cut(disk.Transport, maxShortText),
			Rotational: ptr.To(disk.Rotational), Symlinks: symlinks(disk.Symlinks),
		})
	}

	return found
}

func links(told talosclient.Hardware) []infrav1.HostLink {
	var found []infrav1.HostLink
	for _, link := range told.Links {
		found = append(found, infrav1.HostLink{Name: cut(link.Name, maxShortText), HardwareAddress: cut(link.HardwareAddress, maxShortText)})
	}

	return found
}

// OmittedHardware says what of a machine is not listed; empty when all is.
func OmittedHardware(found infrav1.HostHardware) string {
	var parts []string
	for _, part := range []struct {
		listed  int
		omitted *int32
		what    string
	}{{len(found.Disks), found.DisksOmitted, "disks"}, {len(found.Links), found.LinksOmitted, "links"}} {
		if omitted := int(ptr.Deref(part.omitted, 0)); omitted > 0 {
			parts = append(parts, fmt.Sprintf("%d of %d %s", part.listed, part.listed+omitted, part.what))
		}
	}
	if len(parts) == 0 {
		return ""
	}

	return "status.hardware lists " + strings.Join(parts, " and ")
}

// bounded are the items that go first, at most limit of them, in the order in
// which they were told, and how many were left out.
func bounded[T any](items []T, limit int, compare func(a, b T) int) ([]T, *int32) {
	if len(items) <= limit {
		return items, nil
	}
	order := make([]int, len(items))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(items[a], items[b]) })
	order = order[:limit]
	slices.Sort(order)
	kept := make([]T, 0, limit)
	for _, i := range order {
		kept = append(kept, items[i])
	}

	return kept, ptr.To(int32(len(items) - limit)) //nolint:gosec // G115: no machine has 2^31 disks.
}

// byUse puts disks first that the install of a host names, then the smaller ones:
// where there are very many, most are there for data.
func byUse(install infrav1.HostInstall) func(a, b infrav1.HostDisk) int {
	wish, err := installdisk.OfHost(install, configgen.InstallDocument)
	named := func(disk infrav1.HostDisk) int {
		if err != nil {
			return 1
		}
		if fitting, failed := wish.Among([]infrav1.HostDisk{disk}); failed != nil || len(fitting) == 0 {
			return 1
		}

		return 0
	}

	return func(a, b infrav1.HostDisk) int {
		return cmp.Or(cmp.Compare(named(a), named(b)), cmp.Compare(ptr.Deref(a.SizeBytes, 0), ptr.Deref(b.SizeBytes, 0)))
	}
}

// byIdentity puts links first that identify the machine.
func byIdentity(told talosclient.Hardware) func(a, b infrav1.HostLink) int {
	identifying := IdentityOf(told).MACAddresses
	rank := func(link infrav1.HostLink) int {
		if slices.Contains(identifying, link.HardwareAddress) {
			return 0
		}

		return 1
	}

	return func(a, b infrav1.HostLink) int { return cmp.Compare(rank(a), rank(b)) }
}

// cut is at most so many bytes of a text.
func cut(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}

	return strings.ToValidUTF8(text, "")
}

// symlinks are the links to a disk in a fixed order, so that a status does not
// change with the order in which they are told.
func symlinks(told []string) []string {
	var links []string
	for _, link := range told {
		if strings.HasPrefix(link, "/dev/") && len(link) <= maxText {
			links = append(links, link)
		}
	}
	slices.Sort(links)

	return links[:min(len(links), maxSymlinks)]
}
