package configgen_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// judged is where the modules of test/suites/machinery find what is rendered here.
const judged = "../../../test/suites/machinery/judge/testdata"

var update = flag.Bool("update", false, "write what the matrix renders to test/suites/machinery/judge/testdata")

// userPatches are what a user adds, in the form of the v1alpha1 document
// ("section") and as documents.
var userPatches = []struct {
	name    string
	patches []string
}{
	{"nothing", nil},
	{"a section", []string{"machine:\n  certSANs: [user.example]\n  sysctls: {net.core.somaxconn: \"65535\"}\n  time: {servers: [time.example]}\n"}},
	{"a document", []string{
		"apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [time.example]}\n---\napiVersion: v1alpha1\nkind: WatchdogTimerConfig\ndevice: /dev/watchdog0\ntimeout: 2m0s\n",
		"apiVersion: v1alpha1\nkind: ResolverConfig\nsearchDomains: {domains: [user.example]}\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eth1\nmtu: 9000\n",
	}},
	{"a section and a document of the same", []string{
		"machine: {time: {servers: [time.example]}}", "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [time.example]}\n"}},
	{"the kubelet section", []string{"machine: {kubelet: {extraArgs: {v: \"2\"}}}"}},
	{"the kubelet document", []string{"apiVersion: v1alpha1\nkind: KubeletConfig\nextraArgs: {v: \"2\"}\n"}},
	{"the install section", []string{"machine: {install: {disk: /dev/vda, image: user.example/installer:v1}}"}},
	{"the install document", []string{"apiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller: {image: user.example/installer:v1}\nprovisioning: {diskSelector: {match: disk.transport == \"nvme\"}}\n"}},
	{"the network section", []string{"machine: {network: {interfaces: [{interface: eth0, dhcp: true}], nameservers: [10.9.9.9]}}"}},
	{"the network document", []string{"apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\nmtu: 1400\n---\napiVersion: v1alpha1\nkind: ResolverConfig\nnameservers: [{address: 10.9.9.9}]\n"}},
	{"a network section without addresses", []string{"machine: {network: {interfaces: [{interface: eth0, mtu: 1400}, {interface: eth1, dhcp: true}], searchDomains: [user.example]}}"}},
	{"a network document with addresses", []string{"apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses: [{address: 10.0.0.6/24}]\n"}},
	{"a virtual address and the section of the node's address", []string{
		"apiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: 10.0.0.100\nlink: eth0\n", "cluster: {etcd: {advertisedSubnets: [10.0.0.0/24, \"!10.0.0.100/32\"]}}",
		"machine: {kubelet: {nodeIP: {validSubnets: [10.0.0.0/24, \"!10.0.0.100/32\"]}}}"}},
	{"a virtual address and the document of the node's address", []string{
		"apiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: 10.0.0.100\nlink: eth0\n", "cluster: {etcd: {advertisedSubnets: [10.0.0.0/24, \"!10.0.0.100/32\"]}}",
		"apiVersion: v1alpha1\nkind: KubeNodeConfig\nnodeIP: {validSubnets: [10.0.0.0/24, \"!10.0.0.100/32\"]}\n"}},
	{"the section of a loopback address", []string{"machine: {network: {interfaces: [{interface: lo, addresses: [10.9.9.9/32]}]}}"}},
	{"the document of a loopback address", []string{"apiVersion: v1alpha1\nkind: LinkConfig\nname: lo\naddresses: [{address: 10.9.9.9/32}]\n"}},
	{"sections of what a Pod gets", []string{"cluster: {apiServer: {certSANs: [user.example, demo.default.svc]}}",
		"machine: {kubelet: {extraConfig: {failCgroupV1: false, systemReserved: {cpu: 2, pid: \"50\"}}, nodeIP: {validSubnets: [10.0.0.0/24]}}}"}},
	{"documents of what a Pod gets", []string{"apiVersion: v1alpha1\nkind: KubeAPIServerConfig\ncertExtraSANs: [user.example, demo.default.svc]\n",
		"apiVersion: v1alpha1\nkind: KubeletConfig\nconfig: {failCgroupV1: false, systemReserved: {cpu: 2, pid: \"50\"}}\n",
		"apiVersion: v1alpha1\nkind: KubeNodeConfig\nnodeIP: {validSubnets: [10.0.0.0/24]}\n"}},
	{"a document of Talos v1.13", []string{"apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {A: b}\n"}},
	{"a host name section", []string{"machine: {network: {hostname: mine}}"}},
	{"a host name document", []string{"apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: mine\n"}},
}

// controlPlanesOnly are parts of the names of what workers do not have: etcd
// elects who has a virtual address, and no API server is theirs.
var controlPlanesOnly = []string{"virtual address", "what a Pod gets"}

