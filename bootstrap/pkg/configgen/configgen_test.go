package configgen_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

var contracts = []string{"v1.12", "v1.13", "v1.14"}

// bundles are the keys of each contract. Making them takes longer than rendering with them.
var bundles = map[string]*secrets.Bundle{}

func input(g Gomega, contract string, role configgen.Role) configgen.Input {
	if bundles[contract] == nil {
		bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), contract, nil)
		g.Expect(err).NotTo(HaveOccurred())
		bundles[contract] = bundle
	}
	in := configgen.Input{
		Role: role, Contract: contract, ClusterName: "demo", Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3",
		Secrets: bundles[contract].Machinery(),
	}
	if role == configgen.RoleControlPlane {
		in.Hostname = "demo-abcde"
	}
	return in
}

func parse(g Gomega, configuration []byte) coreconfig.Provider {
	cfg, err := configloader.NewFromBytes(configuration)
	g.Expect(err).NotTo(HaveOccurred())
	return cfg
}

func TestRenderCarriesWhatTheClusterSays(t *testing.T) {
	for _, contract := range contracts {
		for _, role := range []configgen.Role{configgen.RoleControlPlane, configgen.RoleWorker} {
			t.Run(contract+" "+string(role), func(t *testing.T) {
				g := NewWithT(t)
				in := input(g, contract, role)
				in.PodCIDRs, in.ServiceCIDRs, in.ServiceDomain = []string{"10.100.0.0/16"}, []string{"10.101.0.0/16"}, "corp.local"
				in.Hostname = "demo-abcde"

				rendered, err := configgen.Render(in)
				g.Expect(err).NotTo(HaveOccurred())

				cfg := parse(g, rendered)
				g.Expect(cfg.K8sNetworkConfig().PodCIDRs()).To(ConsistOf(HaveField("String()", "10.100.0.0/16")))
				g.Expect(cfg.NetworkHostnameConfig().Hostname()).To(Equal("demo-abcde"))
				form := configgen.InstallSection
				if contract == "v1.14" {
					form = configgen.InstallDocument
				}
				g.Expect(configgen.Describe(rendered)).To(Equal(configgen.Description{
					Role: role, Hostname: "demo-abcde", KubernetesVersion: "v1.36.3", InstallForm: form,
				}))
			})
		}
	}
}

func TestPatchesApplyInOrder(t *testing.T) {
	for _, contract := range contracts {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			in := input(g, contract, configgen.RoleWorker)
			in.JSONPatches = [][]byte{[]byte(`{"op":"add","path":"/machine/certSANs","value":["a.example"]}`)}
			in.StrategicPatches = []string{"machine:\n  certSANs: [b.example]\n", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: of-the-user\nauto: off\n"}

			rendered, err := configgen.Render(in)
			g.Expect(err).NotTo(HaveOccurred())
			cfg := parse(g, rendered)
			g.Expect(cfg.Machine().Security().CertSANs()).To(Equal([]string{"a.example", "b.example"}))
			g.Expect(cfg.NetworkHostnameConfig().Hostname()).To(Equal("of-the-user"))
		})
	}
}

func TestBrokenPatchesAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*configgen.Input)
		want   string
	}{
		"a JSON patch of a path that is not there": {
			func(in *configgen.Input) {
				in.JSONPatches = [][]byte{[]byte(`{"op":"add","path":"/machine/certSANs","value":[]}`), []byte(`{"op":"replace","path":"/machine/nope/nil","value":1}`)}
			}, `configPatches[1] (path /machine/nope/nil) does not apply`,
		},
		"a JSON patch that makes an unknown field": {
			func(in *configgen.Input) {
				in.JSONPatches = [][]byte{[]byte(`{"op":"add","path":"/machine/nope","value":1}`)}
			}, `configPatches[0] (path /machine/nope) does not apply`,
		},
		"a strategic patch that is no YAML": {
			func(in *configgen.Input) { in.StrategicPatches = []string{"machine: {}\n", "machine:\n  a: [\n"} },
			`strategicPatches[1] line`,
		},
		"a strategic patch with an unknown field": {
			func(in *configgen.Input) { in.StrategicPatches = []string{"machine:\n  nope: 1\n"} },
			`strategicPatches[0] line 1 does not apply`,
		},
		"a key of the kubelet's configuration that is no text": {
			func(in *configgen.Input) {
				in.StrategicPatches = []string{"machine:\n  kubelet:\n    extraConfig:\n      a: {1: b}\n"}
			}, `strategicPatches[0] does not apply: it has a key that is no text`,
		},
		"a date in the kubelet's configuration": {
			func(in *configgen.Input) {
				in.StrategicPatches = []string{"machine:\n  kubelet:\n    extraConfig:\n      a: 2026-01-02\n"}
			}, `put those below what is handed on to Kubernetes into quotes (cannot deep copy time.Time)`,
		},
		"a control plane host name": {
			func(in *configgen.Input) {
				in.StrategicPatches = []string{"machine:\n  network:\n    hostname: mine\n"}
			},
			`strategicPatches[0] does not apply: it sets the host name of a control plane machine`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(g, "v1.13", configgen.RoleControlPlane)
			c.change(&in)

			_, err := configgen.Render(in)
			var patchError *configgen.PatchError
			g.Expect(errors.As(err, &patchError)).To(BeTrue(), "%v", err)
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

func TestDataIsPassedThroughAndMustBeAConfiguration(t *testing.T) {
	g := NewWithT(t)
	rendered, err := configgen.Render(input(g, "v1.13", configgen.RoleWorker))
	g.Expect(err).NotTo(HaveOccurred())

	again, err := configgen.Render(configgen.Input{Data: rendered})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(again)).To(Equal(string(rendered)))

	for _, data := range []string{"a: b", "machine: {}", "version: v1alpha1\nmachine:\n  type: unknown\n"} {
		_, err := configgen.Render(configgen.Input{Data: []byte(data)})
		g.Expect(err).To(MatchError(ContainSubstring("the machine configuration is not valid")), data)
	}
}

func TestOverlayUsesTheFormOfTheConfiguration(t *testing.T) {
	for _, contract := range contracts {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			rendered, err := configgen.Render(input(g, contract, configgen.RoleControlPlane))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(configgen.Describe(rendered)).To(HaveField("HasInstallDisk", false))

			for name, host := range map[string]configgen.HostOverlay{
				"a disk":     {InstallDisk: "/dev/sda"},
				"a selector": {InstallDiskSelector: &configgen.DiskSelector{MinSizeBytes: 1 << 30, Type: "nvme"}},
			} {
				host.ProviderID, host.InstallImage = "talos://6f1", "registry.example/installer:v1.13.9"
				host.StrategicPatches = []string{"machine:\n  certSANs: [h.example]\n"}
				host.Network = &configgen.StaticNetwork{
					HardwareAddress: "02:00:00:00:00:01", Addresses: []string{"10.0.0.5/24"}, Gateway: "10.0.0.1", Nameservers: []string{"10.0.0.2"},
				}
				final, err := configgen.Overlay(rendered, host)
				g.Expect(err).NotTo(HaveOccurred(), name)

				cfg := parse(g, final)
				g.Expect(cfg.K8sKubeletConfig().ExtraArgs()).To(HaveKeyWithValue("provider-id", []string{"talos://6f1"}), name)
				g.Expect(configgen.Describe(final)).To(HaveField("HasInstallDisk", true), name)
				g.Expect(cfg.Machine().Security().CertSANs()).To(ContainElement("h.example"), name)
				g.Expect(cfg.NetworkLinkAliasConfigs()).To(HaveLen(1), name)
			}
		})
	}
}

func TestBadInputHostPatchOfAControlPlaneHostNameIsRefused(t *testing.T) {
	for _, contract := range contracts {
		g := NewWithT(t)
		rendered, err := configgen.Render(input(g, contract, configgen.RoleControlPlane))
		g.Expect(err).NotTo(HaveOccurred())
		for name, patch := range map[string]string{
			"a section":           "machine: {network: {hostname: other}}",
			"a document":          "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: other\n",
			"a deleted document":  "apiVersion: v1alpha1\nkind: HostnameConfig\n$patch: delete\n",
			"the name in capital": "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: DEMO-ABCDE\n",
		} {
			_, err = configgen.Overlay(rendered, configgen.HostOverlay{StrategicPatches: []string{"machine: {certSANs: [a]}", patch}})
			g.Expect(err).To(MatchError(And(
				ContainSubstring("strategicPatches of the host[1] does not apply"), ContainSubstring("the host name of a control plane machine"))), contract+" "+name)
		}
	}
}

// The role is known to more than the configuration, and a machine of type init
// bootstraps etcd by itself.
func TestHostPatchesDoNotChangeTheRole(t *testing.T) {
	g := NewWithT(t)
	for role, types := range map[configgen.Role][]string{
		configgen.RoleControlPlane: {"worker", "init", "unknown"}, configgen.RoleWorker: {"controlplane", "init"},
	} {
		rendered, err := configgen.Render(input(g, "v1.13", role))
		g.Expect(err).NotTo(HaveOccurred())
		for _, other := range types {
			_, err = configgen.Overlay(rendered, configgen.HostOverlay{StrategicPatches: []string{"machine: {type: " + other + "}"}})
			g.Expect(err).To(MatchError(ContainSubstring("it changes machine.type")), other)
		}
	}
}

func TestOverlayIsJudgedByTheReleaseOfTheHost(t *testing.T) {
	g := NewWithT(t)
	rendered, err := configgen.Render(input(g, "v1.12", configgen.RoleWorker))
	g.Expect(err).NotTo(HaveOccurred())
	host := configgen.HostOverlay{StrategicPatches: []string{"apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {A: b}\n"}}
	for release, want := range map[string]string{
		"": "", "v1.13.9": "", "v1.14.1": "", "v1.15.0-alpha.0": "",
		"v1.12.4": "strategicPatches of the host[0] makes a machine configuration that is not valid: the document EnvironmentConfig is not known to Talos v1.12",
		"none":    `"none" is no release of Talos v1`,
	} {
		host.Release = release
		_, err := configgen.Overlay(rendered, host)
		if want == "" {
			g.Expect(err).NotTo(HaveOccurred(), release)
		} else {
			g.Expect(err).To(MatchError(ContainSubstring(want)), release)
		}
	}
}
