package configgen_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// A message that changes by itself would be written into a condition again and
// again.
func TestRefusalsAreStable(t *testing.T) {
	for name, patches := range map[string][]string{
		"several invalid labels": {"machine: {nodeLabels: {/a: b, /c: d, /e: f, /g: h}}"},
		"several invalid annotations and taints": {
			"machine: {nodeAnnotations: {/a: b, /c: d, /e: f, /g: h}, nodeTaints: {/a: b:c, /d: e:f, /g: h:i}}"},
		"several unknown fields":             {"machine: {z: {y: x}, w: {v: u}, t: 1, s: 2, q: 3}"},
		"several unknown fields in a patch":  {"machine: {kubelet: {z: {y: x}, w: {v: u}, t: 1}, registries: {q: {r: s}, mirrors: {a: {b: c}}}}"},
		"several sections that are document": {"machine: {time: {servers: [a]}, network: {nameservers: [10.0.0.1]}}", "apiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [a]}\n---\napiVersion: v1alpha1\nkind: ResolverConfig\nnameservers: [{address: 10.0.0.2}]\n"},
		"several invalid mounts and devices": {"machine: {network: {interfaces: [{interface: a, addresses: [b]}, {interface: c, addresses: [d]}]}, sysctls: {a: b}, kubelet: {extraMounts: [{destination: x}]}, registries: {mirrors: {a: {endpoints: [':']}, b: {endpoints: [':']}, c: {endpoints: [':']}}}}"},
		"several invalid arguments":          {"machine: {env: {a: b, c: d}, kubelet: {extraArgs: {provider-id: {a: b}, b: {c: d}}}}"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			in := input(g, "v1.13", configgen.RoleWorker)
			in.StrategicPatches = patches
			_, first := configgen.Render(in)
			g.Expect(first).To(HaveOccurred())
			for range 50 {
				_, again := configgen.Render(in)
				g.Expect(again).To(MatchError(first.Error()))
			}
		})
	}
}
