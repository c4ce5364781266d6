package configgen_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// pod is what a machine that runs as a Pod gets.
func pod() configgen.HostOverlay {
	return configgen.HostOverlay{
		Container: true, ProviderID: "talos://6f1c", EtcdAddress: netip.MustParseAddr("172.20.7.11"),
		SystemReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("6"), corev1.ResourceMemory: resource.MustParse("12Gi")},
		EndpointNames:  []string{"172.20.7.10", "demo.default.svc", "localhost"},
	}
}

// podInput is like input, but spares the making of keys.
func podInput(contract string, role configgen.Role) configgen.Input {
	in := fuzzInput(0)
	in.Contract, in.Role = contract, role
	if role == configgen.RoleControlPlane {
		in.Hostname = "demo-abcde"
	}
	return in
}

// overlaid renders with patches and overlays.
func overlaid(g Gomega, contract string, role configgen.Role, host configgen.HostOverlay, patches ...string) coreconfig.Provider {
	in := podInput(contract, role)
	in.StrategicPatches = patches
	rendered, err := configgen.Render(in)
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	final, err := configgen.Overlay(rendered, host)
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	again, err := configgen.Overlay(final, host)
	g.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	g.ExpectWithOffset(1, string(again)).To(Equal(string(final)), "overlaid twice")
	return parse(g, final)
}

// kubelet is a patch of the kubelet's configuration in the form of a contract.
func kubelet(contract, configuration string) string {
	if contract == "v1.14" {
		return "apiVersion: v1alpha1\nkind: KubeletConfig\nconfig: " + configuration + "\n"
	}
	return "machine: {kubelet: {extraConfig: " + configuration + "}}"
}

// nodeSubnets is a patch of where the Node's address is from.
func nodeSubnets(contract, subnets string) string {
	if contract == "v1.14" {
		return "apiVersion: v1alpha1\nkind: KubeNodeConfig\nnodeIP: {validSubnets: " + subnets + "}\n"
	}
	return "machine: {kubelet: {nodeIP: {validSubnets: " + subnets + "}}}"
}

func loopbackAddresses(cfg coreconfig.Provider) []string {
	var addresses []string
	for _, link := range cfg.NetworkCommonLinkConfigs() {
		if link.Name() == "lo" {
			for _, address := range link.Addresses() {
				addresses = append(addresses, address.Address().String())
			}
		}
	}
	for _, device := range cfg.Machine().Network().Devices() {
		if device.Interface() == "lo" {
			addresses = append(addresses, device.Addresses()...)
		}
	}
	return addresses
}

func TestEtcdAddressIsForEtcdAlone(t *testing.T) {
	for _, contract := range contracts {
		for name, c := range map[string]struct {
			address, network  string
			own, everywhere   string
			nodeIP, withFixed []string
		}{
			"IPv4": {"172.20.7.11", "10.101.0.0/16", "172.20.7.11/32", "0.0.0.0/0",
				[]string{"0.0.0.0/0", "!172.20.7.11/32"}, []string{"10.0.0.0/8", "!10.0.0.3/32", "!172.20.7.11/32"}},
			"IPv6": {"fd00:7::b", "fd00:8::/112", "fd00:7::b/128", "::/0",
				[]string{"::/0", "!fd00:7::b/128"}, []string{"10.0.0.0/8", "!10.0.0.3/32", "!fd00:7::b/128"}},
			"IPv4 in IPv6": {"::ffff:172.20.7.11", "10.101.0.0/16", "172.20.7.11/32", "0.0.0.0/0",
				[]string{"0.0.0.0/0", "!172.20.7.11/32"}, []string{"10.0.0.0/8", "!10.0.0.3/32", "!172.20.7.11/32"}},
		} {
			t.Run(contract+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				in := podInput(contract, configgen.RoleControlPlane)
				in.ServiceCIDRs = []string{c.network}
				host := pod()
				host.EtcdAddress = netip.MustParseAddr(c.address)

				for _, user := range []struct {
					patches []string
					nodeIP  []string
				}{{nil, c.nodeIP}, {[]string{nodeSubnets(contract, `[10.0.0.0/8, "!10.0.0.3/32"]`)}, c.withFixed}} {
					in.StrategicPatches = user.patches
					rendered, err := configgen.Render(in)
					g.Expect(err).NotTo(HaveOccurred())
					final, err := configgen.Overlay(rendered, host)
					g.Expect(err).NotTo(HaveOccurred())
					cfg := parse(g, final)
					g.Expect(loopbackAddresses(cfg)).To(Equal([]string{c.own}))
					g.Expect(cfg.Cluster().Etcd().AdvertisedSubnets()).To(Equal([]string{c.own}))
					g.Expect(cfg.Cluster().Etcd().ListenSubnets()).To(Equal([]string{c.everywhere}))
					g.Expect(cfg.K8sNodeConfig().NodeIP().ValidSubnets()).To(Equal(user.nodeIP))
				}
			})
		}
	}
}

