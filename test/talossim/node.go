package talossim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strconv"

	"github.com/capi-talos/capi-talos/test/talossim/kube"
)

// keepJoined is the kubelet: it registers the node once the API server answers
// at the endpoint of the configuration, and keeps it ready until ctx ends, unless
// the machine is parted.
func (b *boot) keepJoined(ctx context.Context) {
	b.sim.pause(ctx, b.sim.options.Delays.Join)
	node := kube.Node{
		CA: b.settings.kubernetesCA.Crt, Name: b.settings.hostname, ProviderID: b.settings.providerID,
		KubeletVersion: b.settings.kubelet, TalosVersion: b.sim.options.TalosVersion, ControlPlane: b.settings.controlPlane,
		Addresses: []string{b.machine.spec.Address}, Labels: b.settings.labels, Taints: b.settings.taints,
	}
	for ctx.Err() == nil {
		if !b.parted() && answers(ctx, b.settings.endpoint, b.settings.kubernetesCA.Crt) && b.sim.options.Clusters.Join(ctx, node) == nil {
			b.sim.update(func() { b.machine.joined = true })
			if b.sim.await(ctx, func() bool { return b.machine.faults.Parted }) != nil {
				return
			}
			b.sim.update(func() { b.machine.joined = false })
			b.sim.options.Clusters.Leave(ctx, node.CA, node.Name)
		}
		b.sim.pause(ctx, retryInterval)
	}
}

func (b *boot) parted() (parted bool) {
	b.sim.look(func() { parted = b.machine.faults.Parted })
	return parted
}

// answers tells whether something of the cluster serves at its endpoint.
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
