package etcdhistory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

// isUnclear reports whether a call may have had its effect though it failed.
func isUnclear(err error) bool {
	var said rpctypes.EtcdError
	return !errors.As(err, &said) || errors.Is(err, rpctypes.ErrTimeout) || errors.Is(err, rpctypes.ErrStopped) ||
		errors.Is(err, rpctypes.ErrTimeoutDueToLeaderFail) || errors.Is(err, rpctypes.ErrTimeoutDueToConnectionLost)
}

// isDone reports whether a refusal says that the change was made before.
func isDone(kind Kind, err error) bool {
	switch kind {
	case Remove, Leave:
		return words(err) == etcdmodel.ErrMemberNotFound.Error()
	case Promote:
		return words(err) == etcdmodel.ErrNotLearner.Error()
	case Announce:
		return words(err) == etcdmodel.ErrPeerURLExists.Error()
	case Join, Lead, Stop, Silence, Start, Wipe:
	}
	return false
}

// agree waits until the real cluster is as the model is at once: it takes writes
// or not, has the same members, the same leader, and whom it removed has ended.
func (r *run) agree(ctx context.Context) error {
	if r.judge.cluster.Leader() == 0 {
		r.counts.Inquorate++
		return r.refusesWrites(ctx)
	}
	r.checked = false
	r.counts.Quorate++
	for _, condition := range []func(context.Context) error{r.takesWrites, r.sameMembers, r.sameLeader} {
		if err := eventually(ctx, func() error { return condition(ctx) }); err != nil {
			return err
		}
	}
	r.notePeers()
	for number, n := range r.real.nodes {
		if n.process == nil || r.judge.processes[number] != ended {
			continue
		}
		if err := errors.Join(r.ends(ctx, number), r.real.kill(number)); err != nil {
			return err
		}
	}
	return nil
}

// notePeers notes whom each node knows that is in sync.
func (r *run) notePeers() {
	var members []int
	for number := range maxNodes {
		if _, listed := r.judge.listed(number); listed {
			members = append(members, number)
		}
	}
	for _, number := range r.judge.answering() {
		r.peers[number] = members
	}
}

func (r *run) write(ctx context.Context, number int) (revision int64, err error) {
	err = r.real.at(ctx, number, func(ctx context.Context, client *clientv3.Client) error {
		put, err := client.Put(ctx, "key", "value")
		if err == nil {
			revision = put.Header.Revision
		}
		return err
	})
	return revision, err
}

// takesWrites writes by way of one voter, and finds it at all members that
// answer: then they are in sync.
func (r *run) takesWrites(ctx context.Context) error {
	voters := r.judge.up(false)
	revision, err := r.write(ctx, voters[0])
	if err != nil {
		return fmt.Errorf("the model takes writes, etcd does not at n%d: %s", voters[0], words(err))
	}
	for _, number := range append(voters, r.judge.up(true)...) {
		if err := eventually(ctx, func() error { return r.reaches(ctx, number, revision) }); err != nil {
			return final{err}
		}
		r.real.trim(number)
	}
	return nil
}

func (r *run) reaches(ctx context.Context, number int, revision int64) error {
	return r.real.at(ctx, number, func(ctx context.Context, client *clientv3.Client) error {
		status, err := client.Status(ctx, r.real.url(number, clientPort))
		switch {
		case err != nil:
			return fmt.Errorf("n%d answers in the model, not in etcd: %s", number, words(err))
		case status.Header.Revision < revision:
			return fmt.Errorf("n%d does not catch up", number)
		}
		return nil
	})
}

// refusesWrites looks for longer than any election takes that no voter takes
// writes.
func (r *run) refusesWrites(ctx context.Context) error {
	voters := r.judge.up(false)
	if len(voters) == 0 || r.checked {
		return nil
	}
	const calm = 2*election + 2*heartbeat
	since := time.Now()
	err := eventually(ctx, func() error {
		for _, number := range voters {
			ctx, cancel := context.WithTimeout(ctx, calm/4)
			_, err := r.write(ctx, number)
			cancel()
			if err == nil {
				since = time.Now()
				return fmt.Errorf("the model takes no writes, etcd does at n%d", number)
			}
		}
		if time.Since(since) < calm {
			return errors.New("it is too early to tell whether etcd takes writes")
		}
		return nil
	})
	r.checked = err == nil
	return err
}