func TestNodeOfTwoFamiliesKeepsBoth(t *testing.T) {
	for _, contract := range contracts {
		g := NewWithT(t)
		in := podInput(contract, configgen.RoleControlPlane)
		in.PodCIDRs, in.ServiceCIDRs = []string{"fd00:9::/64", "10.100.0.0/16"}, []string{"fd00:8::/112", "10.101.0.0/16"}
		rendered, err := configgen.Render(in)
		g.Expect(err).NotTo(HaveOccurred())
		final, err := configgen.Overlay(rendered, pod())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(parse(g, final).K8sNodeConfig().NodeIP().ValidSubnets()).To(Equal([]string{"::/0", "0.0.0.0/0", "!172.20.7.11/32"}), contract)
	}
}

func TestEtcdAddressKeepsWhatTheUserStatesBesides(t *testing.T) {
	for _, contract := range contracts {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			for _, etcd := range []string{"advertisedSubnets: [10.0.0.0/8], listenSubnets: [10.0.0.0/8]", "subnet: 10.0.0.0/8"} {
				cfg := overlaid(g, contract, configgen.RoleControlPlane, pod(), "cluster: {etcd: {image: example/etcd:v3.6.1, extraArgs: {election-timeout: \"5000\"}, "+etcd+"}}")
				g.Expect(cfg.Cluster().Etcd().AdvertisedSubnets()).To(Equal([]string{"172.20.7.11/32"}))
				g.Expect(cfg.Cluster().Etcd().ListenSubnets()).To(Equal([]string{"0.0.0.0/0"}))
				g.Expect(cfg.Cluster().Etcd().Image()).To(Equal("example/etcd:v3.6.1"))
				g.Expect(cfg.Cluster().Etcd().ExtraArgs()).To(HaveKeyWithValue("election-timeout", []string{"5000"}))
				g.Expect(cfg.Cluster().Etcd().CA()).NotTo(BeNil())
			}

			for patch, want := range map[string][]string{
				"apiVersion: v1alpha1\nkind: LinkConfig\nname: lo\naddresses: [{address: 10.9.9.9/32}]\n": {"10.9.9.9/32", "172.20.7.11/32"},
				"apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\nmtu: 1400\n":                         {"172.20.7.11/32"},
				"machine: {network: {interfaces: [{interface: lo, addresses: [10.9.9.9/32]}]}}":           {"10.9.9.9/32", "172.20.7.11/32"},
				"machine: {network: {interfaces: [{interface: lo, cidr: 10.9.9.9/32}]}}":                  {"10.9.9.9/32", "172.20.7.11/32"},
				"machine: {network: {interfaces: [{interface: eth0, mtu: 1400}]}}":                        {"172.20.7.11/32"},
			} {
				g.Expect(loopbackAddresses(overlaid(g, contract, configgen.RoleControlPlane, pod(), patch))).To(Equal(want), patch)
			}
			mixed := overlaid(g, contract, configgen.RoleControlPlane, pod(),
				"machine: {network: {interfaces: [{interface: eth0, mtu: 1400}]}}", "apiVersion: v1alpha1\nkind: LinkConfig\nname: lo\nmtu: 1400\n")
			g.Expect(loopbackAddresses(mixed)).To(Equal([]string{"172.20.7.11/32"}))
			g.Expect(mixed.Machine().Network().Devices()).To(HaveLen(1))
		})
	}
}

