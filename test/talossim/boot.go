package talossim

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strconv"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/capi-talos/capi-talos/test/talossim/kube"
)

// boot is one boot of a machine.
type boot struct {
	machine *Machine
	sim     *Sim
	// settings is the configuration of this boot; nil in maintenance mode.
	settings  *settings
	resources *resources

	endings []func()
	endOnce sync.Once
}

// run boots the machine, and returns what made it leave the boot.
func (b *boot) run(ctx context.Context) (order, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	b.sim.mu.Lock()
	b.settings = b.machine.disk.settings
	b.sim.mu.Unlock()
	var err error
	if b.resources, err = newResources(ctx, b); err != nil {
		return order{}, err
	}
	if b.settings == nil {
		return b.maintenance(ctx)
	}
	failed, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		if err := b.start(ctx); err != nil {
			failed <- err
		}
	}()
	defer func() {
		cancel()
		<-done
	}()
	select {
	case <-ctx.Done():
		return order{}, ctx.Err()
	case err := <-failed:
		return order{}, err
	case next := <-b.machine.orders:
		b.setStage(ctx, runtime.MachineStageResetting, "")
		return next, nil
	}
}

// end undoes what the boot has set up, last first.
func (b *boot) end() {
	b.endOnce.Do(func() {
		b.sim.mu.Lock()
		endings := b.endings
		b.endings = nil
		b.sim.mu.Unlock()
		for i := len(endings) - 1; i >= 0; i-- {
			endings[i]()
		}
	})
}

func (b *boot) onEnd(do func()) {
	b.sim.mu.Lock()
	defer b.sim.mu.Unlock()
	b.endings = append(b.endings, do)
}

func (b *boot) setStage(ctx context.Context, stage runtime.MachineStage, unmet string) {
	b.sim.update(func() { b.machine.stage = stage })
	b.resources.setStage(ctx, stage, unmet)
}

// maintenance waits for a configuration, with a certificate of this boot.
func (b *boot) maintenance(ctx context.Context) (order, error) {
	certificate, err := selfSigned(b.machine.spec.Address)
	if err != nil {
		return order{}, err
	}
	b.setStage(ctx, runtime.MachineStageMaintenance, "")
	if err := b.serve(ctx, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientAuth: tls.NoClientCert}); err != nil {
		return order{}, err
	}
	select {
	case <-ctx.Done():
		return order{}, ctx.Err()
	case next := <-b.machine.orders:
		b.setStage(ctx, runtime.MachineStageInstalling, "")
		return next, nil
	}
}

// start brings a configured machine up to the stage running.
func (b *boot) start(ctx context.Context) error {
	b.setStage(ctx, runtime.MachineStageBooting, "services: not started")
	certificate, err := b.certificate(ctx)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(b.settings.talosCA.Crt) {
		return errors.New("the configuration has no CA of the Talos API")
	}
	if err := b.serve(ctx, &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients,
	}); err != nil {
		return err
	}
	b.resources.setNode(ctx, b.settings.hostname, b.machine.spec.Address)
	if b.settings.controlPlane {
		if err := b.startControlPlane(ctx); err != nil {
			return err
		}
	}
	b.setStage(ctx, runtime.MachineStageBooting, "nodeReady: node is not ready")
	if err := b.join(ctx); err != nil {
		return err
	}
	b.setStage(ctx, runtime.MachineStageRunning, "")
	return nil
}

// certificate is what apid presents. A worker gets it from the trustd of a
// control plane machine, and waits until there is one.
func (b *boot) certificate(ctx context.Context) (tls.Certificate, error) {
	ca := b.settings.talosCA
	if !b.settings.controlPlane {
		err := b.sim.await(ctx, func() bool {
			for _, other := range b.sim.machines {
				if other.trustd && string(other.disk.settings.talosCA.Crt) == string(ca.Crt) {
					ca = other.disk.settings.talosCA
					return true
				}
			}
			return false
		})
		if err != nil {
			return tls.Certificate{}, err
		}
	}
	return kube.Issue(ca.Crt, ca.Key, b.settings.hostname, []string{b.machine.spec.Address, b.settings.hostname})
}

// join registers the node once the API server answers at the endpoint.
func (b *boot) join(ctx context.Context) error {
	node := kube.Node{
		CA: b.settings.kubernetesCA.Crt, Name: b.settings.hostname, ProviderID: b.settings.providerID,
		KubeletVersion: b.settings.kubelet, TalosVersion: b.sim.options.TalosVersion, ControlPlane: b.settings.controlPlane,
		Addresses: []string{b.machine.spec.Address}, Labels: b.settings.labels, Taints: b.settings.taints,
	}
	for {
		if answers(ctx, b.settings.endpoint, b.settings.kubernetesCA.Crt) && b.sim.options.Clusters.Join(ctx, node) == nil {
			b.onEnd(func() { b.sim.options.Clusters.Leave(context.WithoutCancel(ctx), node.CA, node.Name) })
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		pause(ctx, retryInterval)
	}
}

// answers tells whether something of the cluster serves at its endpoint.
func answers(ctx context.Context, endpoint *url.URL, ca []byte) bool {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
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
