package webhooks

import (
	"context"
	"testing"

	"k8s.io/utils/ptr"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// hostSeeds are field values that users get wrong, or might try.
func hostSeeds(f *testing.F) {
	f.Helper()
	for _, seed := range []struct {
		address, uuid, mac, link, cidr, gateway, patch, model, disk string
		size                                                        int32
	}{
		{"192.0.2.1", "4c4c4544-0042-3510-8053-b4c04f4d4e31", "52:54:00:12:34:56", "eno1", "192.0.2.1/24", "192.0.2.254", "machine: {sysctls: {vm.swappiness: \"1\"}}", "INTEL*", "", 100},
		{"192.0.2.300", "00000000-0000-0000-0000-000000000000", "", "", "192.0.2.1", "router", "[{\"op\": \"remove\", \"path\": \"/machine\"}]", "", "/dev/sda", 0},
		{"https://a:50000", "", "ff:ff:ff:ff:ff:ff", "", "/", "::", "machine: {bogus: true}", "\"", "/dev/../etc", -1},
		{"fe80::1%eth0", "-", ":", "\x00", "2001:db8::1/129", "0.0.0.0", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: mine\n", "*", "/dev/", 1 << 30},
		{"", "", "", "", "", "", "---\n---\n", "\\", "", 0},
		{"a..b", "", "", "", "1.2.3.4/32", "1.2.3.4", "apiVersion: v1alpha1\nkind: Nothing\n", "", "", 0},
		{"::ffff:192.0.2.1", "", "", "", "::/0", "ff02::1", "machine: &a {network: *a}", "'", "", 7},
		{"127.0.0.1", "", "", "", "", "", "cluster:\n  $patch: delete\n", "", "", 0},
	} {
		f.Add(seed.address, seed.uuid, seed.mac, seed.link, seed.cidr, seed.gateway, seed.patch, seed.model, seed.disk, seed.size)
	}
}

// FuzzTalosHostAdmission feeds the validator of TalosHosts with anything: it
// answers, and never breaks.
func FuzzTalosHostAdmission(f *testing.F) {
	hostSeeds(f)
	ctx := as(context.Background(), "user", false)
	f.Fuzz(func(_ *testing.T, address, uuid, mac, link, cidr, gateway, patch, model, disk string, size int32) {
		fuzzed := host(func(h *infrav1.TalosHost) {
			h.Spec = infrav1.TalosHostSpec{
				Addresses:        []string{address, "192.0.2.1"},
				Identity:         infrav1.HostIdentity{UUID: uuid, MACAddresses: []string{mac}},
				Network:          infrav1.HostNetwork{Interface: link, MACAddress: mac, Addresses: []string{cidr}, Gateway: gateway, Nameservers: []string{gateway}},
				StrategicPatches: []string{patch},
				Install: infrav1.HostInstall{Disk: disk, DiskSelector: infrav1.HostDiskSelector{
					Model: model, Serial: model, WWID: model, BusPath: model, Type: infrav1.HostDiskType(model), MinSizeGiB: ptr.To(size), MaxSizeGiB: &size,
				}},
			}
		})
		w := &TalosHost{Manager: managerUser}
		// Refusing is right, and so is accepting: only a panic is not.
		_, _ = w.ValidateCreate(ctx, fuzzed)
		_, _ = w.ValidateUpdate(ctx, host(handedOver), fuzzed)
		_, _ = w.ValidateUpdate(ctx, fuzzed, host())
	})
}
