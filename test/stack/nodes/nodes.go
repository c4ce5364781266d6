// Package nodes puts a fleet of real Talos nodes up, with all that it needs
// around it: Docker, a network, a registry.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/dockerfleet"
	"github.com/capi-talos/capi-talos/test/stack/internal/docker"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
	"github.com/capi-talos/capi-talos/test/stack/internal/talosnode"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/pods"
)

// registryPort is where the registry listens on this machine's address in the
// network.
const registryPort = "5000"

// Options are what Nodes are made of.
type Options struct {
	// Run names what is started. There is one run of a name at a time; a new one
	// removes what is left of an earlier one.
	Run string
	// Bridge is the name of the network's device on this machine, of at most 15
	// letters. Two runs at the same time need two.
	Bridge string
	// Kind is the name of the run's cluster of kind, if it will have one.
	Kind string
	// Dir is the folder for configuration and logs.
	Dir string
	// Built are the parts listed by Parts.
	Built parts.Built
	// Previous makes clusters of the fleet start with
	// parts.PreviousKubernetesVersion, to be brought to parts.KubernetesVersion.
	// Built has parts.PreviousTalosNodeImages then, too.
	Previous bool
	// PreviousTalos makes machines run parts.PreviousTalosVersion, and clusters of the fleet
	// parts.PreviousKubernetesVersion. Built has the parts listed by PreviousTalosParts then,
	// too.
	PreviousTalos bool
	// Output is told what is done to this machine, a line each.
	Output io.Writer
}

// Nodes are a fleet and its surroundings.
type Nodes struct {
	// Fleet has no machines at first.
	Fleet *dockerfleet.Fleet
	// Docker runs the containers, Network joins them.
	Docker  *docker.Daemon
	Network *docker.Network

	options  Options
	storage  *docker.Network
	barrier  *docker.Barrier
	janitor  *docker.Janitor
	registry *talosnode.Registry
	sysctls  talosnode.Sysctls
}

// Parts are the parts that Up needs.
func Parts() []string {
	return []string{"runtime-wrapper", "registry", "talos-image", parts.TalosNodeImages}
}

// PreviousTalosParts are the parts that Up needs besides, for machines that run
// parts.PreviousTalosVersion.
func PreviousTalosParts() []string {
	return []string{parts.PreviousTalosImage, parts.PreviousTalosImages, parts.PreviousTalosNodeImages}
}

// Reason tells why there can be no real nodes on this machine; it is empty when
// there can be.
func Reason(ctx context.Context) string {
	if reason := docker.Reason(ctx); reason != "" {
		return reason
	}
	if os.Geteuid() != 0 {
		return "only root can put addresses on the network of the containers"
	}
	return ""
}

// Up starts everything but machines. When it fails, all is taken down again.
// Talos nodes change settings of this machine's kernel; Down gives them back.
func Up(ctx context.Context, options Options) (_ *Nodes, err error) {
	if reason := Reason(ctx); reason != "" {
		return nil, fmt.Errorf("starting real Talos nodes: %s", reason)
	}
	if err := os.MkdirAll(options.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the nodes: %w", err)
	}
	// Where a registry answers, what the nodes send may leave.
	confined := !machine.RegistryAnswers(ctx)
	n := &Nodes{options: options, sysctls: talosnode.ReadSysctls()}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Down(context.WithoutCancel(ctx)))
		}
	}()
	if n.Docker, err = docker.Ensure(ctx, docker.Options{
		Output: options.Output, Wrapper: options.Built.Path("runtime-wrapper"), Confined: confined,
		Log: filepath.Join(options.Dir, "dockerd.log"),
	}); err != nil {
		return nil, err
	}
	if n.janitor, err = n.Docker.NewJanitor(ctx, options.Run, options.Kind, n.sysctls.Script()); err != nil {
		return nil, err
	}
	if confined {
		if n.barrier, err = docker.Confine(ctx, options.Run); err != nil {
			return nil, err
		}
	}
	if n.Network, err = n.Docker.NewNetwork(ctx, options.Run, options.Run, options.Bridge); err != nil {
		return nil, err
	}
	if err := n.startRegistry(ctx, options); err != nil {
		return nil, err
	}
	for part, wanted := range map[string]bool{
		parts.PreviousTalosNodeImages: options.Previous || options.PreviousTalos, parts.PreviousTalosImages: options.PreviousTalos,
	} {
		if wanted {
			if err := n.offer(ctx, options.Built.Dir(part)); err != nil {
				return nil, err
			}
		}
	}
	return n, n.makeFleet(ctx, options, confined)
}

func (n *Nodes) startRegistry(ctx context.Context, options Options) error {
	all, err := parts.OpenImages(options.Built.Dir(parts.TalosNodeImages))
	if err != nil {
		return err
	}
	cache, err := parts.CacheDir()
	if err != nil {
		return err
	}
	// The folder of the part is named by what is in it.
	storage := filepath.Join(cache, "registry", filepath.Base(options.Built.Dir(parts.TalosNodeImages)))
	n.registry, err = talosnode.StartRegistry(ctx, options.Built.Path("registry"), n.Network.Gateway.String()+":"+registryPort, storage, options.Dir, all)
	return err
}

// OfferPrevious puts the images of parts.PreviousKubernetesVersion, of part
// parts.PreviousTalosNodeImages, where the nodes pull from.
func (n *Nodes) OfferPrevious(ctx context.Context, built parts.Built) error {
	return n.offer(ctx, built.Dir(parts.PreviousTalosNodeImages))
}

