package conformance

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

const (
	// patience is how long a node may take; a real learner takes more than a
	// minute until it votes.
	patience = 5 * time.Minute
	// validity is how long client certificates are valid: longer than any record takes.
	validity = 24 * time.Hour
	// interval is how often it is looked at meanwhile.
	interval = 200 * time.Millisecond
	// admin is the role of scenarios.
	admin = secrets.RoleAdmin
)

// Machines is how many machines Take adds to a fleet.
const Machines = 5

// play is a cluster that rows and scenarios are done on.
type play struct {
	machines     fleet.Fleet
	bundle       *secrets.Bundle
	pool         *talosclient.Pool
	endpoint     fleet.Endpoint
	certificates map[string]*tls.Certificate
	// credentials are those of an administrator.
	credentials talosclient.Credentials
	hosts       []fleet.Host
	record      Record
	// timeout is how long a call may take, and patience how long anything else.
	timeout, patience time.Duration
}

// Take makes the record of a fleet: it adds machines, asks them all rows, and
// then does the scenarios, which change them. A call may take timeout.
func Take(ctx context.Context, machines fleet.Fleet, personality string, timeout time.Duration) (Record, error) {
	p := &play{
		timeout: timeout, patience: patience,
		machines: machines, pool: talosclient.New(), certificates: map[string]*tls.Certificate{},
		record: Record{Talos: machines.TalosVersion(), Personality: personality, Scenarios: map[string][]string{}},
	}
	defer p.pool.Close()
	if err := p.prepare(ctx, Machines); err != nil {
		return Record{}, err
	}
	blank, err := Ask(ctx, Target{Address: p.hosts[1].Address, Certificates: map[string]*tls.Certificate{Maintenance: nil}, Timeout: timeout})
	if err != nil {
		return Record{}, err
	}
	if err := p.bootstrap(ctx, p.hosts[0]); err != nil {
		return Record{}, err
	}
	if p.record.Answers, err = Ask(ctx, Target{Address: p.hosts[0].Address, Certificates: p.certificates, Timeout: timeout}); err != nil {
		return Record{}, err
	}
	for row, answers := range blank {
		maps.Copy(p.record.Answers[row], answers)
	}
	for _, scenario := range []func(context.Context) error{p.restore, p.worker, p.join, p.twin, p.leave, p.comeBack, p.remove, p.reset} {
		if err := scenario(ctx); err != nil {
			return p.record, err
		}
	}
	return p.record, nil
}

func (p *play) prepare(ctx context.Context, count int) (err error) {
	if p.bundle, err = secrets.NewBundle(time.Now(), "v1.13", nil); err != nil {
		return err
	}
	if p.endpoint, err = p.machines.Endpoint(ctx, "conformance"); err != nil {
		return err
	}
	for _, role := range []string{admin, secrets.RoleReader, "os:operator", "os:etcd:backup"} {
		creds, err := p.bundle.ClientCredentials(role, time.Now(), validity)
		if err != nil {
			return err
		}
		if role == admin {
			p.credentials = creds
		}
		pair, err := tls.X509KeyPair(creds.Cert, creds.Key)
		if err != nil {
			return fmt.Errorf("reading a client certificate: %w", err)
		}
		p.certificates[role] = &pair
	}
	p.hosts, err = p.machines.Add(ctx, count)
	return err
}

// configure hands a configuration over to a machine in maintenance mode.
func (p *play) configure(ctx context.Context, host fleet.Host, role configgen.Role, hostname string) error {
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: "v1.13", ClusterName: "conformance", KubernetesVersion: p.machines.KubernetesVersion(),
		Endpoint: fmt.Sprintf("https://%s:%d", p.endpoint.Host, p.endpoint.Port), Secrets: p.bundle.Machinery(), Hostname: hostname,
	})
	if err != nil {
		return err
	}
	overlay := configgen.HostOverlay{StrategicPatches: host.StrategicPatches, ProviderID: "talos://" + host.Name, InstallDisk: host.InstallDisk}
	if host.InstallSerial != "" {
		overlay.InstallDiskSelector = &configgen.DiskSelector{Serial: host.InstallSerial}
	}
	overlay.Container = overlay.InstallDisk == "" && overlay.InstallDiskSelector == nil
	if !overlay.Container {
		overlay.InstallImage = "ghcr.io/siderolabs/installer:" + p.machines.TalosVersion()
	}
	configuration, err := configgen.Overlay(rendered, overlay)
	if err != nil {
		return err
	}
	return p.await(ctx, "handing a configuration over to "+host.Name, func() error {
		node, err := p.pool.Maintenance(ctx, host.Address, "")
		if err != nil {
			return err
		}
		return node.ApplyConfiguration(ctx, configuration)
	})
}

// name is the name of a machine in its cluster: it does not depend on what else
// the fleet has.
func (p *play) name(host fleet.Host) string {
	return fmt.Sprintf("host-%d", 1+slices.IndexFunc(p.hosts, func(other fleet.Host) bool { return other.Name == host.Name }))
}

// await waits for something.
func (p *play) await(ctx context.Context, what string, done func() error) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := done()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-ticker.C:
		}
	}
}

// say writes into the record what was seen.
func (p *play) say(scenario, what, seen string) {
	p.record.Scenarios[scenario] = append(p.record.Scenarios[scenario], what+": "+seen)
}

