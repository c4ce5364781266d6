package talosnode

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

func TestPatch(t *testing.T) {
	for behaviour, test := range map[string]struct {
		traits   machine.Traits
		registry string
		has      []string
		hasNot   []string
	}{
		"changes little on a usual machine that reaches registries": {
			traits: machine.Traits{SysResource: true},
			hasNot: []string{"mirrors", "failCgroupV1", "extraMounts", "restrict_oom_score_adj"},
		},
		"mounts the controllers of version 1": {
			traits: machine.Traits{SysResource: true, CgroupV1: []string{"cpu", "memory"}},
			has:    []string{"failCgroupV1: false", "destination: /sys/fs/cgroup/cpu\n", "destination: /sys/fs/cgroup/memory\n"},
		},
		"asks for no scores that are refused": {
			has: []string{"restrict_oom_score_adj = true"},
		},
		"pulls from the given registry alone": {
			traits: machine.Traits{SysResource: true}, registry: "172.30.0.1:5000",
			has: []string{"http://172.30.0.1:5000", "skipFallback: true", "ghcr.io:"},
		},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			patch, err := Patch(test.traits, test.registry)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(yaml.Unmarshal([]byte(patch), &map[string]any{})).To(Succeed())
			for _, text := range test.has {
				g.Expect(patch).To(ContainSubstring(text))
			}
			for _, text := range test.hasNot {
				g.Expect(patch).NotTo(ContainSubstring(text))
			}
		})
	}
}

func TestPodPatchBringsTheNetworkOfPods(t *testing.T) {
	for behaviour, test := range map[string]struct {
		traits   machine.Traits
		settings string
	}{
		"on a usual machine":                  {machine.Traits{SysResource: true}, findNetwork},
		"beside other settings of containerd": {machine.Traits{CgroupV1: []string{"cpu"}}, restrictScores + findNetwork},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			text, err := PodPatch(test.traits, "172.30.0.1:5000", netip.MustParsePrefix("10.200.0.0/24"))
			g.Expect(err).NotTo(HaveOccurred())
			loaded, err := configloader.NewFromBytes([]byte(text), configloader.WithAllowPatchDelete())
			g.Expect(err).NotTo(HaveOccurred(), "Talos takes it for a patch")
			raw := loaded.RawV1Alpha1()
			g.Expect(raw).NotTo(BeNil())
			g.Expect(raw.MachineConfig.MachineFiles).To(HaveExactElements(
				And(HaveField("FilePath", "/var/cni/net.d/10-bridge.conflist"), HaveField("FileContent", ContainSubstring(`"subnet":"10.200.0.0/24"`))),
				And(HaveField("FilePath", criFile), HaveField("FileContent", test.settings)),
			))
			g.Expect(raw.MachineConfig.MachineFiles[0].FilePermissions).To(Equal(v1alpha1.FileMode(0o644)))
		})
	}
}