func TestNodeDocumentThatIsMadeLosesNothing(t *testing.T) {
	g := NewWithT(t)
	cfg := overlaid(g, "v1.14", configgen.RoleControlPlane, pod(), "apiVersion: v1alpha1\nkind: KubeNodeConfig\n$patch: delete\n")
	g.Expect(cfg.K8sNodeConfig().Labels()).To(HaveKey("node-role.kubernetes.io/control-plane"))
	g.Expect(cfg.K8sNodeConfig().Taints()).To(HaveKeyWithValue("node-role.kubernetes.io/control-plane", "NoSchedule"))
	g.Expect(cfg.K8sNodeConfig().NodeIP().ValidSubnets()).To(Equal([]string{"0.0.0.0/0", "!172.20.7.11/32"}))
}

func TestBadInputEtcdAddressThatCannotWork(t *testing.T) {
	for _, contract := range contracts {
		for name, c := range map[string]struct {
			address, patch, want string
		}{
			"one of the cluster's services": {"10.96.0.7", "", "lies in 10.96.0.0/12, a pod or service network of this cluster"},
			"one of the cluster's pods":     {"10.244.3.7", "", "lies in 10.244.0.0/16, a pod or service network of this cluster"},
			"of the loopback network":       {"127.0.0.9", "", "127.0.0.9 is not one that other machines reach"},
			"of the link":                   {"fe80::1%eth0", "", "fe80::1%eth0 is not one that other machines reach"},
			"unspecified":                   {"0.0.0.0", "", "0.0.0.0 is not one that other machines reach"},
			"with an address among the arguments": {"172.20.7.11", `cluster: {etcd: {extraArgs: {advertise-client-urls: "https://10.0.0.7:2379"}}}`,
				"cluster.etcd.extraArgs states advertise-client-urls, but the address of the etcd member is that of the machine's peer Service, 172.20.7.11"},
			"without etcd": {"172.20.7.11", "cluster: {etcd: {$patch: delete}}", "cluster.etcd of the configuration of this control plane machine is missing"},
		} {
			t.Run(contract+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				in := podInput(contract, configgen.RoleControlPlane)
				if c.patch != "" {
					in.StrategicPatches = []string{c.patch}
				}
				rendered, err := configgen.Render(in)
				g.Expect(err).NotTo(HaveOccurred())
				host := pod()
				host.EtcdAddress = netip.MustParseAddr(c.address)
				_, err = configgen.Overlay(rendered, host)
				g.Expect(err).To(MatchError(And(HavePrefix("the machine configuration is not valid: "), ContainSubstring(c.want))))
			})
		}
	}
}