// call calls a configured machine as an administrator.
func (p *play) call(ctx context.Context, host fleet.Host, call func(context.Context, machine.MachineServiceClient) error) error {
	return p.callFor(ctx, host, p.timeout, call)
}

// callFor is call with a time limit of its own.
func (p *play) callFor(ctx context.Context, host fleet.Host, limit time.Duration, call func(context.Context, machine.MachineServiceClient) error) error {
	conn, err := dial(Target{Address: host.Address, Certificates: p.certificates}, admin)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx, machine.NewMachineServiceClient(conn))
}

// ask calls a machine and writes the class of its answer into the record.
func (p *play) ask(ctx context.Context, scenario, what string, host fleet.Host, call func(context.Context, machine.MachineServiceClient) error) {
	err := p.call(ctx, host, call)
	p.say(scenario, what, answer{err: err}.text())
}

// etcd asks all that a control plane node tells about its etcd.
func (p *play) etcd(ctx context.Context, scenario string, host fleet.Host) {
	p.ask(ctx, scenario, "status", host, etcdStatus)
	p.ask(ctx, scenario, "members", host, list(false))
	p.ask(ctx, scenario, "members, of its own etcd", host, list(true))
	p.ask(ctx, scenario, "alarms", host, alarms)
	p.ask(ctx, scenario, "data directory", host, data)
}

func etcdStatus(ctx context.Context, client machine.MachineServiceClient) error {
	_, err := client.EtcdStatus(ctx, &emptypb.Empty{})
	return err
}

func alarms(ctx context.Context, client machine.MachineServiceClient) error {
	_, err := client.EtcdAlarmList(ctx, &emptypb.Empty{})
	return err
}

func list(local bool) func(context.Context, machine.MachineServiceClient) error {
	return func(ctx context.Context, client machine.MachineServiceClient) error {
		_, err := client.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{QueryLocal: local})
		return err
	}
}

func bootstrap(ctx context.Context, client machine.MachineServiceClient) error {
	_, err := client.Bootstrap(ctx, &machine.BootstrapRequest{})
	return err
}

func leave(ctx context.Context, client machine.MachineServiceClient) error {
	_, err := client.EtcdLeaveCluster(ctx, &machine.EtcdLeaveClusterRequest{})
	return err
}

func data(ctx context.Context, client machine.MachineServiceClient) error {
	stream, err := client.List(ctx, &machine.ListRequest{Root: "/var/lib/etcd"})
	if err != nil {
		return err
	}
	_, err = receive(stream)
	return err
}

// receive takes the first file, whose own error is an error.
func receive(stream grpc.ServerStreamingClient[machine.FileInfo]) (*machine.FileInfo, error) {
	file, err := stream.Recv()
	if err == nil && file.GetError() != "" {
		err = fmt.Errorf("%s", file.GetError())
	}
	return file, err
}

// service is the state of a service; empty when it is not known.
func (p *play) service(ctx context.Context, host fleet.Host, id string) (state string, err error) {
	err = p.call(ctx, host, func(ctx context.Context, client machine.MachineServiceClient) error {
		services, err := client.ServiceList(ctx, &emptypb.Empty{})
		if err != nil {
			return err
		}
		for _, service := range services.GetMessages()[0].GetServices() {
			if service.GetId() == id {
				state = service.GetState()
			}
		}
		return nil
	})
	return state, err
}

// awaitService waits until etcd on a machine is in a state.
func (p *play) awaitService(ctx context.Context, scenario string, host fleet.Host, state string) error {
	err := p.await(ctx, "waiting for etcd on "+host.Name, func() error {
		found, err := p.service(ctx, host, "etcd")
		if err == nil && found != state {
			err = fmt.Errorf("it is in state %s, not %s", found, state)
		}
		return err
	})
	if err == nil {
		p.say(scenario, "service etcd", state)
	}
	return err
}

// members are the members as a machine lists them: name, kind, and whose address
// each has.
func (p *play) members(ctx context.Context, host fleet.Host) (members []string, ids map[string]uint64, err error) {
	ids = map[string]uint64{}
	err = p.call(ctx, host, func(ctx context.Context, client machine.MachineServiceClient) error {
		response, err := client.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{})
		if err != nil {
			return err
		}
		for _, member := range response.GetMessages()[0].GetMembers() {
			kind := "voter"
			if member.GetIsLearner() {
				kind = "learner"
			}
			owner := "nobody"
			for _, host := range p.hosts {
				if slices.ContainsFunc(member.GetPeerUrls(), func(url string) bool { return strings.Contains(url, "//"+host.Address+":") }) {
					owner = p.name(host)
				}
			}
			members = append(members, fmt.Sprintf("%s %s at %s", cmp.Or(member.GetHostname(), "unnamed"), kind, owner))
			ids[owner] = member.GetId()
		}
		slices.Sort(members)
		return nil
	})
	return members, ids, err
}

// awaitMembers waits for a list of members.
func (p *play) awaitMembers(ctx context.Context, scenario string, host fleet.Host, want ...string) error {
	err := p.await(ctx, "waiting for the members", func() error {
		members, _, err := p.members(ctx, host)
		if err == nil && !slices.Equal(members, want) {
			err = fmt.Errorf("there are %q, not %q", members, want)
		}
		return err
	})
	if err == nil {
		p.say(scenario, "members", strings.Join(want, ", "))
	}
	return err
}
