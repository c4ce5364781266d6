package talosclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"go.yaml.in/yaml/v4"
)

const (
	mebibyte = 1 << 20
	// platformContainer is the Talos platform of a node in a container.
	platformContainer = "container"
)

// MachineStatus implements Node.
func (n *node) MachineStatus(ctx context.Context) (MachineStatus, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := safe.StateGetByID[*talosruntime.MachineStatus](ctx, n.COSI, talosruntime.MachineStatusID)
	if state.IsNotFoundError(err) {
		return MachineStatus{Stage: StageUnknown}, nil
	}
	if err != nil {
		return MachineStatus{}, fmt.Errorf("reading the machine status: %w", err)
	}
	return machineStatus(res), nil
}

// WatchMachineStatus implements Node.
func (n *node) WatchMachineStatus(ctx context.Context, fn func(MachineStatus)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	events := make(chan state.Event)
	if err := n.COSI.Watch(ctx, talosruntime.NewMachineStatus().Metadata(), events); err != nil {
		return fmt.Errorf("watching the machine status: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-events:
			switch event.Type {
			case state.Errored:
				return fmt.Errorf("watching the machine status: %w", event.Error)
			case state.Created, state.Updated:
				if res, ok := event.Resource.(*talosruntime.MachineStatus); ok {
					fn(machineStatus(res))
				}
			case state.Destroyed, state.Bootstrapped, state.Noop:
			}
		}
	}
}

func machineStatus(res *talosruntime.MachineStatus) MachineStatus {
	spec := res.TypedSpec()
	status := MachineStatus{Stage: spec.Stage.String(), Ready: spec.Status.Ready}
	for _, condition := range spec.Status.UnmetConditions {
		status.Unmet = append(status.Unmet, condition.Name+": "+condition.Reason)
	}
	slices.Sort(status.Unmet)
	return status
}

