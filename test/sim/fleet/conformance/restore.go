package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// restore wipes the only node of a cluster, and restores its etcd: what a node says to a
// database and to a bootstrap from it while etcd runs, and what becomes of etcd when it was
// sent nothing, an empty database, and a snapshot.
func (p *play) restore(ctx context.Context) error {
	const scenario = "restore"
	host := p.hosts[0]
	var snapshot []byte
	if err := p.callFor(ctx, host, p.patience, func(ctx context.Context, client machine.MachineServiceClient) (err error) {
		snapshot, err = snapshotOf(ctx, client)
		return err
	}); err != nil {
		return fmt.Errorf("taking a snapshot: %w", err)
	}
	p.ask(ctx, scenario, "a database while etcd runs", host, sending(nil))
	p.ask(ctx, scenario, "bootstrap from it while etcd runs", host, bootstrapFromSnapshot)
	if err := p.wipe(ctx, host); err != nil {
		return err
	}
	if err := p.configure(ctx, host, configgen.RoleControlPlane, p.name(host)); err != nil {
		return err
	}
	if err := p.awaitService(ctx, scenario, host, "Preparing"); err != nil {
		return err
	}
	for _, attempt := range []struct {
		sends  bool
		data   []byte
		begins string
	}{{begins: "Failed"}, {sends: true, begins: "Failed"}, {sends: true, data: snapshot, begins: "Running"}} {
		if attempt.sends {
			if err := p.await(ctx, "sending a database", func() error { return p.callFor(ctx, host, p.patience, sending(attempt.data)) }); err != nil {
				return err
			}
		}
		if err := p.await(ctx, "bootstrapping from a snapshot", func() error { return p.call(ctx, host, bootstrapFromSnapshot) }); err != nil {
			return err
		}
		if err := p.awaitService(ctx, scenario, host, attempt.begins); err != nil {
			return err
		}
	}
	if err := p.awaitMembers(ctx, scenario, host, "host-1 voter at host-1"); err != nil {
		return err
	}
	return p.ready(ctx, host)
}

// snapshotOf is the database of a node, with the checksum that etcd's tools want at its end.
func snapshotOf(ctx context.Context, client machine.MachineServiceClient) ([]byte, error) {
	stream, err := client.EtcdSnapshot(ctx, &machine.EtcdSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	var database []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return database, nil
		}
		if err != nil {
			return nil, err
		}
		database = append(database, part.GetBytes()...)
	}
}

// sending sends a database, in parts that fit into a message.
func sending(database []byte) func(context.Context, machine.MachineServiceClient) error {
	const most = 1 << 20
	return func(ctx context.Context, client machine.MachineServiceClient) error {
		stream, err := client.EtcdRecover(ctx)
		if err != nil {
			return err
		}
		for rest := database; len(rest) > 0; rest = rest[min(most, len(rest)):] {
			// When the stream has ended already, closing it tells why.
			if stream.Send(&common.Data{Bytes: rest[:min(most, len(rest))]}) != nil {
				break
			}
		}
		_, err = stream.CloseAndRecv()
		return err
	}
}

func bootstrapFromSnapshot(ctx context.Context, client machine.MachineServiceClient) error {
	_, err := client.Bootstrap(ctx, &machine.BootstrapRequest{RecoverEtcd: true})
	return err
}
