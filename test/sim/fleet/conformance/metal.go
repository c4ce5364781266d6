package conformance

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// TakeMetal makes the record of machines with disks: it adds one to a fleet, and writes down
// what it tells of itself, as our providers read it, when it is blank, when it runs as a
// control plane node, after a reboot, and after a reset of what a release wipes. Each change
// may take patience.
func TakeMetal(ctx context.Context, machines fleet.Fleet, personality string, patience time.Duration) (Record, error) {
	p := &play{
		timeout: CallTimeout, patience: patience, machines: machines, pool: talosclient.New(),
		certificates: map[string]*tls.Certificate{},
		record:       Record{Talos: machines.TalosVersion(), Personality: personality, Scenarios: map[string][]string{}},
	}
	defer p.pool.Close()
	if err := p.prepare(ctx, 1); err != nil {
		return Record{}, err
	}
	for _, scenario := range []func(context.Context) error{p.blank, p.installed, p.rebooted, p.wiped} {
		if err := scenario(ctx); err != nil {
			return p.record, err
		}
	}
	return p.record, nil
}

func (p *play) blank(ctx context.Context) error { return p.tells(ctx, "blank", p.inMaintenance) }

func (p *play) installed(ctx context.Context) error {
	if err := p.bootstrap(ctx, p.hosts[0]); err != nil {
		return err
	}
	return p.runs(ctx, "installed")
}

func (p *play) rebooted(ctx context.Context) error {
	const scenario = "rebooted"
	if err := p.on(ctx, p.configured, func(node talosclient.Node) error { return node.Restart(ctx) }); err != nil {
		return err
	}
	// It is down before it is up again.
	if err := p.await(ctx, "waiting for the reboot to begin", func() error {
		if _, err := p.service(ctx, p.hosts[0], "etcd"); err == nil {
			return fmt.Errorf("machine %s answers", p.hosts[0].Name)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := p.awaitService(ctx, scenario, p.hosts[0], "Running"); err != nil {
		return err
	}
	if err := p.ready(ctx, p.hosts[0]); err != nil {
		return err
	}
	return p.runs(ctx, scenario)
}

// runs writes down what the machine tells of itself and of etcd, once all of it runs.
func (p *play) runs(ctx context.Context, scenario string) error {
	if err := p.await(ctx, "waiting for all of it to run", func() error {
		return p.on(ctx, p.configured, func(node talosclient.Node) error { return p.isUp(ctx, node) })
	}); err != nil {
		return err
	}
	if err := p.on(ctx, p.configured, func(node talosclient.Node) error { return p.tellsEtcd(ctx, scenario, node) }); err != nil {
		return err
	}
	return p.tells(ctx, scenario, p.configured)
}

// isUp fails while the machine is not ready, or its etcd is not healthy.
func (p *play) isUp(ctx context.Context, node talosclient.Node) error {
	status, err := node.MachineStatus(ctx)
	if err != nil {
		return err
	}
	if status.Stage != talosclient.StageRunning || !status.Ready {
		return fmt.Errorf("machine %s is %s, and waits for %q", p.hosts[0].Name, status.Stage, status.Unmet)
	}
	services, err := node.Services(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(services, func(service talosclient.Service) bool {
		return service.ID == "etcd" && service.HealthKnown && service.Healthy
	}) {
		return fmt.Errorf("machine %s does not say that its etcd is healthy", p.hosts[0].Name)
	}
	return nil
}

// tellsEtcd writes down what the machine tells of its etcd.
func (p *play) tellsEtcd(ctx context.Context, scenario string, node talosclient.Node) error {
	status, err := node.EtcdStatus(ctx)
	if err != nil {
		return err
	}
	data, err := node.EtcdDataExists(ctx)
	if err != nil {
		return err
	}
	spec, err := node.EtcdSpec(ctx)
	if err != nil {
		return err
	}
	p.say(scenario, "etcd", fmt.Sprintf("leads: %t, learns: %t, errors: %q, has data: %t", status.Leader == status.MemberID, status.Learner, status.Errors, data))
	p.say(scenario, "etcd is at the address of the machine", fmt.Sprint(slices.Equal(spec.AdvertisedAddresses, []string{p.hosts[0].Address})))
	return nil
}

func (p *play) wiped(ctx context.Context) error {
	labels := []string{constants.StatePartitionLabel, constants.EphemeralPartitionLabel}
	if err := p.on(ctx, p.configured, func(node talosclient.Node) error {
		return node.Reset(ctx, talosclient.ResetOptions{SystemLabels: labels})
	}); err != nil {
		return err
	}
	if err := p.await(ctx, "waiting for the wipe", func() error { return p.machines.Wiped(ctx, p.hosts[0]) }); err != nil {
		return err
	}
	return p.tells(ctx, "wiped", p.inMaintenance)
}

// dialer connects to the machine.
type dialer func(context.Context) (talosclient.Node, error)

// inMaintenance dials the machine without credentials.
func (p *play) inMaintenance(ctx context.Context) (talosclient.Node, error) {
	return p.pool.Maintenance(ctx, p.hosts[0].Address, "")
}

// configured dials the machine with a certificate of its cluster.
func (p *play) configured(ctx context.Context) (talosclient.Node, error) {
	return p.pool.Secure(ctx, p.hosts[0].Address, p.credentials)
}

// on does something with a connection to the machine.
func (p *play) on(ctx context.Context, by dialer, do func(talosclient.Node) error) error {
	node, err := by(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()
	return do(node)
}

// tells writes down what the machine tells of itself.
func (p *play) tells(ctx context.Context, scenario string, by dialer) error {
	return p.on(ctx, by, func(node talosclient.Node) error {
		status, err := node.MachineStatus(ctx)
		if err != nil {
			return err
		}
		hardware, err := node.Hardware(ctx)
		if err != nil {
			return err
		}
		volumes, err := node.Volumes(ctx)
		if err != nil {
			return err
		}
		p.say(scenario, "stage", status.Stage)
		p.say(scenario, "platform and mode", hardware.Platform+", "+hardware.Mode)
		p.say(scenario, "UUID is that of the firmware", fmt.Sprint(hardware.SystemUUID == p.hosts[0].UUID))
		p.say(scenario, "Talos is installed", fmt.Sprint(hardware.Installed))
		for _, line := range told(volumes) {
			p.say(scenario, "volume", line)
		}
		return nil
	})
}

// told are the volumes that decide about a release, a line each: what Talos manages on disks,
// and the partitions that are found there.
func told(volumes []talosclient.Volume) []string {
	var lines []string
	for _, volume := range volumes {
		system := slices.Contains([]string{constants.MetaPartitionLabel, constants.StatePartitionLabel, constants.EphemeralPartitionLabel}, volume.ID)
		switch {
		case volume.Discovered && volume.Type == talosclient.VolumePartition:
			lines = append(lines, fmt.Sprintf("found partition %d, %s, with %s", volume.PartitionIndex, volume.ID, cmp.Or(volume.Filesystem, "nothing")))
		case !volume.Discovered && system:
			lines = append(lines, fmt.Sprintf("managed %s, %s, %s, partition %d", volume.ID, volume.Type, volume.Phase, volume.PartitionIndex))
		}
	}
	slices.Sort(lines)
	return lines
}
