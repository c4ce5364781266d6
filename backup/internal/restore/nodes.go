package restore

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// lookTimeout bounds a look at a node: one whose etcd does not answer holds nobody up.
const lookTimeout = 10 * time.Second

// Node is what the node of a Machine says.
type Node struct {
	// HasData reports whether its etcd has data.
	HasData bool
	// EtcdFailed reports whether its service etcd has failed, and EtcdMessage is what Talos
	// says about it.
	EtcdFailed  bool
	EtcdMessage string
	// EtcdStarted is when that was started last, by the clock of the node.
	EtcdStarted time.Time
	// EtcdVersion is the version of etcd that it runs, or will run; empty when that is not
	// known.
	EtcdVersion string
	// Votes reports whether its member votes, and follows the leader.
	Votes bool

	// service runs its etcd, and view is what that says; nil when it does not answer.
	service talosclient.Service
	view    *etcd.View
}

// Nodes are the nodes of the control plane of a cluster.
type Nodes struct {
	// ByMachine are the nodes that answer, by the names of their Machines.
	ByMachine map[string]*Node
	// HasLeader reports whether a member that answers follows a leader: there is a quorum
	// then, though the others may not answer here. A member that has lost its quorum knows no
	// leader after a second or two.
	HasLeader bool
	// Unseen are the Machines whose etcd may run, and does not answer, in the order of their
	// names.
	Unseen []string

	voters int
}

// MayHaveQuorum reports whether the members that do not answer may have a quorum among
// themselves. Where no member tells how many there are, one may be enough.
func (n *Nodes) MayHaveQuorum() bool { return len(n.Unseen) >= etcd.Majority(n.voters) }

// IsOlder reports whether a version of etcd is of a minor release before that of another one;
// false where one of them is not known.
func IsOlder(its, than string) bool {
	a, errA := version.ParseGeneric(its)
	b, errB := version.ParseGeneric(than)

	return errA == nil && errB == nil && (a.Major() < b.Major() || a.Major() == b.Major() && a.Minor() < b.Minor())
}

// Look asks the nodes of all Machines at the same time, but of those that have never run. One that
// has, and of which no address is known, is unseen: a move of the management cluster takes no
// addresses along.
func Look(ctx context.Context, dialer talosclient.Dialer, reader talosclient.Credentials, machines []*clusterv1.Machine) Nodes {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		found = Nodes{ByMachine: map[string]*Node{}}
	)
	for _, machine := range machines {
		if machine.Spec.ProviderID == "" && !capimachine.IsProvisioned(machine) {
			continue
		}
		group.Go(func() {
			node, err := look(ctx, dialer, reader, machine)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				found.ByMachine[machine.Name] = node
			}
			if err != nil || node.mayRun() {
				found.Unseen = append(found.Unseen, machine.Name)
			}
		})
	}
	group.Wait()
	slices.Sort(found.Unseen)
	found.judge()

	return found
}

// judge says which members vote.
func (n *Nodes) judge() {
	var views []etcd.View
	for _, node := range n.ByMachine {
		if node.view != nil {
			views = append(views, *node.view)
		}
	}
	health := etcd.Judge(views)
	n.voters = health.Voters()
	n.HasLeader = slices.ContainsFunc(views, func(view etcd.View) bool { return view.Leader != 0 })
	for _, node := range n.ByMachine {
		node.Votes = node.view != nil && health.HasQuorum() && health.Answers(node.view.Self)
	}
}

// mayRun reports whether etcd of a node that has not answered may run, or will without
// anybody's help: Talos has not come to start it, or is about to. One that has ended, that
// crashes, or that waits for its bootstrap does not.
func (n *Node) mayRun() bool {
	switch {
	case n.view != nil, n.service.HasEnded(), n.service.IsRestarting():
		return false
	case n.service.IsPreparing():
		return n.HasData
	default:
		return true
	}
}

// Reach opens a connection to the node of a Machine.
func Reach(ctx context.Context, dialer talosclient.Dialer, credentials talosclient.Credentials, machine *clusterv1.Machine) (*talosclient.Reached, error) {
	return talosclient.Reach(ctx, dialer, credentials, talosclient.Target{Addresses: capimachine.Addresses(machine), Hostname: machine.Name})
}

func look(ctx context.Context, dialer talosclient.Dialer, reader talosclient.Credentials, machine *clusterv1.Machine) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	reached, err := Reach(ctx, dialer, reader, machine)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reached.Close() }()
	found := &Node{EtcdVersion: reached.Etcd.Version}
	if found.HasData, err = reached.EtcdDataExists(ctx); err != nil {
		return nil, err
	}
	services, err := reached.Services(ctx)
	if err != nil {
		return nil, err
	}
	for _, service := range services {
		if service.ID == talosclient.EtcdService {
			found.service, found.EtcdFailed = service, service.HasFailed()
			found.EtcdMessage, found.EtcdStarted = service.LastMessage, service.Started
		}
	}
	if !found.HasData {
		return found, nil
	}
	// A member that does not answer is no voter.
	found.view, _ = etcd.Look(ctx, reached)

	return found, nil
}
