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

// TestAHostIsJudgedAsItIsRendered: what a host says chooses the same disks before it is
// rendered and after, in each contract, or can be neither judged nor rendered.
func TestAHostIsJudgedAsItIsRendered(t *testing.T) {
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	selectors := map[string]infrav1.HostDiskSelector{
		"model": {Model: "INTEL*"}, "serial": {Serial: "S1"}, "wwid": {WWID: "eui.*"}, "at least": {MinSizeGiB: ptr.To(int32(500))}, "at most": {MaxSizeGiB: ptr.To(int32(500))},
		"two bounds": {MinSizeGiB: ptr.To(int32(500)), MaxSizeGiB: ptr.To(int32(1000))},
		"SSD":        {Type: infrav1.HostDiskSSD}, "HDD": {Type: infrav1.HostDiskHDD}, "NVMe": {Type: infrav1.HostDiskNVMe}, "SD": {Type: infrav1.HostDiskSD},
	}
	for _, contract := range configgen.Contracts() {
		rendered, err := configgen.Render(configgen.Input{
			Role: configgen.RoleWorker, Contract: contract, ClusterName: "one", Endpoint: "https://192.0.2.100:6443", KubernetesVersion: "v1.36.3", Secrets: bundle.Machinery(),
		})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		description, err := configgen.Describe(rendered)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		for name, selector := range selectors {
			t.Run(contract+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				wish, err := OfHost(infrav1.HostInstall{DiskSelector: selector}, description.InstallForm)
				overlaid, overlayErr := configgen.Overlay(rendered, configgen.HostOverlay{InstallDiskSelector: SelectorOf(selector)})
				g.Expect(err != nil).To(Equal(overlayErr != nil), "%v, %v", err, overlayErr)
				if err != nil {
					return
				}
				before, err := wish.Among(disks)
				g.Expect(err).NotTo(HaveOccurred())
				wish, err = OfConfiguration(overlaid)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(wish.Among(disks)).To(Equal(before))
			})
		}
	}
}
