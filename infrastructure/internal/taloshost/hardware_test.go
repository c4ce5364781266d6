package taloshost

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// big is a machine with two paths to each disk of a shelf, and virtual functions.
func big(disks, links int) talosclient.Hardware {
	told := talosclient.Hardware{Platform: "metal", Mode: "metal"}
	for i := range disks {
		disk := talosclient.Disk{DevPath: fmt.Sprintf("/dev/sd-%03d", i), SizeBytes: 20e12, Model: "SHELF"}
		for n := range 40 {
			disk.Symlinks = append(disk.Symlinks, fmt.Sprintf("/dev/disk/by-id/%03d-%02d-%s", i, n, strings.Repeat("x", 200)))
		}
		told.Disks = append(told.Disks, disk)
	}
	for i := range links {
		told.Links = append(told.Links, talosclient.Link{Name: fmt.Sprintf("eno1v%d", i), HardwareAddress: fmt.Sprintf("02:00:00:00:00:%02x", i)})
	}

	return told
}

func paths(disks []infrav1.HostDisk) []string {
	var found []string
	for _, disk := range disks {
		found = append(found, disk.DevPath)
	}

	return found
}

func TestABigMachineFitsIntoAStatus(t *testing.T) {
	g := NewWithT(t)
	told := big(140, 90)
	told.Disks[135].Model, told.Disks[139].SizeBytes = "BOOT", 480e9
	told.Links[88].HardwareAddress = "b0:26:28:00:00:01"
	told.SerialNumber = strings.Repeat("9", 300)
	found := HardwareOf(told, "v1.13.9", infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Model: "BOOT"}})

	// The limits of the kind.
	g.Expect(found.Disks).To(HaveLen(128))
	g.Expect(found.Links).To(HaveLen(64))
	g.Expect(found.SerialNumber).To(HaveLen(256))
	for _, disk := range found.Disks {
		g.Expect(len(disk.Symlinks)).To(BeNumerically("<=", 32))
	}
	text, err := json.Marshal(found)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(text)).To(BeNumerically("<", 512<<10), "etcd takes 1.5 MiB")

	g.Expect(paths(found.Disks)).To(ContainElements("/dev/sd-000", "/dev/sd-135", "/dev/sd-139"), "what may be installed on is kept, in its order")
	g.Expect(paths(found.Disks)).NotTo(ContainElement("/dev/sd-138"))
	g.Expect(found.Links[63]).To(Equal(infrav1.HostLink{Name: "eno1v88", HardwareAddress: "b0:26:28:00:00:01"}), "what identifies the machine is kept")
	g.Expect(found.DisksOmitted).To(Equal(ptr.To(int32(12))))
	g.Expect(found.LinksOmitted).To(Equal(ptr.To(int32(26))))
	g.Expect(OmittedHardware(found)).To(Equal("status.hardware lists 128 of 140 disks and 64 of 90 links"))
	g.Expect(DisksOf(told)).To(HaveLen(140), "whether a disk is the only one is judged by all of them")
}

func TestAMachineOfUsualSizeIsListedWhole(t *testing.T) {
	g := NewWithT(t)
	told := big(128, 64)
	found := HardwareOf(told, "v1.13.9", infrav1.HostInstall{})
	g.Expect(found.Disks).To(HaveLen(128))
	g.Expect(found.Links).To(HaveLen(64))
	g.Expect(OmittedHardware(found)).To(BeEmpty())
}

// TestTheLinksToDisksAreBoundedTogether: as many are kept as the bound allows, to the
// byte.
func TestTheLinksToDisksAreBoundedTogether(t *testing.T) {
	g := NewWithT(t)
	told := talosclient.Hardware{Disks: make([]talosclient.Disk, 33)}
	for i := range told.Disks[:32] {
		for range 32 {
			told.Disks[i].Symlinks = append(told.Disks[i].Symlinks, "/dev/"+strings.Repeat("x", 251))
		}
	}
	told.Disks[32].Symlinks = []string{"/dev/x"}
	found := HardwareOf(told, "v1.13.9", infrav1.HostInstall{})
	g.Expect(found.Disks[31].Symlinks).To(HaveLen(32))
	g.Expect(found.Disks[32].Symlinks).To(BeEmpty())
}
