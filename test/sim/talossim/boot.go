package talossim

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"

	"github.com/capi-talos/capi-talos/test/sim/talossim/kube"
)

// boot is one boot of a machine: from power-on to the next.
type boot struct {
	machine *Machine
	sim     *Sim
	gate    *gate
	orders  chan order

	// release is the Talos release that runs.
	release   string
	resources *resources
	// served is the Talos API as it is served now.
	served *served
	// settings are nil in maintenance mode; they are set before anything that
	// looks at them is started.
	settings *settings
	// taken reports whether a configuration was taken in this boot. The lock of the
	// fleet guards it.
	taken bool
	// services reports whether the services of a configured node were started. The
	// lock of the fleet guards it.
	services bool
	// inSync reports whether the clock was set in this boot, and cri whether its service
	// cri is up. The lock of the fleet guards both.
	inSync, cri bool
	// endpoints reports whether an API server has told where etcd is in this boot. The lock
	// of the fleet guards it.
	endpoints bool
	// added reports whether etcd has listed the machine as a learner in this boot. The
	// lock of the fleet guards it.
	added bool
}

func newBoot(m *Machine) *boot {
	b := &boot{machine: m, sim: m.sim, orders: make(chan order, 1)}
	m.sim.update(func() {
		b.gate, b.release = newGate(m.faults), m.release()
		m.present, m.spec.Address, m.next = b, cmp.Or(m.next, m.spec.Address), ""
	})
	return b
}

// give hands an order to the boot, and tells whether it is the only one that is
// under way. The lock of the fleet is held.
func (b *boot) give(next order) bool {
	select {
	case b.orders <- next:
		return true
	default:
		return false
	}
}

// run boots the machine, and returns what made it leave the boot.
func (b *boot) run(ctx context.Context) (next order, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if b.resources, err = newResources(ctx, b.machine, b.release); err != nil {
		return order{}, err
	}
	status := make(chan struct{})
	go func() {
		defer close(status)
		b.publish(ctx)
	}()
	defer func() {
		b.stopServing(next.now)
		cancel()
		<-status
		b.sim.update(func() { b.machine.present = nil })
	}()

	var configuration []byte
	b.sim.look(func() { b.settings, configuration = b.machine.disk.settings, b.machine.disk.configuration })
	if b.settings == nil {
		if configuration, err = unzip(b.machine.run.UserData); err != nil {
			return order{}, err
		}
		if len(configuration) == 0 {
			if next, err = b.maintenance(ctx); err != nil || next.apply == nil {
				return next, err
			}
			configuration = next.apply
		}
		taken, err := b.parse(ctx, configuration)
		if err != nil {
			return order{}, err
		}
		b.sim.update(func() { b.settings = taken })
	}
	b.sim.update(func() {
		if b.settings.hostname == "" {
			b.settings.hostname = generatedHostname(b.machine.spec.MAC)
		}
	})
	if done, err := b.install(ctx, configuration); done || err != nil {
		return order{}, err
	}
	return b.configured(ctx)
}

// unzip returns what the platform of a machine gives it as its configuration, which
// Talos takes gzipped as well.
func unzip(userData []byte) ([]byte, error) {
	if http.DetectContentType(userData) != "application/x-gzip" {
		return userData, nil
	}
	reader, err := gzip.NewReader(bytes.NewReader(userData))
	if err != nil {
		return nil, fmt.Errorf("unzipping the user data: %w", err)
	}

	return io.ReadAll(reader)
}

// generatedHostname is the name of a machine whose configuration has none; it is
// the same at each boot.
func generatedHostname(mac string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(mac)))
	return fmt.Sprintf("talos-%x", sum[:3])
}

// maintenance waits for a configuration, with a certificate of this boot.
func (b *boot) maintenance(ctx context.Context) (order, error) {
	certificate, err := selfSigned(b.machine.spec.Address, b.machine.now())
	if err != nil {
		return order{}, err
	}
	b.setStage(ctx, runtime.MachineStageMaintenance)
	if err := b.serve(&tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}, ClientAuth: tls.NoClientCert,
	}); err != nil {
		return order{}, err
	}
	select {
	case <-ctx.Done():
		return order{}, ctx.Err()
	case next := <-b.orders:
		b.stopServing(next.now)
		return next, nil
	}
}

// install installs what is not yet, and tells whether the machine is to boot
// again. In Talos it is the sequence Install, which a container does not have
// (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_sequencer.go).
func (b *boot) install(ctx context.Context, configuration []byte) (reboots bool, err error) {
	metal := b.sim.options.Personality == Metal
	var installed, broken bool
	b.sim.look(func() { installed, broken = b.machine.disk.installed, b.machine.faults.BrokenDisk })
	if !metal || installed {
		if broken && b.machine.Configuration() == nil {
			return true, nil
		}
		b.sim.update(func() { b.machine.install(configuration, b.settings) })
		return false, nil
	}

	b.setStage(ctx, runtime.MachineStageInstalling)
	// A worker is not heard of while it installs: its certificate comes from a
	// control plane node.
	if b.settings.controlPlane {
		if err := b.serveConfigured(b.settings.talosCA); err != nil {
			return false, err
		}
	}
	b.sim.pause(ctx, b.sim.options.Delays.Install)
	if err := ctx.Err(); err != nil {
		return false, err
	}
	b.sim.update(func() {
		if !b.machine.faults.BrokenDisk && b.machine.hasDisk(b.settings.installDisk) {
			b.machine.install(configuration, b.settings)
		}
	})
	b.setStage(ctx, runtime.MachineStageRebooting)
	return true, nil
}