// Hardware implements Node.
func (n *node) Hardware(ctx context.Context) (Hardware, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	// All at once, for the sake of slow machines; each fills fields of its own.
	reads := []func(context.Context, *Hardware) error{
		n.readPlatform, n.readArchitecture, n.readSystem, n.readProcessors, n.readMemory, n.readDisks, n.readLinks,
		n.readSchematic, n.readSecurity, n.readInstallation,
	}
	var (
		found Hardware
		group sync.WaitGroup
		errs  = make([]error, len(reads))
	)
	for i, read := range reads {
		group.Go(func() { errs[i] = read(ctx, &found) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return Hardware{}, fmt.Errorf("reading the hardware: %w", err)
	}
	return found, nil
}

func (n *node) readPlatform(ctx context.Context, found *Hardware) error {
	res, err := safe.StateGetByID[*talosruntime.PlatformMetadata](ctx, n.COSI, talosruntime.PlatformMetadataID)
	if state.IsNotFoundError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found.Platform = res.TypedSpec().Platform
	found.Mode = "metal"
	if found.Platform == platformContainer {
		found.Mode = platformContainer
	}
	return nil
}

func (n *node) readArchitecture(ctx context.Context, found *Hardware) error {
	info, err := n.version(ctx)
	if err != nil {
		return err
	}
	found.Architecture = info.GetVersion().GetArch()
	return nil
}

func (n *node) readSystem(ctx context.Context, found *Hardware) error {
	res, err := safe.StateGetByID[*hardware.SystemInformation](ctx, n.COSI, hardware.SystemInformationID)
	if state.IsNotFoundError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	spec := res.TypedSpec()
	found.SystemUUID = strings.ToLower(spec.UUID)
	found.SerialNumber, found.Manufacturer, found.ProductName = spec.SerialNumber, spec.Manufacturer, spec.ProductName
	return nil
}

func (n *node) readProcessors(ctx context.Context, found *Hardware) error {
	return each(ctx, n.COSI, func(res *hardware.Processor) {
		found.CPUs += int32(min(res.TypedSpec().CoreCount, 1<<16))
	})
}

func (n *node) readMemory(ctx context.Context, found *Hardware) error {
	return each(ctx, n.COSI, func(res *hardware.MemoryModule) {
		found.MemoryBytes += int64(res.TypedSpec().Size) * mebibyte
	})
}

func (n *node) readDisks(ctx context.Context, found *Hardware) error {
	return each(ctx, n.COSI, func(res *block.Disk) {
		spec := res.TypedSpec()
		found.Disks = append(found.Disks, Disk{
			DevPath: spec.DevPath, SizeBytes: int64(spec.Size), //nolint:gosec // G115: no disk has 2^63 bytes.
			Model: spec.Model, Serial: spec.Serial, WWID: spec.WWID, BusPath: spec.BusPath, Transport: spec.Transport,
			Rotational: spec.Rotational, ReadOnly: spec.Readonly, CDROM: spec.CDROM, Symlinks: spec.Symlinks,
		})
	})
}

func (n *node) readLinks(ctx context.Context, found *Hardware) error {
	return each(ctx, n.COSI, func(res *network.LinkStatus) {
		spec := res.TypedSpec()
		// A veth that no bridge of the node owns is the link of a node in a container.
		if !spec.Physical() && (spec.Kind != "veth" || spec.MasterIndex != 0) {
			return
		}
		address := spec.PermanentAddr
		if len(address) == 0 {
			address = spec.HardwareAddr
		}
		if len(address) == 0 {
			return
		}
		found.Links = append(found.Links, Link{
			Name: res.Metadata().ID(), HardwareAddress: strings.ToLower(address.String()), Up: spec.LinkState,
		})
	})
}

// Volumes implements Node. A machine without a configuration manages hardly any
// volume, so what lies on its disks is told by what was found there.
func (n *node) Volumes(ctx context.Context) ([]Volume, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var volumes []Volume
	err := each(ctx, n.COSI, func(res *block.VolumeStatus) {
		spec := res.TypedSpec()
		volumes = append(volumes, Volume{
			ID: res.Metadata().ID(), Type: spec.Type.String(), Phase: spec.Phase.String(), Location: spec.Location, Filesystem: spec.Filesystem.String(),
			ParentLocation: spec.ParentLocation, PartitionIndex: spec.PartitionIndex, UUID: cmp.Or(spec.PartitionUUID, spec.UUID),
		})
	})
	if err == nil {
		err = each(ctx, n.COSI, func(res *block.DiscoveredVolume) {
			spec := res.TypedSpec()
			volumes = append(volumes, Volume{
				Discovered: true, ID: spec.PartitionLabel, Type: spec.Type, Location: spec.DevPath, Filesystem: spec.Name,
				ParentLocation: spec.ParentDevPath, PartitionIndex: int(spec.PartitionIndex), UUID: cmp.Or(spec.PartitionUUID, spec.UUID),
			})
		})
	}
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	return volumes, nil
}

// Hostname implements Node.
func (n *node) Hostname(ctx context.Context) (string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	res, err := safe.StateGetByID[*network.HostnameStatus](ctx, n.COSI, network.HostnameID)
	if state.IsNotFoundError(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the host name: %w", err)
	}
	return res.TypedSpec().Hostname, nil
}

// StaticPods implements Node.
func (n *node) StaticPods(ctx context.Context) ([]StaticPod, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var pods []StaticPod
	err := each(ctx, n.COSI, func(res *k8s.StaticPodStatus) {
		id := res.Metadata().ID()
		if _, name, found := strings.Cut(id, "/"); found {
			id = name
		}
		pod := StaticPod{Name: id}
		pod.Phase, _ = res.TypedSpec().PodStatus["phase"].(string)
		conditions, _ := res.TypedSpec().PodStatus["conditions"].([]any)
		for _, entry := range conditions {
			condition, _ := entry.(map[string]any)
			if condition["type"] == "Ready" {
				pod.Ready = condition["status"] == "True"
			}
		}
		pods = append(pods, pod)
	})
	if err != nil {
		return nil, fmt.Errorf("listing static Pods: %w", err)
	}
	return pods, nil
}

// manifestController renders Talos' own manifests; those of the user come from other
// controllers (internal/app/machined/pkg/controllers/k8s/manifest.go).
const manifestController = "k8s.ManifestController"

// Manifests implements Node.
func (n *node) Manifests(ctx context.Context) ([]map[string]any, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	var objects []map[string]any
	err := each(ctx, n.COSI, func(res *k8s.Manifest) {
		if res.Metadata().Owner() != manifestController {
			return
		}
		for _, item := range res.TypedSpec().Items {
			if item.Object["kind"] != "Secret" {
				objects = append(objects, item.Object)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listing the built-in manifests: %w", err)
	}
	return objects, nil
}

// each calls fn for every resource of one type; a type that the node does not
// know counts as none.
func each[T generic.ResourceWithRD](ctx context.Context, from state.State, fn func(T)) error {
	list, err := safe.StateListAll[T](ctx, from)
	if state.IsNotFoundError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for res := range list.All() {
		fn(res)
	}
	return nil
}

// specText is the spec of a resource as YAML; nil when the resource is not there. It is
// for specs whose messages differ between releases of Talos.
func (n *node) specText(ctx context.Context, of resource.Pointer) ([]byte, error) {
	res, err := n.COSI.Get(ctx, of, state.WithGetUnmarshalOptions(state.WithSkipProtobufUnmarshal()))
	if state.IsNotFoundError(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(res.Spec())
}
