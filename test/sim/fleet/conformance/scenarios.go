package conformance

import (
	"context"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

// bootstrap makes a cluster of one: what a control plane node answers before it
// has data, and to a second bootstrap.
func (p *play) bootstrap(ctx context.Context, host fleet.Host) error {
	const scenario = "bootstrap"
	if err := p.configure(ctx, host, configgen.RoleControlPlane, p.name(host)); err != nil {
		return err
	}
	if err := p.awaitService(ctx, scenario, host, "Preparing"); err != nil {
		return err
	}
	p.etcd(ctx, scenario, host)
	if err := p.await(ctx, "bootstrapping", func() error { return p.call(ctx, host, bootstrap) }); err != nil {
		return err
	}
	if err := p.awaitService(ctx, scenario, host, "Running"); err != nil {
		return err
	}
	// Until there is data, a further call would begin it anew.
	err := p.await(ctx, "waiting for the first data of etcd", func() error {
		node, err := p.pool.Secure(ctx, host.Address, p.credentials)
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		exists, err := node.EtcdDataExists(ctx)
		if err == nil && !exists {
			err = fmt.Errorf("etcd of %s has no data", host.Name)
		}
		return err
	})
	if err != nil {
		return err
	}
	p.ask(ctx, scenario, "once more", host, bootstrap)
	return p.ready(ctx, host)
}

// ready waits until a machine runs and nothing is unmet.
func (p *play) ready(ctx context.Context, host fleet.Host) error {
	return p.await(ctx, "waiting until "+host.Name+" is ready", func() error {
		node, err := p.pool.Secure(ctx, host.Address, p.credentials)
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		status, err := node.MachineStatus(ctx)
		if err == nil && !status.Ready {
			err = fmt.Errorf("it is in stage %s, unmet: %q", status.Stage, status.Unmet)
		}
		return err
	})
}

// worker asks a worker what only control plane nodes do.
func (p *play) worker(ctx context.Context) error {
	const scenario = "worker"
	host := p.hosts[4]
	if err := p.configure(ctx, host, configgen.RoleWorker, p.name(host)); err != nil {
		return err
	}
	if err := p.ready(ctx, host); err != nil {
		return err
	}
	p.etcd(ctx, scenario, host)
	p.ask(ctx, scenario, "bootstrap", host, bootstrap)
	p.ask(ctx, scenario, "a database", host, sending(nil))
	p.ask(ctx, scenario, "bootstrap from it", host, bootstrapFromSnapshot)
	p.ask(ctx, scenario, "leave", host, leave)
	p.ask(ctx, scenario, "forfeit", host, forfeit)
	p.ask(ctx, scenario, "remove", host, removal(1))
	return nil
}

func forfeit(ctx context.Context, client machine.MachineServiceClient) error {
	_, err := client.EtcdForfeitLeadership(ctx, &machine.EtcdForfeitLeadershipRequest{})
	return err
}

func removal(id uint64) func(context.Context, machine.MachineServiceClient) error {
	return func(ctx context.Context, client machine.MachineServiceClient) error {
		_, err := client.EtcdRemoveMemberByID(ctx, &machine.EtcdRemoveMemberByIDRequest{MemberId: id})
		return err
	}
}

// join adds two members, one after the other: each is a learner first.
func (p *play) join(ctx context.Context) error {
	const scenario = "join"
	first := p.hosts[0]
	voters := []string{"host-1 voter at host-1"}
	for _, host := range p.hosts[1:3] {
		if err := p.configure(ctx, host, configgen.RoleControlPlane, p.name(host)); err != nil {
			return err
		}
		learner := append(append([]string(nil), voters...), fmt.Sprintf("%[1]s learner at %[1]s", p.name(host)))
		if err := p.awaitMembers(ctx, scenario, first, learner...); err != nil {
			return err
		}
		if err := p.awaitService(ctx, scenario, host, "Running"); err != nil {
			return err
		}
		voters = append(voters, fmt.Sprintf("%[1]s voter at %[1]s", p.name(host)))
		if err := p.awaitMembers(ctx, scenario, first, voters...); err != nil {
			return err
		}
	}
	p.etcd(ctx, scenario, p.hosts[2])
	return nil
}

// twin adds a node under the name of another: the older member is evicted.
func (p *play) twin(ctx context.Context) error {
	const scenario = "duplicate host name"
	older, newer := p.hosts[2], p.hosts[3]
	if err := p.configure(ctx, newer, configgen.RoleControlPlane, p.name(older)); err != nil {
		return err
	}
	if err := p.awaitMembers(ctx, scenario, p.hosts[0], "host-1 voter at host-1", "host-2 voter at host-2", "host-3 voter at host-4"); err != nil {
		return err
	}
	// Its etcd was removed, and ends again and again.
	if err := p.await(ctx, "waiting for the end of the older one", func() error {
		if p.call(ctx, older, etcdStatus) == nil {
			return fmt.Errorf("%s still answers", older.Name)
		}
		return nil
	}); err != nil {
		return err
	}
	p.ask(ctx, scenario, "the older one bootstraps", older, bootstrap)
	p.ask(ctx, scenario, "its data directory", older, data)
	return nil
}

// leave makes a node leave: it has no data then, and no etcd until it boots.
func (p *play) leave(ctx context.Context) error {
	const scenario = "leave"
	host := p.hosts[1]
	p.ask(ctx, scenario, "forfeit", host, forfeit)
	// Etcd does not let a member go before its peers have been connected for 5 s.
	// Talos tries until then, and afterwards stops etcd: a call that ends in
	// between leaves a node that no longer is a member and cannot be asked again.
	if err := p.callFor(ctx, host, p.patience, leave); err != nil {
		return fmt.Errorf("leaving: %w", err)
	}
	if err := p.awaitMembers(ctx, scenario, p.hosts[0], "host-1 voter at host-1", "host-3 voter at host-4"); err != nil {
		return err
	}
	if err := p.awaitService(ctx, scenario, host, "Finished"); err != nil {
		return err
	}
	p.etcd(ctx, scenario, host)
	p.ask(ctx, scenario, "leave again", host, leave)
	return nil
}

// comeBack restarts the node that has left: it joins again, as a learner.
func (p *play) comeBack(ctx context.Context) error {
	const scenario = "restart after leave"
	host := p.hosts[1]
	if err := p.machines.Restart(ctx, host); err != nil {
		return err
	}
	if err := p.awaitMembers(ctx, scenario, p.hosts[0], "host-1 voter at host-1", "host-2 learner at host-2", "host-3 voter at host-4"); err != nil {
		return err
	}
	return p.awaitMembers(ctx, scenario, p.hosts[0], "host-1 voter at host-1", "host-2 voter at host-2", "host-3 voter at host-4")
}

// remove takes a member out by its ID through a peer: it does not come back.
func (p *play) remove(ctx context.Context) error {
	const scenario = "remove"
	host := p.hosts[1]
	_, ids, err := p.members(ctx, p.hosts[0])
	if err != nil {
		return err
	}
	if err := p.await(ctx, "removing", func() error { return p.call(ctx, p.hosts[0], removal(ids[p.name(host)])) }); err != nil {
		return err
	}
	p.ask(ctx, scenario, "once more", p.hosts[0], removal(ids[p.name(host)]))
	if err := p.awaitMembers(ctx, scenario, p.hosts[0], "host-1 voter at host-1", "host-3 voter at host-4"); err != nil {
		return err
	}
	if err := p.await(ctx, "waiting for the end of the removed one", func() error {
		if p.call(ctx, host, etcdStatus) == nil {
			return fmt.Errorf("%s still answers", host.Name)
		}
		return nil
	}); err != nil {
		return err
	}
	p.ask(ctx, scenario, "the removed one bootstraps", host, bootstrap)
	p.ask(ctx, scenario, "its data directory", host, data)
	return nil
}

// reset wipes a node: its member stays, and it waits in maintenance mode.
func (p *play) reset(ctx context.Context) error {
	const scenario = "reset"
	host := p.hosts[3]
	if err := p.wipe(ctx, host); err != nil {
		return err
	}
	p.say(scenario, "the machine", "is wiped and waits in maintenance mode")
	p.ask(ctx, scenario, "the other of two members lists", p.hosts[0], list(false))
	return nil
}

// wipe resets a node, and waits until it is wiped.
func (p *play) wipe(ctx context.Context, host fleet.Host) error {
	if err := p.call(ctx, host, func(ctx context.Context, client machine.MachineServiceClient) error {
		_, err := client.Reset(ctx, &machine.ResetRequest{Reboot: true})
		return err
	}); err != nil {
		return fmt.Errorf("resetting %s: %w", host.Name, err)
	}
	return p.await(ctx, "waiting for the wipe", func() error { return p.machines.Wiped(ctx, host) })
}
