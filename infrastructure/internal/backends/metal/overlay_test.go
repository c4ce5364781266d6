package metal

import (
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// testBundle is made once: keys are dear.
var testBundle = sync.OnceValues(func() (*secrets.Bundle, error) { return secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil) })

func render(t *testing.T, role configgen.Role, contract string, patches ...string) []byte {
	t.Helper()
	g := NewWithT(t)
	bundle, err := testBundle()
	g.Expect(err).NotTo(HaveOccurred())
	configuration, err := configgen.Render(configgen.Input{
		Role: role, Contract: contract, ClusterName: "one", Endpoint: "https://192.0.2.100:6443", KubernetesVersion: "v1.36.3",
		Secrets: bundle.Machinery(), StrategicPatches: patches, Hostname: "one-a",
	})
	g.Expect(err).NotTo(HaveOccurred())

	return configuration
}

func metalHost(changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	host := &infrav1.TalosHost{
		Spec: infrav1.TalosHostSpec{Install: infrav1.HostInstall{Disk: "/dev/vda"}},
	}
	for _, change := range changes {
		change(host)
	}

	return host
}

func TestTheInstallerImage(t *testing.T) {
	tests := map[string]struct {
		patch string
		host  func(*infrav1.TalosHost)
		talos infrav1.TalosReleaseSpec
		image string
	}{
		"is of the release that the machine runs": {image: "ghcr.io/siderolabs/installer:v1.13.9"},
		"is of the release that is wanted before": {talos: infrav1.TalosReleaseSpec{Version: "v1.13.4"}, image: "ghcr.io/siderolabs/installer:v1.13.4"},
		"is that of the configuration before":     {patch: "machine: {install: {image: mine:1}}", talos: infrav1.TalosReleaseSpec{Version: "v1.13.4"}, image: "mine:1"},
		"is that of the TalosMachine before":      {patch: "machine: {install: {image: mine:1}}", talos: infrav1.TalosReleaseSpec{Image: "wanted:2"}, image: "wanted:2"},
		"is that of the host before":              {talos: infrav1.TalosReleaseSpec{Image: "wanted:2"}, host: func(h *infrav1.TalosHost) { h.Spec.Install.Image = "hosts:3" }, image: "hosts:3"},
		"is that of the patches of the host, if any": {host: func(h *infrav1.TalosHost) {
			h.Spec.StrategicPatches = []string{"machine: {install: {image: patched:4}}"}
		}, image: "patched:4"},
		"is that of the patches before the release's": {talos: infrav1.TalosReleaseSpec{Version: "v1.13.4"}, host: func(h *infrav1.TalosHost) {
			h.Spec.StrategicPatches = []string{"machine: {install: {image: patched:4}}"}
		}, image: "patched:4"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var patches []string
			if tt.patch != "" {
				patches = append(patches, tt.patch)
			}
			host := metalHost()
			if tt.host != nil {
				tt.host(host)
			}
			machine := &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{Talos: tt.talos}}}
			configuration, err := configure(render(t, configgen.RoleWorker, "v1.13", patches...), host, machine, told{release: "v1.13.9"})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(configuration)).To(ContainSubstring("image: " + tt.image + "\n"))
		})
	}
	t.Run("must be known", func(t *testing.T) {
		_, err := configure(render(t, configgen.RoleWorker, "v1.13"), metalHost(), &infrav1.TalosMachine{}, told{})
		NewWithT(t).Expect(err).To(MatchError(errNoRelease))
	})
}

func TestTheHostIsInTheConfigurationOfEveryContract(t *testing.T) {
	host := metalHost(func(h *infrav1.TalosHost) {
		h.Spec.Install = infrav1.HostInstall{DiskSelector: infrav1.HostDiskSelector{Model: "INTEL*", Type: infrav1.HostDiskNVMe, MinSizeGiB: ptr.To(int32(100))}}
		h.Spec.Network = infrav1.HostNetwork{MACAddress: "b0:26:28:00:00:01", Addresses: []string{"192.0.2.10/24"}, Gateway: "192.0.2.1", Nameservers: []string{"192.0.2.53"}}
		h.Spec.StrategicPatches = []string{"machine: {sysctls: {vm.swappiness: \"7\"}}"}
	})
	machine := &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{ProviderID: "talos://1"}}
	installers := map[string]string{
		"v1.12": "ghcr.io/siderolabs/installer", "v1.13": "ghcr.io/siderolabs/installer", "v1.14": "factory.talos.dev/metal-installer/" + emptySchematic,
	}
	for contract, patch := range map[string]string{
		"v1.12": "", "v1.13": "",
		// In 1.14 sysctls have a document of their own.
		"v1.14": "apiVersion: v1alpha1\nkind: SysctlConfig\nparams: {vm.swappiness: \"7\"}\n",
	} {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			host := host.DeepCopy()
			if patch != "" {
				host.Spec.StrategicPatches = []string{patch}
			}
			configuration, err := configure(render(t, configgen.RoleWorker, contract), host, machine, told{release: contract + ".1"})
			g.Expect(err).NotTo(HaveOccurred())
			for _, part := range []string{
				"provider-id: talos://1", "INTEL*", "nvme", "vm.swappiness: \"7\"", "192.0.2.10/24", "192.0.2.53", "b0:26:28:00:00:01",
				"image: " + installers[contract] + ":" + contract + ".1",
			} {
				g.Expect(string(configuration)).To(ContainSubstring(part))
			}
		})
	}
}

func TestAContainerInstallsNothing(t *testing.T) {
	g := NewWithT(t)
	configuration, err := configure(render(t, configgen.RoleWorker, "v1.13"), metalHost(), &infrav1.TalosMachine{}, told{release: "v1.13.9", container: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(configuration)).NotTo(Or(ContainSubstring("/dev/vda"), ContainSubstring("siderolabs/installer")))
}

func TestAHostDoesNotRenameAControlPlane(t *testing.T) {
	host := metalHost(func(h *infrav1.TalosHost) {
		h.Spec.StrategicPatches = []string{"apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: mine\nauto: off\n"}
	})
	_, err := configure(render(t, configgen.RoleControlPlane, "v1.13"), host, &infrav1.TalosMachine{}, told{release: "v1.13.9"})
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("strategicPatches of the host[0]")))
}

// TestTheMachineKnowsTheAddressesOfItsHost: a name, or an address before NAT, is not
// among those that Talos finds by itself.
func TestTheMachineKnowsTheAddressesOfItsHost(t *testing.T) {
	for _, contract := range []string{"v1.12", "v1.13", "v1.14"} {
		g := NewWithT(t)
		host := metalHost(func(h *infrav1.TalosHost) {
			h.Spec.Addresses = []string{"node-7.example.com", "198.51.100.7"}
			h.Spec.Network = infrav1.HostNetwork{Interface: "eno1", Addresses: []string{"192.0.2.7/24"}}
		})
		configured, err := configure(render(t, configgen.RoleWorker, contract), host, &infrav1.TalosMachine{}, told{release: contract + ".0"})
		g.Expect(err).NotTo(HaveOccurred())
		loaded, err := configloader.NewFromBytes(configured)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(loaded.Machine().Security().CertSANs()).To(Equal([]string{"node-7.example.com", "198.51.100.7", "192.0.2.7"}), contract)
	}
}
