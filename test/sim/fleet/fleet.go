// Package fleet is what the test bed offers as machines. The same scenarios
// run on every fleet: pretended Talos machines in this process, or real ones in
// containers.
package fleet

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Fleet is a set of machines that boot Talos by themselves, and the balancer
// in front of the control planes that are built of them.
type Fleet interface {
	// Name is "sim" or "docker".
	Name() string
	// KubernetesVersion is the Kubernetes version that its machines can run,
	// with its "v".
	KubernetesVersion() string
	// NextKubernetesVersion is another version to which a cluster can be brought;
	// empty when its machines run no other.
	NextKubernetesVersion() string
	// TalosVersion is the Talos release of its machines, with its "v".
	TalosVersion() string
	// RunsWorkloads reports whether a Pod really runs in a cluster of this fleet.
	RunsWorkloads() bool
	// Add boots that many more machines, and returns them once each answers in
	// maintenance mode.
	Add(ctx context.Context, count int) ([]Host, error)
	// Hosts are all machines of the fleet, in the order of their creation.
	Hosts() []Host
	// Endpoint reserves a control plane endpoint, and makes the balancer serve
	// it with those machines that are control plane nodes of its cluster.
	// Asking again for a name returns the same endpoint.
	Endpoint(ctx context.Context, name string) (Endpoint, error)
	// Restart takes the power from a machine and gives it back. What is on its
	// volumes stays. It returns before the machine is up again.
	Restart(ctx context.Context, host Host) error
	// Destroy takes a machine away for good: it never answers again.
	Destroy(ctx context.Context, host Host) error
	// KeepDataOnReset tells the fleet whether its machines reboot without
	// wiping anything when they are reset.
	KeepDataOnReset(ctx context.Context, keep bool) error
	// Wiped looks at the machine itself, past the Talos API. It returns nil when
	// the machine waits in maintenance mode and holds nothing of a cluster.
	Wiped(ctx context.Context, host Host) error
	// Bootstraps counts how often etcd was bootstrapped anew on the machines of
	// this fleet; a fleet that cannot know returns -1.
	Bootstraps() int
	// CollectLogs writes what the machines logged into files in dir.
	CollectLogs(ctx context.Context, dir string) error
	// Close takes the machines and the balancer down. It may be called twice.
	Close(ctx context.Context) error
}

// Contract is the configuration contract of a fleet's release of Talos: v1.13.
func Contract(machines Fleet) string {
	version := machines.TalosVersion()
	return version[:strings.LastIndex(version, ".")]
}

// Endpoint is a control plane endpoint.
type Endpoint struct {
	// Host is an IP address.
	Host string
	// Port is a TCP port.
	Port int32
}

// Host is a machine of a fleet.
type Host struct {
	// Name is unique within the fleet, and fit for a TalosHost.
	Name string
	// Address is the IP address of its Talos API.
	Address string
	// UUID is its SMBIOS UUID; empty for a container.
	UUID string
	// MACAddress is the hardware address of its link; a container is known by
	// it.
	MACAddress string
	// StrategicPatches are what its surroundings need in every configuration.
	StrategicPatches []string
	// InstallDisk is the disk to install on, and InstallSerial a pattern of its serial number
	// where it is not named by its path; both are empty for a container.
	InstallDisk, InstallSerial string
	// FailureDomain is where the machine is said to stand; empty is nowhere. A
	// fleet does not know: Spread tells it.
	FailureDomain string
}

// Spread puts machines into failure domains, one after the other.
func Spread(hosts []Host, domains ...string) []Host {
	spread := slices.Clone(hosts)
	for i := range spread {
		if len(domains) > 0 {
			spread[i].FailureDomain = domains[i%len(domains)]
		}
	}
	return spread
}

// Manifest is the TalosHost that stands for the machine.
func (h Host) Manifest(namespace string, labels map[string]string) *infrav1.TalosHost {
	host := &infrav1.TalosHost{
		TypeMeta:   metav1.TypeMeta{APIVersion: infrav1.GroupVersion.String(), Kind: "TalosHost"},
		ObjectMeta: metav1.ObjectMeta{Name: h.Name, Namespace: namespace, Labels: labels},
		Spec: infrav1.TalosHostSpec{
			Addresses:        []string{h.Address},
			Identity:         infrav1.HostIdentity{UUID: h.UUID},
			StrategicPatches: h.StrategicPatches,
			FailureDomain:    h.FailureDomain,
		},
	}
	if h.MACAddress != "" {
		host.Spec.Identity.MACAddresses = []string{strings.ToLower(h.MACAddress)}
	}
	if h.InstallDisk != "" {
		host.Spec.Install.Disk = h.InstallDisk
	}
	if h.InstallSerial != "" {
		host.Spec.Install.DiskSelector.Serial = h.InstallSerial
	}
	return host
}
