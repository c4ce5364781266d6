package talosnode

import (
	"testing"

	. "github.com/onsi/gomega"
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
