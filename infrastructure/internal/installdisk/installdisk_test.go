package installdisk

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

var disks = []infrav1.HostDisk{
	{DevPath: "/dev/sda", SizeBytes: ptr.To(int64(20e9)), Model: "STICK", Transport: "usb", Rotational: ptr.To(false)},
	{DevPath: "/dev/sdb", SizeBytes: ptr.To(int64(4e12)), Model: "WD40", Serial: "S1", Transport: "sata", Rotational: ptr.To(true)},
	{DevPath: "/dev/nvme0n1", SizeBytes: ptr.To(int64(960e9)), Model: "INTEL P4510", WWID: "eui.1", Transport: "nvme", Symlinks: []string{"/dev/disk/by-id/nvme-1"}},
}

func TestAmong(t *testing.T) {
	tests := map[string]struct {
		install infrav1.HostInstall
		found   []string
	}{
		"nothing named":             {},
		"a path":                    {infrav1.HostInstall{Disk: "/dev/sdb"}, []string{"/dev/sdb"}},
		"a link":                    {infrav1.HostInstall{Disk: "/dev/disk/by-id/nvme-1"}, []string{"/dev/nvme0n1"}},
		"a path that is not there":  {infrav1.HostInstall{Disk: "/dev/vda"}, nil},
		"a pattern of the model":    {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Model: "INTEL*"}}, []string{"/dev/nvme0n1"}},
		"a size":                    {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(500))}}, []string{"/dev/sdb", "/dev/nvme0n1"}},
		"two bounds":                {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(500)), MaxSizeGiB: ptr.To(int32(1000))}}, []string{"/dev/nvme0n1"}},
		"bounds that just fit":      {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(894)), MaxSizeGiB: ptr.To(int32(895))}}, []string{"/dev/nvme0n1"}},
		"a bound in GiB, not in GB": {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{MinSizeGiB: ptr.To(int32(895)), MaxSizeGiB: ptr.To(int32(3725))}}, nil},
		"a kind":                    {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Type: infrav1.HostDiskHDD}}, []string{"/dev/sdb"}},
		"what breaks out of quotes": {infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Model: `") || true || glob("*`}}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			wish, err := OfHost(tt.install, configgen.InstallDocument)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(wish.IsZero()).To(Equal(tt.install == infrav1.HostInstall{}))
			found, err := wish.Among(disks)
			g.Expect(err).NotTo(HaveOccurred())
			var paths []string
			for _, disk := range found {
				paths = append(paths, disk.DevPath)
			}
			g.Expect(paths).To(Equal(tt.found))
		})
	}
}

// TestOfConfiguration reads what the overlay of a host wrote, in both forms.
func TestOfConfiguration(t *testing.T) {
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, contract := range configgen.Contracts() {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			rendered, err := configgen.Render(configgen.Input{
				Role: configgen.RoleWorker, Contract: contract, ClusterName: "one", Endpoint: "https://192.0.2.100:6443", KubernetesVersion: "v1.36.3", Secrets: bundle.Machinery(),
			})
			g.Expect(err).NotTo(HaveOccurred())
			wish, err := OfConfiguration(rendered)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(wish.IsZero()).To(BeTrue())
			for name, overlay := range map[string]configgen.HostOverlay{
				"a path":     {InstallDisk: "/dev/nvme0n1"},
				"a link":     {InstallDisk: "/dev/disk/by-id/nvme-1"},
				"a selector": {InstallDiskSelector: &configgen.DiskSelector{Type: "nvme", MinSizeBytes: 1 << 30}},
			} {
				overlaid, err := configgen.Overlay(rendered, overlay)
				g.Expect(err).NotTo(HaveOccurred())
				wish, err := OfConfiguration(overlaid)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(wish.Among(disks)).To(ConsistOf(HaveField("DevPath", "/dev/nvme0n1")), name)
			}
		})
	}
	t.Run("what is no configuration", func(t *testing.T) {
		_, err := OfConfiguration([]byte("machine: ["))
		NewWithT(t).Expect(err).To(HaveOccurred())
	})
}

func TestList(t *testing.T) {
	NewWithT(t).Expect(List(disks)).To(Equal("/dev/sda (20 GB, usb, STICK), /dev/sdb (4000 GB, sata, WD40), /dev/nvme0n1 (960 GB, nvme, INTEL P4510)"))
}
