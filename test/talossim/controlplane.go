package talossim

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/capi-talos/capi-talos/test/talossim/kube"
)

// startControlPlane starts trustd and etcd, and an API server once etcd runs.
func (b *boot) startControlPlane(ctx context.Context) error {
	b.sim.update(func() { b.machine.trustd = true })
	b.onEnd(func() { b.sim.update(func() { b.machine.trustd = false }) })
	b.setStage(ctx, runtime.MachineStageBooting, "services: etcd is not running")
	if err := b.startEtcd(ctx); err != nil {
		return err
	}
	server := kube.APIServer{
		CA: b.settings.kubernetesCA.Crt, CAKey: b.settings.kubernetesCA.Key,
		Listen:            net.JoinHostPort(b.machine.spec.Address, strconv.Itoa(b.settings.apiPort)),
		SANs:              append([]string{b.machine.spec.Address, b.settings.hostname, b.settings.endpoint.Hostname(), "kubernetes"}, b.settings.sans...),
		KubernetesVersion: b.settings.kubelet,
	}
	stop, err := b.sim.options.Clusters.Serve(ctx, server)
	if err != nil {
		return err
	}
	b.sim.update(func() { b.machine.apiUp = true })
	b.onEnd(func() {
		b.sim.update(func() { b.machine.apiUp = false })
		stop()
	})
	b.resources.setStaticPods(ctx, b.settings.hostname)
	return nil
}

// startEtcd starts the member whose data is here; without data it waits for the
// bootstrap, or joins the members that are there.
func (b *boot) startEtcd(ctx context.Context) error {
	joined := false
	err := b.sim.await(ctx, func() bool {
		switch {
		case b.machine.disk.etcdMember != 0:
			return true
		case b.sim.etcd(b.settings).HasQuorum():
			joined = b.joinEtcd() == nil
			return joined
		}
		return false
	})
	if err != nil {
		return err
	}
	b.sim.update(func() {
		b.sim.etcd(b.settings).SetUp(b.machine.disk.etcdMember, true)
		b.machine.etcdRuns = true
	})
	b.onEnd(func() {
		b.sim.update(func() {
			b.machine.etcdRuns = false
			if cluster := b.sim.etcds[b.settings.etcd]; cluster != nil {
				cluster.SetUp(b.machine.disk.etcdMember, false)
			}
		})
	})
	return nil
}

func (b *boot) peerURL() string {
	const peerPort = 2380
	return fmt.Sprintf("https://%s", net.JoinHostPort(b.machine.spec.Address, strconv.Itoa(peerPort)))
}

// joinEtcd adds the machine as a learner, and lets it vote. The lock is held.
func (b *boot) joinEtcd() error {
	cluster := b.sim.etcd(b.settings)
	id, err := cluster.AddLearner(b.settings.hostname, b.peerURL())
	if err != nil {
		return err
	}
	b.machine.disk.etcdMember = id
	return cluster.Promote(id)
}