// hasDisk reports whether there is such a disk; an empty path is one that was
// selected by other means.
func (m *Machine) hasDisk(path string) bool {
	for _, disk := range m.spec.Disks {
		if path == "" || disk.Path == path {
			return true
		}
	}
	return false
}

// configured runs a machine that has its configuration, until it is told
// otherwise.
func (b *boot) configured(ctx context.Context) (order, error) {
	running, cancel := context.WithCancel(ctx)
	failed, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		if err := b.start(running); err != nil && running.Err() == nil {
			failed <- err
		}
	}()
	stop := func() {
		cancel()
		<-done
	}
	select {
	case <-ctx.Done():
		stop()
		return order{}, ctx.Err()
	case err := <-failed:
		stop()
		return order{}, err
	case next := <-b.orders:
		if !next.now {
			b.leaveStage(ctx, next)
		}
		stop()
		return next, nil
	}
}

// leaveStage is what a machine does before it stops its services.
func (b *boot) leaveStage(ctx context.Context, next order) {
	stage := runtime.MachineStageRebooting
	if next.reset != nil {
		stage = runtime.MachineStageResetting
	}
	b.setStage(ctx, stage)
	if next.leave {
		b.sim.update(func() {
			// As in Talos, a reset goes on when the member cannot leave.
			_ = b.sim.etcd.Leave(b.machine.spec.Name)
		})
	}
}

// start brings a configured machine up, and keeps it up until ctx ends.
func (b *boot) start(ctx context.Context) error {
	b.setStage(ctx, runtime.MachineStageBooting)
	ca, err := b.issuer(ctx)
	if err != nil {
		return err
	}
	var etcdAddress string
	b.sim.look(func() { etcdAddress = b.machine.etcdAddress() })
	b.resources.setNode(ctx, b.settings, b.machine.spec.Address, etcdAddress)
	if err := b.serveConfigured(ca); err != nil {
		return err
	}
	if err := b.makeVolumes(ctx); err != nil {
		return err
	}
	if err := b.awaitTime(ctx); err != nil {
		return err
	}
	b.sim.update(func() { b.machine.trustd = b.settings.controlPlane })
	defer b.stopped()

	if b.settings.controlPlane {
		defer b.beside(ctx, b.keepStaticPods)()
		etcd := b.runEtcd(ctx)
		defer etcd()
	}
	if err := b.sim.await(ctx, b.up); err != nil {
		return err
	}
	b.setStage(ctx, runtime.MachineStageRunning)
	b.keepJoined(ctx)
	return nil
}

// makeVolumes makes the volumes of the machine, and tells of them once all are made.
func (b *boot) makeVolumes(ctx context.Context) error {
	slow := b.sim.options.Personality == Metal && b.sim.options.Delays.Volumes > 0
	b.sim.update(func() {
		b.machine.disk.ephemeral, b.machine.untold = true, slow
		if b.sim.options.Personality == Metal {
			b.machine.provision()
		}
	})
	b.resources.setVolumes(ctx, b.machine)
	if !slow {
		return nil
	}
	b.sim.pause(ctx, b.sim.options.Delays.Volumes)
	b.sim.update(func() { b.machine.untold = false })
	b.resources.setVolumes(ctx, b.machine)
	return ctx.Err()
}

// beside runs something until it is stopped.
func (b *boot) beside(ctx context.Context, run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

// up reports whether all services are up: then the boot has ended. A service that has
// a health check is up once that succeeds. The lock is held.
func (b *boot) up() bool {
	if b.machine.faults.StuckBooting || b.settings.controlPlane && !b.healthy() {
		return false
	}
	b.services = true
	return true
}

// stopped undoes what start has done.
func (b *boot) stopped() {
	b.sim.update(func() { b.machine.joined, b.machine.trustd, b.services, b.cri = false, false, false, false })
	b.sim.lives.Go(func() { b.missed(b.sim.ctx, func() bool { return b.machine.joined }) })
}

// issuer is the CA of what apid presents. A worker gets its certificate from the
// trustd of a control plane machine, and waits until there is one.
func (b *boot) issuer(ctx context.Context) (pair, error) {
	ca := b.settings.talosCA
	if b.settings.controlPlane {
		return ca, nil
	}
	err := b.sim.await(ctx, func() bool {
		for _, other := range b.sim.machines {
			if other.trustd && string(other.disk.settings.talosCA.Crt) == string(ca.Crt) {
				ca = other.disk.settings.talosCA
				return true
			}
		}
		return false
	})
	return ca, err
}

// serveConfigured serves the Talos API to clients with a certificate of the CA.
func (b *boot) serveConfigured(ca pair) error {
	b.stopServing(false)
	certificates := &certificates{machine: b.machine, issue: func(begins time.Time) (tls.Certificate, error) {
		sans := append([]string{b.machine.spec.Address, b.settings.hostname}, b.settings.talosSANs...)
		return kube.Issue(ca.Crt, ca.Key, b.settings.hostname, sans, begins)
	}}
	if _, err := certificates.get(nil); err != nil {
		return err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(b.settings.talosCA.Crt) {
		return errors.New("the configuration has no CA of the Talos API")
	}
	return b.serve(&tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: certificates.get, Time: b.machine.now,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, VerifyConnection: onlyForClients,
	})
}

// onlyForClients refuses certificates that could also serve, as apid does
// (internal/app/apid/service.go, verifyExtKeyUsage).
func onlyForClients(caller tls.ConnectionState) error {
	for _, certificate := range caller.VerifiedChains[0] {
		if !certificate.IsCA && !slices.Equal(certificate.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) {
			return fmt.Errorf("certificate %q is missing the client auth extended key usage", certificate.Subject)
		}
	}
	return nil
}
