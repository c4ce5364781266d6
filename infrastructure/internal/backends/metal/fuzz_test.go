package metal

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// FuzzTalosHostOverlay lays anything that a TalosHost can say over the machine
// configurations of all contracts: what comes of it is a configuration with the
// provider ID, or a refusal, and never breaks.
func FuzzTalosHostOverlay(f *testing.F) {
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	if err != nil {
		f.Fatal(err)
	}
	contracts := configgen.Contracts()
	var rendered [][]byte
	for _, contract := range contracts {
		configuration, err := configgen.Render(configgen.Input{
			Role: configgen.RoleControlPlane, Contract: contract, ClusterName: "one", Endpoint: "https://192.0.2.100:6443",
			KubernetesVersion: "v1.36.3", Secrets: bundle.Machinery(), Hostname: "one-a",
		})
		if err != nil {
			f.Fatal(err)
		}
		rendered = append(rendered, configuration)
	}
	for i, seed := range []struct {
		mac, link, cidr, gateway, patch, text, disk, release string
		size                                                 int32
	}{
		{"52:54:00:12:34:56", "", "192.0.2.1/24", "192.0.2.254", "machine: {sysctls: {vm.swappiness: \"1\"}}", "INTEL*", "", "v1.13.9", 100},
		{"", "eno1", "2001:db8::1/64", "", "apiVersion: v1alpha1\nkind: SysctlConfig\nparams: {vm.swappiness: \"7\"}\n", "", "/dev/sda", "v1.14.1", 0},
		{"", "\"", "/", "::", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: mine\nauto: off\n", "\") || true || glob(\"", "\" || \"", "main", -1},
		{":", "\x00", "192.0.2.1", "router", "machine: {network: {hostname: mine, interfaces: [{interface: eth0}]}}", "\\", "/dev/", "v1.12.4", 1 << 30},
		{"", "", "", "", "machine: {type: worker}", "", "", "", 0},
		{"", "", "", "", "machine:\n  $patch: delete\n", "", "", "v1.13.9", 0},
		{"", "", "", "", "cluster: {etcd: {$patch: delete}}\nmachine: {install: {diskSelector: {size: \">= 1TB\"}}}", "*", "", "v1.13.9", 7},
		{"", "", "", "", "apiVersion: v1alpha1\nkind: UnattendedInstallConfig\nprovisioning: {diskSelector: {match: disk.size > 1u}}\n", "", "/dev/vda", "v1.14.1", 0},
		{"", "", "", "", "apiVersion: v1alpha1\nkind: LinkConfig\nname: eno1\nup: true\n---\napiVersion: v1alpha1\nkind: ResolverConfig\n", "", "", "v1.13.9", 0},
	} {
		f.Add(uint8(i), seed.mac, seed.link, seed.cidr, seed.gateway, seed.patch, seed.text, seed.disk, seed.release, seed.size)
	}
	machine := &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{ProviderID: "talos://1"}}
	f.Fuzz(func(t *testing.T, which uint8, mac, link, cidr, gateway, patch, text, disk, release string, size int32) {
		host := &infrav1.TalosHost{Spec: infrav1.TalosHostSpec{
			Network:          infrav1.HostNetwork{Interface: link, MACAddress: mac, Addresses: []string{cidr}, Gateway: gateway, Nameservers: []string{gateway}},
			StrategicPatches: []string{patch},
			Install: infrav1.HostInstall{Disk: disk, DiskSelector: infrav1.HostDiskSelector{
				Model: text, Serial: text, WWID: text, BusPath: text, Type: infrav1.HostDiskType(text), MinSizeGiB: ptr.To(size),
			}},
		}}
		switch which % 3 {
		case 0:
			host.Spec.Install.Disk = ""
		case 1:
			host.Spec.Install.DiskSelector = infrav1.HostDiskSelector{}
		}
		if cidr == "" {
			host.Spec.Network = infrav1.HostNetwork{}
		}
		says := told{release: release, container: which%7 == 0, disks: []infrav1.HostDisk{
			{DevPath: "/dev/vda", SizeBytes: ptr.To(int64(20e9)), Model: text, Transport: "virtio"}, {DevPath: "/dev/sda", Serial: text},
		}}
		configuration, err := configure(rendered[int(which)%len(rendered)], host, machine, says)
		if err != nil {
			return
		}
		if description, err := configgen.Describe(configuration); err != nil || description.Hostname != "one-a" {
			t.Errorf("the overlay has let pass a configuration of host name %q: %v", description.Hostname, err)
		}
		_, _ = unfitDisk(configuration, says)
	})
}