// offer puts the images in a folder where the nodes pull from.
func (n *Nodes) offer(ctx context.Context, folder string) error {
	all, err := parts.OpenImages(folder)
	if err != nil {
		return err
	}
	return n.registry.Push(ctx, all)
}

// OfferProgram makes an image of a static program, and puts it where the nodes pull from.
func (n *Nodes) OfferProgram(ctx context.Context, binary, name string) error {
	folder := filepath.Join(n.options.Dir, "images", filepath.Base(binary))
	if err := parts.WriteProgramImage(binary, filepath.Join(folder, "root"), folder, name); err != nil {
		return err
	}
	image, err := images.Open(folder)
	if err != nil {
		return err
	}
	return n.registry.Push(ctx, []*images.Image{image})
}

// AddWithStorage boots machines with a second link, in a network for storage that all
// such machines share, and returns the subnet of that network.
func (n *Nodes) AddWithStorage(ctx context.Context, count int) ([]fleet.Host, netip.Prefix, error) {
	if n.storage == nil {
		const suffix = "-2"
		var err error
		if n.storage, err = n.Docker.NewNetwork(ctx, n.options.Run, n.options.Run+suffix, n.options.Bridge+suffix); err != nil {
			return nil, netip.Prefix{}, err
		}
	}
	hosts, err := n.Fleet.AddWired(ctx, count, dockerfleet.Wiring{Second: dockerfleet.Link{Network: n.storage.Name, Subnet: n.storage.Subnet}})
	return hosts, n.storage.Subnet, err
}

// AddWithDefaults boots machines for a cluster with all that Talos brings by default. The
// nodes pull that from part parts.TalosDefaultImages.
func (n *Nodes) AddWithDefaults(ctx context.Context, built parts.Built, count int) ([]fleet.Host, error) {
	if err := n.offer(ctx, built.Dir(parts.TalosDefaultImages)); err != nil {
		return nil, err
	}
	patch, err := talosnode.DefaultsPatch(machine.Look(), n.registry.Address)
	if err != nil {
		return nil, err
	}
	return n.Fleet.AddWired(ctx, count, dockerfleet.Wiring{NoPods: true, StrategicPatches: []string{patch}})
}

// SlowRegistry is the address of another registry with the same images, which takes
// its time for one of them, the first time that it is asked for. It listens until
// ctx ends.
func (n *Nodes) SlowRegistry(ctx context.Context, image string, delay time.Duration) (string, error) {
	return talosnode.Delay(ctx, n.registry.Address, n.Network.Gateway.String(), image, delay)
}

// Registry is the address of the registry with the images of the nodes.
func (n *Nodes) Registry() string { return n.registry.Address }

func (n *Nodes) makeFleet(ctx context.Context, options Options, confined bool) error {
	part, talos := "talos-image", parts.TalosVersion
	if options.PreviousTalos {
		part, talos = parts.PreviousTalosImage, parts.PreviousTalosVersion
	}
	image, err := images.Open(options.Built.Dir(part))
	if err != nil {
		return err
	}
	if err := n.Docker.Load(ctx, image); err != nil {
		return err
	}
	patch, err := talosnode.Patch(machine.Look(), n.registry.Address)
	if err != nil {
		return err
	}
	nameServer := ""
	if confined {
		// Nobody answers there, and nobody is asked elsewhere.
		nameServer = n.Network.Gateway.String()
	}
	version, next := parts.KubernetesVersion, ""
	switch {
	case options.PreviousTalos:
		version = parts.PreviousKubernetesVersion
	case options.Previous:
		version, next = parts.PreviousKubernetesVersion, parts.KubernetesVersion
	}
	n.Fleet = dockerfleet.New(ctx, dockerfleet.Options{
		Docker: n.Docker, Image: image.Name, Label: docker.RunLabel(options.Run),
		Network: n.Network.Name, Bridge: n.Network.Bridge, Subnet: n.Network.Subnet, NameServer: nameServer,
		TalosVersion: talos, KubernetesVersion: version, NextKubernetesVersion: next,
		StrategicPatches: []string{patch},
	})
	return nil
}

// Pods is what clusters need here whose machines run in Pods.
func (n *Nodes) Pods() pods.Surroundings {
	traits, registry := machine.Look(), n.registry.Address
	return pods.Surroundings{
		TalosVersion: parts.TalosVersion, TalosImage: parts.TalosImage,
		Patch: func(network netip.Prefix) (string, error) { return talosnode.PodPatch(traits, registry, network) },
	}
}

// Dropped is the number of packets that tried to leave this machine from a
// container. They are counted only where no registry answers.
func (n *Nodes) Dropped(ctx context.Context) (int, error) {
	if n.barrier == nil {
		return 0, nil
	}
	return n.barrier.Dropped(ctx)
}

// Down takes everything down, the machines first. It may be called twice.
func (n *Nodes) Down(ctx context.Context) error {
	var failures []error
	if n.Fleet != nil {
		failures = append(failures, n.Fleet.Close(ctx))
	}
	if n.registry != nil {
		failures = append(failures, n.registry.Stop(ctx))
	}
	if n.janitor != nil {
		failures = append(failures, n.janitor.Clean(ctx))
	}
	if n.barrier != nil {
		failures = append(failures, n.barrier.Lift(ctx))
	}
	if n.Docker != nil {
		failures = append(failures, n.Docker.Stop(ctx))
	}
	return errors.Join(append(failures, n.sysctls.Restore())...)
}
