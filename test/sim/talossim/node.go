package talossim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strconv"

	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

// keepJoined is the kubelet: it registers the node once the API server answers
// at the endpoint of the configuration, and keeps it ready until ctx ends, unless
// the machine is parted or the kubelet is dead.
func (b *boot) keepJoined(ctx context.Context) {
	b.sim.pause(ctx, b.sim.options.Delays.Join)
	node := kube.Node{
		CA: b.settings.kubernetesCA.Crt, Name: b.settings.hostname, ProviderID: b.settings.providerID,
		KubeletVersion: b.settings.kubelet, TalosVersion: b.release, ControlPlane: b.settings.controlPlane,
		Addresses: []string{b.machine.spec.Address}, Labels: b.settings.labels, Taints: b.settings.taints,
	}
	for ctx.Err() == nil {
		if b.join(ctx, node) {
			if b.sim.await(ctx, b.mute) != nil {
				return
			}
			b.sim.update(func() { b.machine.joined = false })
			b.missed(ctx, func() bool { return !b.mute() })
		}
		b.sim.pause(ctx, retryInterval)
	}
}

// mute reports whether the kubelet is not heard of. The lock is held.
func (b *boot) mute() bool { return b.machine.faults.Parted || b.machine.faults.DeadKubelet }

// join registers the node, if that can be now.
func (b *boot) join(ctx context.Context, node kube.Node) bool {
	var mute bool
	b.sim.look(func() { mute = b.mute() })
	if mute || !answers(ctx, b.settings.endpoint, b.settings.kubernetesCA.Crt) {
		return false
	}
	b.machine.node.Lock()
	defer b.machine.node.Unlock()
	if b.sim.options.Clusters.Join(ctx, node) != nil {
		return false
	}
	b.sim.update(func() { b.machine.joined = true })
	return true
}

// missed is the node lifecycle controller, which finds that the kubelet is not
// heard of: as soon as Kubernetes takes it, and unless it is heard of again, which
// is asked with the lock held.
func (b *boot) missed(ctx context.Context, heard func() bool) {
	for ctx.Err() == nil && !b.leave(ctx, heard) {
		b.sim.pause(ctx, retryInterval)
	}
}

func (b *boot) leave(ctx context.Context, heard func() bool) bool {
	b.machine.node.Lock()
	defer b.machine.node.Unlock()
	var over bool
	b.sim.look(func() { over = heard() })
	if over {
		return true
	}
	return b.sim.options.Clusters.Leave(ctx, b.settings.kubernetesCA.Crt, b.settings.hostname) == nil
}

// answers reports whether something of the cluster serves at its endpoint.
func answers(ctx context.Context, endpoint *url.URL, ca []byte) bool {
	roots := x509.NewCertPool()
	if endpoint == nil || !roots.AppendCertsFromPEM(ca) {
		return false
	}
	port := endpoint.Port()
	if port == "" {
		port = strconv.Itoa(defaultAPIPort)
	}
	dialer := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(endpoint.Hostname(), port))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}
