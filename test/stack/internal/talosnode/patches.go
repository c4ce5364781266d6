// Package talosnode is what real Talos nodes need of the machine that the test
// bed runs on: a registry with their images, and the settings that make them
// take those and bear with the machine's control groups.
package talosnode

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

// patch is a part of a machine configuration.
type patch struct {
	Machine machinePatch  `json:"machine"`
	Cluster *clusterPatch `json:"cluster,omitempty"`
}

type machinePatch struct {
	Registries *registriesPatch `json:"registries,omitempty"`
	Time       *disabled        `json:"time,omitempty"`
	Kubelet    kubeletPatch     `json:"kubelet"`
	Files      []file           `json:"files,omitempty"`
}

type registriesPatch struct {
	Mirrors map[string]mirror `json:"mirrors"`
}

type mirror struct {
	Endpoints    []string `json:"endpoints"`
	SkipFallback bool     `json:"skipFallback"`
}

type disabled struct {
	Disabled bool `json:"disabled"`
}

type kubeletPatch struct {
	ExtraConfig map[string]any `json:"extraConfig"`
	ExtraMounts []mount        `json:"extraMounts,omitempty"`
}

type mount struct {
	Destination string   `json:"destination"`
	Source      string   `json:"source"`
	Type        string   `json:"type"`
	Options     []string `json:"options"`
}

type file struct {
	Path        string `json:"path"`
	Op          string `json:"op"`
	Permissions int    `json:"permissions,omitempty"`
	Content     string `json:"content"`
}

type clusterPatch struct {
	Discovery struct {
		Enabled bool `json:"enabled"`
	} `json:"discovery"`
	Network                        networkPatch `json:"network"`
	Proxy                          disabled     `json:"proxy"`
	CoreDNS                        disabled     `json:"coreDNS"`
	AllowSchedulingOnControlPlanes bool         `json:"allowSchedulingOnControlPlanes"`
}

type networkPatch struct {
	CNI struct {
		Name string `json:"name"`
	} `json:"cni"`
}

// registries are those that Talos and Kubernetes pull from.
var registries = []string{"registry.k8s.io", "ghcr.io", "gcr.io", "docker.io"} //nolint:gochecknoglobals // a constant table

const (
	// criFile is what Talos adds to the settings of containerd.
	criFile = "/etc/cri/conf.d/20-customization.part"
	// restrictScores keeps containerd from asking for OOM scores that the machine
	// refuses.
	restrictScores = `[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
`
	// networkFolder is where a machine in a Pod finds its network of Pods: files can
	// be given to it below /var alone.
	networkFolder = "/var/cni/net.d"
	// findNetwork tells containerd so.
	findNetwork = `[plugins."io.containerd.cri.v1.runtime".cni]
  conf_dir = "` + networkFolder + `"
`
)

// Patch is the strategic patch that every node needs on a machine with those
// traits. registry is host and port of the registry that holds all images;
// without one they are pulled from where they are published.
//
// Discovery, time, CoreDNS and kube-proxy are off: they want what is outside of
// the machine, or images that are not in the registry.
func Patch(traits machine.Traits, registry string) (string, error) {
	p := newPatch(traits, registry)
	p.withoutDefaults()
	return p.text()
}

// DefaultsPatch is Patch for a cluster with all that Talos brings by default.
func DefaultsPatch(traits machine.Traits, registry string) (string, error) {
	return newPatch(traits, registry).text()
}

// PodPatch is Patch for machines in Pods. Nobody puts the configuration of a
// network into their file system, so the patch does: a bridge with addresses of
// network.
func PodPatch(traits machine.Traits, registry string, network netip.Prefix) (string, error) {
	p := newPatch(traits, registry)
	p.withoutDefaults()
	settings := findNetwork
	if !traits.SysResource {
		settings = restrictScores + settings
	}
	bridge, err := bridge(network)
	if err != nil {
		return "", err
	}
	const readable = 0o644
	p.Machine.Files = []file{
		{Path: networkFolder + "/10-bridge.conflist", Op: "create", Permissions: readable, Content: bridge},
		{Path: criFile, Op: "create", Content: settings},
	}
	return p.text()
}

// bridge describes a network of Pods for the plugins of CNI.
func bridge(network netip.Prefix) (string, error) {
	type object = map[string]any
	content, err := json.Marshal(object{
		"cniVersion": "1.0.0", "name": "pods",
		"plugins": []object{{
			"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": object{
				"type":   "host-local",
				"ranges": [][]object{{{"subnet": network.String()}}},
				"routes": []object{{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		return "", fmt.Errorf("describing the network of Pods: %w", err)
	}
	return string(content), nil
}

func newPatch(traits machine.Traits, registry string) patch {
	p := patch{
		Machine: machinePatch{
			Kubelet: kubeletPatch{ExtraConfig: map[string]any{
				"httpCheckFrequency": "1s",
				// The disk is that of this machine, and much else is on it: shares of
				// it that are free say nothing.
				"imageGCHighThresholdPercent": 100,
				"evictionHard": map[string]string{
					"memory.available": "100Mi", "nodefs.available": "1Gi", "nodefs.inodesFree": "1%", "imagefs.available": "1Gi",
				},
			}},
		},
	}
	if !traits.SysResource {
		p.Machine.Files = []file{{Path: criFile, Op: "create", Content: restrictScores}}
	}
	if registry != "" {
		p.Machine.Registries = &registriesPatch{Mirrors: map[string]mirror{}}
		for _, name := range registries {
			p.Machine.Registries.Mirrors[name] = mirror{Endpoints: []string{"http://" + registry}, SkipFallback: true}
		}
	}
	if len(traits.CgroupV1) > 0 {
		p.Machine.Kubelet.ExtraConfig["failCgroupV1"] = false
	}
	for _, controller := range traits.CgroupV1 {
		path := "/sys/fs/cgroup/" + controller
		p.Machine.Kubelet.ExtraMounts = append(p.Machine.Kubelet.ExtraMounts,
			mount{Destination: path, Source: path, Type: "bind", Options: []string{"rbind", "rw"}})
	}
	return p
}

// withoutDefaults turns off what Talos brings by default and what wants other machines.
func (p *patch) withoutDefaults() {
	p.Machine.Time = &disabled{true}
	p.Cluster = &clusterPatch{Proxy: disabled{true}, CoreDNS: disabled{true}, AllowSchedulingOnControlPlanes: true}
	p.Cluster.Network.CNI.Name = "none"
}

func (p patch) text() (string, error) {
	text, err := yaml.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("writing the patch of Talos nodes: %w", err)
	}
	return string(text), nil
}