// sameMembers compares the lists.
func (r *run) sameMembers(ctx context.Context) error {
	voters := r.judge.up(false)
	found, err := r.real.members(ctx, voters[len(voters)-1])
	if err != nil {
		return fmt.Errorf("listing the members: %s", words(err))
	}
	var got, want []string
	for _, one := range found {
		got = append(got, one.String())
		if err := r.adoptLate(one); err != nil {
			return err
		}
		for number := range r.real.nodes {
			if r.real.peerURL(number) == one.peerURL {
				r.real.ids[number] = one.id
			}
		}
	}
	for _, one := range r.judge.cluster.Members() {
		want = append(want, member{name: one.Name, peerURL: one.PeerURL, learner: one.Learner}.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the model's members are\n  %s\nthose of etcd\n  %s", strings.Join(want, "\n  "), strings.Join(got, "\n  "))
	}
	// Whoever leads now has the whole log, and all of it is carried out.
	r.announced = nil
	return nil
}

// adoptLate brings a learner to the model whose addition etcd has carried out after it
// has failed: who joins under the name of a member first removes that, and the quorum
// may be gone with it before the leader knows.
func (r *run) adoptLate(one member) error {
	for _, number := range r.announced {
		if _, listed := r.judge.listed(number); listed || !one.learner || one.peerURL != r.real.peerURL(number) {
			continue
		}
		if err := r.judge.apply(Step{Kind: Announce, Node: number}, r.judge.leader()); err != nil {
			return fmt.Errorf("etcd has added n%d late, the model refuses: %w", number, err)
		}
		return nil
	}
	return nil
}

// sameLeader makes the model's leader that of etcd: whom etcd elects is a matter
// of chance.
func (r *run) sameLeader(ctx context.Context) error {
	want := r.judge.leader()
	leader, err := r.real.leader(ctx, want)
	if err == nil && leader != r.real.ids[want] {
		err = r.real.lead(ctx, want, want)
	}
	if err != nil {
		return fmt.Errorf("making n%d the leader: %s", want, words(err))
	}
	return nil
}

// healthInterval is how long etcd wants a peer to have been connected before it
// counts it (server/etcdserver/server.go, HealthInterval).
const healthInterval = 5 * time.Second

// settle waits until all voters that answer have been connected for long enough.
// That takes longer than they take to notice who is gone.
func (r *run) settle(ctx context.Context) error {
	since := time.Now()
	return eventually(ctx, func() error {
		voters := r.judge.up(false)
		for _, number := range voters {
			active, err := r.active(ctx, number)
			if err == nil {
				err = r.connected(active, number)
			}
			if err != nil {
				since = time.Now()
				return err
			}
		}
		if time.Since(since) <= healthInterval {
			return errors.New("the voters have not been connected for long enough")
		}
		return nil
	})
}

// connected looks for those whom the model counts as connected. Who is gone is
// not looked for: what a member once knew of the others before it joined stays in
// its metrics.
func (r *run) connected(active map[uint64]bool, number int) error {
	for other, id := range r.real.ids {
		if _, listed := r.judge.listed(other); !listed || other == number {
			continue
		}
		if r.judge.connected(number, other) && !active[id] {
			return fmt.Errorf("n%d is not connected to n%d yet", number, other)
		}
	}
	return nil
}

// active are the members that are connected to a node, out of its metrics.
func (r *run) active(ctx context.Context, number int) (map[uint64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.real.url(number, clientPort)+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	active := map[uint64]bool{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		line, found := strings.CutPrefix(lines.Text(), "etcd_network_active_peers{")
		if !found {
			continue
		}
		_, remote, _ := strings.Cut(line, `Remote="`)
		remote, value, _ := strings.Cut(remote, `"} `)
		id, err := strconv.ParseUint(remote, 16, 64)
		if err != nil {
			return nil, fmt.Errorf("reading the metrics of n%d: %w", number, err)
		}
		active[id] = value != "0"
	}
	return active, nil
}