func TestSystemReservedLeavesTheRestToUserAndTalos(t *testing.T) {
	for _, contract := range contracts {
		for name, c := range map[string]struct {
			role  configgen.Role
			patch string
			want  map[string]any
		}{
			"of a control plane that reserves nothing": {configgen.RoleControlPlane, "",
				map[string]any{"cpu": "6", "memory": "12Gi", "pid": "100", "ephemeral-storage": "256Mi"}},
			"of a worker that reserves nothing": {configgen.RoleWorker, "{systemReserved: {}, failCgroupV1: false}",
				map[string]any{"cpu": "6", "memory": "12Gi", "pid": "100", "ephemeral-storage": "256Mi"}},
			"of a worker that reserves other things": {configgen.RoleWorker, "{systemReserved: {pid: \"7\"}}",
				map[string]any{"cpu": "6", "memory": "12Gi", "pid": "7"}},
			"of a worker that reserves the same": {configgen.RoleWorker, "{systemReserved: {cpu: 2, memory: 1Gi}}",
				map[string]any{"cpu": 2, "memory": "1Gi"}},
		} {
			t.Run(contract+" "+name, func(t *testing.T) {
				g := NewWithT(t)
				var patches []string
				if c.patch != "" {
					patches = append(patches, kubelet(contract, c.patch))
				}
				configuration := overlaid(g, contract, c.role, pod(), patches...).K8sKubeletConfig().ExtraConfig()
				g.Expect(configuration).To(HaveKeyWithValue("systemReserved", c.want))
				if c.patch != "" && len(configuration) > 1 {
					g.Expect(configuration).To(HaveKeyWithValue("failCgroupV1", false))
				}
			})
		}
	}
}

func TestSystemReservedOfOneResourceKeepsTheMemoryThatTalosReserves(t *testing.T) {
	for _, contract := range contracts {
		g := NewWithT(t)
		host := pod()
		delete(host.SystemReserved, corev1.ResourceMemory)
		for role, memory := range map[configgen.Role]string{configgen.RoleControlPlane: "512Mi", configgen.RoleWorker: "384Mi"} {
			g.Expect(overlaid(g, contract, role, host).K8sKubeletConfig().ExtraConfig()).To(HaveKeyWithValue("systemReserved",
				map[string]any{"cpu": "6", "memory": memory, "pid": "100", "ephemeral-storage": "256Mi"}), contract)
		}
	}
}

func TestBadInputSystemReservedThatIsNoMap(t *testing.T) {
	for _, contract := range contracts {
		g := NewWithT(t)
		in := podInput(contract, configgen.RoleWorker)
		in.StrategicPatches = []string{kubelet(contract, "{systemReserved: all}")}
		rendered, err := configgen.Render(in)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = configgen.Overlay(rendered, pod())
		g.Expect(err).To(MatchError(ContainSubstring("systemReserved of the kubelet's configuration")), contract)
	}
}

func TestEndpointNamesAreAddedToThoseOfTheAPIServer(t *testing.T) {
	for _, contract := range contracts {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			patch := "cluster: {apiServer: {certSANs: [user.example, Demo.default.svc, \"fd00::1\"]}}"
			if contract == "v1.14" {
				patch = "apiVersion: v1alpha1\nkind: KubeAPIServerConfig\ncertExtraSANs: [user.example, Demo.default.svc, \"fd00::1\"]\n"
			}
			host := pod()
			host.EndpointNames = []string{"172.20.7.10", "demo.default.svc", "fd00:0::1", "localhost", "localhost"}
			cfg := overlaid(g, contract, configgen.RoleControlPlane, host, patch, "machine: {certSANs: [talos.example]}")
			g.Expect(cfg.K8sAPIServerConfig().CertSANs()).To(Equal([]string{"user.example", "Demo.default.svc", "fd00::1", "172.20.7.10", "localhost"}))
			g.Expect(cfg.Machine().Security().CertSANs()).To(Equal([]string{"talos.example"}))
		})
	}
}

func TestWorkersHaveNeitherEtcdAddressNorEndpointNames(t *testing.T) {
	for _, contract := range contracts {
		g := NewWithT(t)
		in := podInput(contract, configgen.RoleWorker)
		rendered, err := configgen.Render(in)
		g.Expect(err).NotTo(HaveOccurred())
		host := pod()
		with, err := configgen.Overlay(rendered, host)
		g.Expect(err).NotTo(HaveOccurred())
		host.EtcdAddress, host.EndpointNames = netip.Addr{}, nil
		without, err := configgen.Overlay(rendered, host)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(with)).To(Equal(string(without)), contract)
	}
}