// overlays are hosts. All that are no containers say where to install, unless
// their name says that they do not.
var overlays = []struct {
	name string
	host configgen.HostOverlay
}{
	{"a host with a provider ID", configgen.HostOverlay{ProviderID: "talos://6f1c"}},
	{"an installer image without disk", configgen.HostOverlay{InstallImage: "example/installer:v1"}},
	{"an installer image", configgen.HostOverlay{InstallDisk: "/dev/sda", InstallImage: "example/installer:v1"}},
	{"an install disk", configgen.HostOverlay{InstallDisk: "/dev/sda"}},
	{"a disk selector", configgen.HostOverlay{InstallDiskSelector: &configgen.DiskSelector{MinSizeBytes: 1 << 34, Model: "WDC*", Type: "ssd"}}},
	{"a disk selector of two bounds", configgen.HostOverlay{InstallDiskSelector: &configgen.DiskSelector{MinSizeBytes: 1 << 34, MaxSizeBytes: 1 << 40}}},
	{"a static network of a named link", configgen.HostOverlay{InstallDisk: "/dev/sda", Network: &configgen.StaticNetwork{
		Interface: "eth0", Addresses: []string{"10.0.0.5/24", "fd00::5/64"}, Gateway: "10.0.0.1"}}},
	{"a static network of a hardware address with name servers", configgen.HostOverlay{InstallDisk: "/dev/sda", Network: &configgen.StaticNetwork{
		HardwareAddress: "02:00:00:00:00:0A", Addresses: []string{"10.0.0.5/24"}, Gateway: "10.0.0.1", Nameservers: []string{"10.0.0.2", "fd00::2"}}}},
	{"a container", configgen.HostOverlay{Container: true, ProviderID: "talos://6f1c"}},
	{"a Pod", pod()},
	{"a Pod with an etcd address of IPv6", configgen.HostOverlay{Container: true, EtcdAddress: netip.MustParseAddr("fd00:7::b")}},
	{"a patch of a section", configgen.HostOverlay{InstallDisk: "/dev/sda", StrategicPatches: []string{"machine: {sysctls: {vm.swappiness: \"0\"}, time: {servers: [host.example]}}"}}},
	{"a patch of a document", configgen.HostOverlay{InstallDisk: "/dev/sda", StrategicPatches: []string{"apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [host.example]}\n"}}},
	{"a patch of the kubelet section", configgen.HostOverlay{InstallDisk: "/dev/sda", StrategicPatches: []string{"machine: {kubelet: {extraArgs: {feature-gates: A=true}}}"}}},
	{"a patch of the kubelet document", configgen.HostOverlay{InstallDisk: "/dev/sda", StrategicPatches: []string{"apiVersion: v1alpha1\nkind: KubeletConfig\nextraArgs: {feature-gates: A=true}\n"}}},
	{"a patch of the host name section", configgen.HostOverlay{InstallDisk: "/dev/sda", StrategicPatches: []string{"machine: {network: {hostname: host}}"}}},
	{"a patch of the host name document", configgen.HostOverlay{InstallDisk: "/dev/sda", StrategicPatches: []string{"apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: host\n"}}},
	{"all of it", configgen.HostOverlay{
		ProviderID: "talos://6f1c", InstallImage: "example/installer:v1", InstallDiskSelector: &configgen.DiskSelector{MinSizeBytes: 1 << 34, Serial: "A*", WWID: "naa.5*", BusPath: "/pci*", Type: "nvme"},
		Network:          &configgen.StaticNetwork{HardwareAddress: "02:00:00:00:00:0A", Addresses: []string{"10.0.0.5/24"}, Gateway: "10.0.0.1", Nameservers: []string{"10.0.0.2"}},
		StrategicPatches: []string{"machine: {certSANs: [host.example]}", "apiVersion: v1alpha1\nkind: WatchdogTimerConfig\ndevice: /dev/watchdog1\n"},
	}},
}

