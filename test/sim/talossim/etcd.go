package talossim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

// etcdState is the state of the service etcd, in the words of Talos.
type etcdState string

const (
	// etcdPreparing waits for a bootstrap, or joins.
	etcdPreparing etcdState = "Preparing"
	etcdRunning   etcdState = "Running"
	// etcdFailed is one that ended and is started again in vain, or whose database could
	// not be restored: that is not started again.
	etcdFailed etcdState = "Failed"
	// etcdFinished has left its cluster; it stays down until the next boot.
	etcdFinished etcdState = "Finished"
)

// etcdVersion is the version of etcd that Talos v1.13.9 starts
// (pkg/machinery/constants/constants.go, DefaultEtcdVersion).
const etcdVersion = "3.6.12"

const (
	peerPort   = 2380
	clientPort = 2379
)

func (m *Machine) url(port int) string {
	return "https://" + net.JoinHostPort(m.etcdAddress(), strconv.Itoa(port))
}

// runEtcd starts etcd, and what needs it. stop ends both.
func (b *boot) runEtcd(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	b.sim.update(func() {
		b.machine.etcd, b.machine.etcdStarted = etcdPreparing, b.sim.options.Clock.Now()
		b.machine.bootstrapping, b.machine.bootstrap, b.machine.etcdFailure = false, b.machine.bootstrap+1, ""
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer b.beside(ctx, b.promote)()
		defer b.beside(ctx, b.learnEndpoints)()
		for ctx.Err() == nil {
			b.etcdOnce(ctx)
		}
	}()
	return func() {
		cancel()
		<-ended
		b.sim.update(func() {
			b.machine.etcd = ""
			if !b.machine.hasData() {
				// One that has joined and not run. The others keep it in their list.
				b.sim.etcd.Wipe(b.machine.spec.Name)
			}
		})
	}
}

func (b *boot) setEtcd(state etcdState) {
	b.sim.update(func() { b.machine.etcd = state })
}

// etcdOnce is one life of the process.
func (b *boot) etcdOnce(ctx context.Context) {
	if b.sim.await(ctx, b.etcdReady) != nil {
		return
	}
	b.sim.pause(ctx, b.sim.options.Delays.Etcd)
	if ctx.Err() != nil {
		return
	}
	var failure error
	b.sim.update(func() {
		if failure = b.sim.etcd.Start(b.machine.spec.Name, b.settings.hostname); failure == nil {
			b.machine.etcd = etcdRunning
		}
		if b.machine.faults.Parted {
			b.sim.etcd.Silence(b.machine.spec.Name)
		}
	})
	if errors.Is(failure, etcdmodel.ErrNoData) {
		return // A bootstrap has stopped it.
	}
	if failure != nil {
		// It was removed from its cluster: etcd ends at once, again and again.
		b.setEtcd(etcdFailed)
		b.sim.pause(ctx, retryInterval)
		return
	}

	ctx, cancel := context.WithCancel(ctx)
	stop := b.beside(ctx, b.runAPIServer)
	_ = b.sim.await(ctx, b.etcdEnds)
	cancel()
	stop()
	b.sim.update(func() {
		if !b.machine.faults.Gone {
			b.sim.etcd.Stop(b.machine.spec.Name)
		}
		if b.machine.etcd == etcdRunning {
			b.machine.etcd = etcdFailed
		}
	})
}

// etcdReady reports whether etcd can be started: it has data, or has joined just
// now. The lock is held.
func (b *boot) etcdReady() bool {
	m := b.machine
	if m.faults.DeadEtcd || m.faults.SpoiltEtcd || m.faults.StuckBooting || m.etcd == etcdFinished || m.etcdAddress() == "" {
		return false
	}
	if _, found := b.sim.etcd.Data(m.spec.Name); found {
		return m.found()
	}
	if m.bootstrapping || m.etcdFailure != "" {
		return false
	}
	b.added = !m.faults.Parted && b.knowsEndpoints() && b.sim.etcd.Add(b.settings.etcd, m.spec.Name, b.settings.hostname, m.url(peerPort)) == nil
	return b.added
}

// etcdEnds reports whether etcd cannot go on. The lock is held.
func (b *boot) etcdEnds() bool {
	data, found := b.sim.etcd.Data(b.machine.spec.Name)
	if !found || b.machine.faults.DeadEtcd || b.machine.faults.SpoiltEtcd {
		return true
	}
	_, member := data.Cluster.Member(data.ID)
	return !member && !b.machine.faults.Parted
}

// promoteFor is how long Talos tries to promote a learner
// (internal/app/machined/pkg/system/services/etcd.go, promoteMember).
const promoteFor = 10 * time.Minute

// promote makes the member vote with which the node joins in this start of the
// service. Talos forgets which that is when the service ends, and nobody else
// promotes it: a node that restarts as a learner stays one.
func (b *boot) promote(ctx context.Context) {
	if b.sim.await(ctx, func() bool { return b.added }) != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer b.beside(ctx, func(ctx context.Context) {
		b.sim.pause(ctx, promoteFor)
		cancel()
	})()
	if b.sim.await(ctx, func() bool { return b.machine.etcd == etcdRunning }) != nil {
		return
	}
	b.sim.pause(ctx, b.sim.options.Delays.Promote)
	_ = b.sim.await(ctx, func() bool {
		data, found := b.sim.etcd.Data(b.machine.spec.Name)
		if !found {
			return true
		}
		err := data.Cluster.Promote(data.ID)
		return err == nil || errors.Is(err, etcdmodel.ErrMemberNotFound) || errors.Is(err, etcdmodel.ErrNotLearner)
	})
}

// member is the member whose data is here; the zero one when it is out or there
// is none. The lock is held.
func (b *boot) member() etcdmodel.Member {
	data, found := b.sim.etcd.Data(b.machine.spec.Name)
	if !found {
		return etcdmodel.Member{}
	}
	member, _ := data.Cluster.Member(data.ID)
	return member
}

// healthy reports whether the etcd of the machine takes writes. The lock is held.
func (b *boot) healthy() bool {
	data, found := b.sim.etcd.Data(b.machine.spec.Name)
	if !found || b.machine.etcd != etcdRunning {
		return false
	}
	member := b.member()
	return member.Up && !member.Learner && data.Cluster.Leader() != 0
}

// runAPIServer serves Kubernetes while etcd is healthy. It is the kubelet that
// starts the API server; what runs goes on without it.
func (b *boot) runAPIServer(ctx context.Context) {
	m := b.machine
	serves := func() bool { return b.healthy() && !m.faults.DeadAPIServer }
	for b.sim.await(ctx, func() bool { return serves() && (m.apiStarted || !m.faults.DeadKubelet) }) == nil {
		stop, err := b.serveAPI(ctx)
		if err != nil {
			b.sim.pause(ctx, retryInterval)
			continue
		}
		b.sim.update(func() { m.apiUp, m.apiStarted = true, true })
		_ = b.sim.await(ctx, func() bool { return !serves() })
		b.sim.update(func() { m.apiUp = false })
		stop()
	}
}

// keepStaticPods tells the static Pods of a control plane node from the first
// start of its API server on. The controller manager and the scheduler go with it:
// they know no other API server than that of their node. Talos hears of them from
// the kubelet, and keeps what it heard last while that does not answer
// (internal/app/machined/pkg/controllers/k8s/kubelet_static_pod.go).
func (b *boot) keepStaticPods(ctx context.Context) {
	told, up := false, false
	for b.sim.await(ctx, func() bool {
		up = b.machine.apiUp
		return up != told && !b.machine.faults.DeadKubelet
	}) == nil {
		told = up
		b.resources.setStaticPods(ctx, b.settings.hostname, up)
	}
}

func (b *boot) serveAPI(ctx context.Context) (stop func(), err error) {
	s, address := b.settings, b.machine.spec.Address
	stop, err = b.sim.options.Clusters.Serve(ctx, kube.APIServer{
		CA: s.kubernetesCA.Crt, CAKey: s.kubernetesCA.Key,
		Listen:            net.JoinHostPort(address, strconv.Itoa(s.apiPort)),
		SANs:              append([]string{address, s.hostname, s.endpoint.Hostname(), "localhost", "127.0.0.1", "kubernetes", "kubernetes.default"}, s.apiSANs...),
		KubernetesVersion: s.kubelet,
	})
	if err != nil {
		return nil, fmt.Errorf("serving Kubernetes on %s: %w", b.machine.spec.Name, err)
	}
	return stop, nil
}
