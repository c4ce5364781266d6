// Package hardware writes down what a machine tells about itself. It is pure.
package hardware

import (
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const (
	// container is the mode, and the platform, of Talos in a container.
	container = "container"
	// maxSymlinks is how many links to a disk are recorded.
	maxSymlinks = 32
	// maxText is how long a text may be that is recorded.
	maxText = 256
)

// IsContainer tells whether a machine that answers is a container: nothing is
// installed there, and it has no volumes of its own.
func IsContainer(told talosclient.Hardware) bool {
	return told.Mode == container || (told.Mode == "" && told.Platform == container)
}

// Of is what a machine of the given release tells. Disks that cannot be written
// are left out.
func Of(told talosclient.Hardware, release string) infrav1.HostHardware {
	found := infrav1.HostHardware{
		TalosVersion: release, Platform: told.Platform, Architecture: told.Architecture,
		SystemUUID: told.SystemUUID, SerialNumber: told.SerialNumber, Manufacturer: told.Manufacturer, ProductName: told.ProductName,
	}
	if told.CPUs > 0 {
		found.CPUs = ptr.To(told.CPUs)
	}
	if told.MemoryBytes > 0 {
		found.MemoryBytes = ptr.To(told.MemoryBytes)
	}
	for _, disk := range told.Disks {
		if disk.ReadOnly || disk.CDROM {
			continue
		}
		found.Disks = append(found.Disks, infrav1.HostDisk{
			DevPath: disk.DevPath, SizeBytes: ptr.To(disk.SizeBytes), Model: disk.Model, Serial: disk.Serial, WWID: disk.WWID,
			BusPath: disk.BusPath, Transport: disk.Transport, Rotational: ptr.To(disk.Rotational), Symlinks: symlinks(disk.Symlinks),
		})
	}
	for _, link := range told.Links {
		found.Links = append(found.Links, infrav1.HostLink{Name: link.Name, HardwareAddress: link.HardwareAddress})
	}

	return found
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