// TestMatrixIsWhatTheLoadersOfTalosJudge renders every combination of contract,
// role, user patch and host, and a control plane without Flannel on each host, and compares it with what the modules of
// test/suites/machinery show to the loaders of the Talos releases.
func TestMatrixIsWhatTheLoadersOfTalosJudge(t *testing.T) {
	g := NewWithT(t)
	keys, err := os.ReadFile(filepath.Join(judged, "bundle.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	bundle, err := secrets.ParseBundle(keys)
	g.Expect(err).NotTo(HaveOccurred())

	for _, contract := range configgen.Contracts() {
		t.Run(contract, func(t *testing.T) {
			g := NewWithT(t)
			m := &matrix{words: wordsOf(keys), numbers: map[string]int{}}
			of := func(role configgen.Role, patches []string) configgen.Input {
				in := configgen.Input{
					Role: role, Contract: contract, ClusterName: "demo", Endpoint: "https://10.0.0.1:6443", KubernetesVersion: "v1.36.3",
					Secrets: bundle.Machinery(), StrategicPatches: patches,
				}
				if role == configgen.RoleControlPlane {
					in.Hostname = "demo-abcde"
				}
				return in
			}
			for _, role := range []configgen.Role{configgen.RoleControlPlane, configgen.RoleWorker} {
				for _, user := range userPatches {
					if role == configgen.RoleWorker && slices.ContainsFunc(controlPlanesOnly, func(part string) bool { return strings.Contains(user.name, part) }) {
						continue
					}
					m.addAll(contract, string(role)+" with "+user.name, of(role, user.patches))
				}
			}
			without := of(configgen.RoleControlPlane, nil)
			without.WithoutFlannel = true
			m.addAll(contract, string(without.Role)+" without Flannel", without)
			path := filepath.Join(judged, "rendered", contract+".txt")
			if *update {
				g.Expect(os.WriteFile(path, m.file.Bytes(), 0o600)).To(Succeed())
			}
			stored, err := os.ReadFile(path)
			g.Expect(err).NotTo(HaveOccurred())
			if !bytes.Equal(stored, m.file.Bytes()) {
				t.Errorf("%s is not what is rendered: run this test with -update, look at the difference, and let test/suites/machinery judge it", path)
			}
			t.Logf("%d rows, of which %d are refused, %d documents", m.rows, m.refused, len(m.documents))
		})
	}
}

// matrix writes the format that test/suites/machinery/judge reads.
type matrix struct {
	file      bytes.Buffer
	words     map[string]string
	documents [][]string
	numbers   map[string]int

	rows, refused int
}

// addAll renders once, and then for each host.
func (m *matrix) addAll(contract, name string, in configgen.Input) {
	rendered, err := configgen.Render(in)
	unpatched := in
	unpatched.StrategicPatches = nil
	m.add("rendered", name, rendered, err, func() ([]byte, error) {
		base, err := configgen.Render(unpatched)
		return patchedByTalos(base, err, in.StrategicPatches)
	})
	if err != nil {
		return
	}
	for _, overlay := range overlays {
		host, mode := overlay.host, "metal"
		host.Release = contract
		switch {
		case host.Container:
			mode = "container"
		case host.InstallDisk == "" && host.InstallDiskSelector == nil:
			mode = "rendered"
		}
		final, err := configgen.Overlay(rendered, host)
		m.add(mode, name+" on "+overlay.name, final, err, func() ([]byte, error) {
			return patchedByTalos(rendered, nil, host.StrategicPatches)
		})
	}
}

// patchedByTalos is what the machinery makes of patches when nobody judges it.
func patchedByTalos(configuration []byte, err error, texts []string) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	cfg, err := configloader.NewFromBytes(configuration)
	if err != nil {
		return nil, err
	}
	for _, text := range texts {
		patch, err := configpatcher.LoadPatch([]byte(text))
		if err != nil {
			return nil, err
		}
		if cfg, err = configpatcher.StrategicMerge(cfg, patch.(configpatcher.StrategicMergePatch)); err != nil {
			return nil, err
		}
	}
	return cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
}

// add writes a row. What is refused because Talos would refuse what a patch
// makes is written as well, so that the release of the contract can say so:
// patched makes it.
func (m *matrix) add(mode, name string, configuration []byte, err error, patched func() ([]byte, error)) {
	m.rows++
	refusal := ""
	if err != nil {
		m.refused++
		refusal = fmt.Sprintf("refused: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		configuration = nil
		var patchError *configgen.PatchError
		if errors.As(err, &patchError) && patchError.Applies {
			if configuration, err = patched(); err != nil {
				panic(fmt.Sprintf("patching for %s: %v", name, err))
			}
		}
	}
	var numbers []string
	for document := range strings.SplitSeq(strings.TrimPrefix(string(configuration), "---\n"), "\n---\n") {
		if document != "" {
			numbers = append(numbers, fmt.Sprint(m.number(strings.TrimSuffix(document, "\n"))))
		}
	}
	fmt.Fprintf(&m.file, "-- row %s %s --\n%s%s\n", mode, name, refusal, strings.Join(numbers, " "))
}

// number writes a document when it is new.
func (m *matrix) number(document string) int {
	document = keyWord.ReplaceAllStringFunc(document, func(word string) string {
		if reference, known := m.words[word]; known {
			return reference
		}
		return word
	})
	if number, known := m.numbers[document]; known {
		return number
	}
	lines := strings.Split(document, "\n")
	base, head, tail := m.nearest(lines)
	number := len(m.documents) + 1
	m.documents, m.numbers[document] = append(m.documents, lines), number
	if base == 0 {
		fmt.Fprintf(&m.file, "-- document %d --\n", number)
	} else {
		fmt.Fprintf(&m.file, "-- document %d = %d %d %d --\n", number, base, head, len(m.documents[base-1])-tail+1)
		lines = lines[head : len(lines)-tail]
	}
	for _, line := range lines {
		fmt.Fprintln(&m.file, line)
	}
	return number
}

// nearest is the document that shares most lines at the head and at the tail; 0
// when none shares more than it costs to say so.
func (m *matrix) nearest(lines []string) (number, head, tail int) {
	best := 4
	for i, base := range m.documents {
		most := min(len(base), len(lines))
		h := 0
		for h < most && base[h] == lines[h] {
			h++
		}
		t := 0
		for t < most-h && base[len(base)-1-t] == lines[len(lines)-1-t] {
			t++
		}
		if h+t > best {
			best, number, head, tail = h+t, i+1, h, t
		}
	}
	return number, head, tail
}

var keyWord = regexp.MustCompile(`[A-Za-z0-9+/=.]{16,}`)

// wordsOf are the words of the file with the keys, and how they are referred to.
func wordsOf(keys []byte) map[string]string {
	words := map[string]string{}
	for _, word := range keyWord.FindAllString(string(keys), -1) {
		sum := sha256.Sum256([]byte(word))
		words[word] = "((" + hex.EncodeToString(sum[:4]) + "))"
	}
	return words
}

// A refusal says what to do only if it names both sides.
func TestRefusalsOfTheMatrixNameSectionAndDocument(t *testing.T) {
	g := NewWithT(t)
	refusals := 0
	for _, contract := range configgen.Contracts() {
		stored, err := os.ReadFile(filepath.Join(judged, "rendered", contract+".txt"))
		g.Expect(err).NotTo(HaveOccurred())
		for line := range strings.SplitSeq(string(stored), "\n") {
			message, refused := strings.CutPrefix(line, "refused: ")
			if !refused {
				continue
			}
			refusals++
			known := []string{"sets the host name", "is not known to Talos", "the document LinkConfig of the same link"}
			if slices.ContainsFunc(known, func(part string) bool { return strings.Contains(message, part) }) {
				continue
			}
			g.Expect(message).To(MatchRegexp(`[A-Z][A-Za-z]+Config\b`), message)
			g.Expect(message).To(MatchRegexp(`\b(machine|cluster)\.[a-z]`), message)
		}
	}
	g.Expect(refusals).To(BeNumerically(">", 0))
}

// The lists in test/suites/machinery say what each release knows; the loaders prove
// them. What we refuse must be what they say.
func TestNewerIsWhatTheLoadersOfTalosDoNotKnow(t *testing.T) {
	g := NewWithT(t)
	want := map[string]int{}
	for _, minor := range []int{13, 14} {
		raw, err := os.ReadFile(filepath.Join(judged, "fields", fmt.Sprintf("v1.%d.txt", minor)))
		g.Expect(err).NotTo(HaveOccurred())
		added := map[string]bool{}
		for field := range strings.FieldsSeq(string(raw)) {
			added[field] = true
		}
		for field := range added {
			if !slices.ContainsFunc(parents(field), func(parent string) bool { return added[parent] }) {
				want[field] = minor
			}
		}
	}
	g.Expect(configgen.Newer).To(Equal(want))
}

// parents are the kind and the fields that a field stands below.
func parents(field string) []string {
	kind, path, found := strings.Cut(field, ":")
	if !found {
		return nil
	}
	above := []string{kind}
	for i, char := range path {
		if char == '.' {
			up := strings.TrimSuffix(strings.TrimSuffix(path[:i], "[]"), ".*")
			above = append(above, kind+":"+up)
		}
	}
	return above
}

func TestOlderReleasesRefuseNewerDocuments(t *testing.T) {
	g := NewWithT(t)
	in := input(g, "v1.12", configgen.RoleWorker)
	in.StrategicPatches = []string{"machine: {sysctls: {a: b}}", "apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {A: b}\n"}
	_, err := configgen.Render(in)
	var patchError *configgen.PatchError
	g.Expect(errors.As(err, &patchError)).To(BeTrue())
	g.Expect(patchError.Index).To(Equal(1))
	g.Expect(err).To(MatchError(ContainSubstring("the document EnvironmentConfig is not known to Talos v1.12, it came with v1.13")))
}
