// Package snapshot takes snapshots of the etcd of clusters: from a member that is well, and
// that the cluster needs least.
package snapshot

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/backup/internal/idle"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// defaultPatience is for how long a node may send nothing of a snapshot that is waited for.
const defaultPatience = time.Minute

// buffer is how much of a snapshot is read ahead, in bytes.
const buffer = 64 << 10

// ErrNoQuorum says that the members that answer are no majority: what they have may be old.
var ErrNoQuorum = errors.New("the members of etcd that answer are no majority; there is nothing to back up that the cluster has agreed on")

// Taker takes snapshots.
type Taker struct {
	// Dialer opens connections to nodes. It is required.
	Dialer talosclient.Dialer
	// Patience is for how long a node may send nothing of a snapshot that is waited for; 0
	// means a minute.
	Patience time.Duration
}

// Credentials are those for the nodes of a cluster.
type Credentials struct {
	// Reader looks at nodes, and Backup takes snapshots.
	Reader, Backup talosclient.Credentials
}

// Snapshot is a snapshot that has begun. It is closed by who reads it.
type Snapshot struct {
	io.ReadCloser

	// Member is the ID of the member that gives it, as etcd writes it, and Machine the
	// Machine that the member runs on.
	Member  string
	Machine *clusterv1.Machine
	// RaftIndex is how far the member had come before.
	RaftIndex uint64
	// TalosVersion and EtcdVersion are what the Machine runs.
	TalosVersion, EtcdVersion string
}

// member is a node that answers, and what it says.
type member struct {
	machine *clusterv1.Machine
	address string
	view    *etcd.View
	talos   string
}

// Take begins a snapshot of the etcd of the control plane Machines of a cluster, after so many
// attempts that have failed: a snapshot may fail long after it has begun, so that the next one is
// another member's. It fails with ErrNoQuorum, or with what is wrong with each member that could
// have given one. The snapshot ends with ctx.
func (t *Taker) Take(ctx context.Context, machines []*clusterv1.Machine, credentials Credentials, failures int32) (*Snapshot, error) {
	members, err := t.look(ctx, machines, credentials.Reader)
	views := make([]etcd.View, 0, len(members))
	for _, found := range members {
		views = append(views, *found.view)
	}
	health := etcd.Judge(views)
	if !health.HasQuorum() {
		return nil, errors.Join(ErrNoQuorum, err)
	}
	var failed []error
	for _, candidate := range candidates(members, health, failures) {
		snapshot, err := t.begin(ctx, candidate, credentials.Backup)
		if err == nil {
			return snapshot, nil
		}
		failed = append(failed, fmt.Errorf("taking a snapshot of Machine %s: %w", candidate.machine.Name, err))
	}

	return nil, errors.Join(failed...)
}

// look asks all nodes at the same time. Those that do not answer are in the error.
func (t *Taker) look(ctx context.Context, machines []*clusterv1.Machine, reader talosclient.Credentials) ([]member, error) {
	var (
		mu      sync.Mutex
		group   sync.WaitGroup
		members []member
		failed  []error
	)
	for _, machine := range machines {
		if !capimachine.IsProvisioned(machine) {
			continue
		}
		group.Go(func() {
			found, err := t.ask(ctx, machine, reader)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, fmt.Errorf("asking Machine %s: %w", machine.Name, err))
				return
			}
			members = append(members, *found)
		})
	}
	group.Wait()

	return members, errors.Join(failed...)
}

func (t *Taker) ask(ctx context.Context, machine *clusterv1.Machine, reader talosclient.Credentials) (*member, error) {
	node, err := talosclient.Reach(ctx, t.Dialer, reader, talosclient.Target{Addresses: capimachine.Addresses(machine), Hostname: machine.Name})
	if err != nil {
		return nil, err
	}
	defer func() { _ = node.Close() }()
	view, err := etcd.Look(ctx, node)
	if err != nil {
		return nil, err
	}
	version, err := node.Version(ctx)
	if err != nil {
		return nil, err
	}

	return &member{machine: machine, address: node.Address, view: view, talos: version}, nil
}

// candidates are the members that may give the snapshot, the best first: voters that follow
// the leader, none of whose data is known to be corrupt. The leader, who has the most to
// do, comes last, and one that is behind after one that is not. The others go round with each
// failure.
func candidates(members []member, health etcd.Health, failures int32) []member {
	found := slices.DeleteFunc(slices.Clone(members), func(m member) bool {
		isCorrupt := slices.ContainsFunc(health.Alarms, func(alarm etcd.Alarm) bool {
			return alarm.MemberID == m.view.Self && alarm.Alarm == etcd.AlarmCorrupt
		})

		return isCorrupt || !health.Answers(m.view.Self)
	})
	leads := func(m member) int {
		if m.view.Self == health.Leader {
			return 1
		}

		return 0
	}
	slices.SortFunc(found, func(a, b member) int {
		return cmp.Or(cmp.Compare(leads(a), leads(b)), cmp.Compare(a.view.Lag, b.view.Lag), cmp.Compare(a.machine.Name, b.machine.Name))
	})
	followers := slices.IndexFunc(found, func(m member) bool { return leads(m) > 0 })
	if followers < 0 {
		followers = len(found)
	}
	first := int(failures) % max(followers, 1)

	return slices.Concat(found[first:followers], found[:first], found[followers:])
}

// begin begins a snapshot of a member, and waits for its first bytes: a node that refuses
// says so in their place.
func (t *Taker) begin(ctx context.Context, from member, backup talosclient.Credentials) (_ *Snapshot, err error) {
	ctx, cancel := context.WithCancel(ctx)
	node, err := t.Dialer.Secure(ctx, from.address, backup)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connecting to %s: %w", from.address, err)
	}
	made := &stream{cancel: cancel, node: node}
	defer func() {
		if err != nil {
			_ = made.Close()
		}
	}()
	status, err := node.EtcdStatus(ctx)
	if err != nil {
		return nil, err
	}
	if status.MemberID != from.view.Self {
		return nil, fmt.Errorf("%w: its member is %s instead of %s", talosclient.ErrOtherNode, etcd.FormatID(status.MemberID), etcd.FormatID(from.view.Self))
	}
	if made.snapshot, err = node.EtcdSnapshot(ctx); err != nil {
		return nil, err
	}
	made.ahead = bufio.NewReaderSize(idle.Reader(made.snapshot, cmp.Or(t.Patience, defaultPatience), cancel, errSilent), buffer)
	if _, err := made.ahead.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}

	return &Snapshot{
		ReadCloser: made, Member: etcd.FormatID(status.MemberID), Machine: from.machine, RaftIndex: status.RaftIndex,
		TalosVersion: from.talos, EtcdVersion: status.Version,
	}, nil
}

// stream is a snapshot that ends where its node sends nothing any more.
type stream struct {
	cancel   context.CancelFunc
	node     io.Closer
	snapshot io.ReadCloser
	ahead    *bufio.Reader
}

// errSilent says that a node has sent nothing for too long.
var errSilent = errors.New("the node has sent nothing of the snapshot for too long")

// Read implements io.Reader.
func (s *stream) Read(into []byte) (int, error) { return s.ahead.Read(into) } //nolint:wrapcheck // io.EOF must stay as it is.

// Close implements io.Closer.
func (s *stream) Close() error {
	s.cancel()
	var err error
	if s.snapshot != nil {
		err = s.snapshot.Close()
	}

	return errors.Join(err, s.node.Close())
}
