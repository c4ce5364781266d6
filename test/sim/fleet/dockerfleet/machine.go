package dockerfleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
)

const (
	// Talos ends its container by itself: when it reboots, and when it powers
	// off, which is also what a reset ends with. The numbers are what the kernel
	// makes of reboot(2) in a process namespace: SIGHUP and SIGINT.
	exitReboot   = "129"
	exitPowerOff = "130"

	// restartPause is how long a machine that fell over stays down.
	restartPause = time.Second
	// keptConsole is how much is kept of the console of earlier boots.
	keptConsole = 256 << 10
	// cniFile is where the machine finds its network of Pods.
	cniFolder, cniFile = "/etc/cni/net.d", "10-fleet.conflist"
	// etcdDatabase is where a machine keeps the database of etcd.
	etcdDatabase = "/var/lib/etcd/member/snap/db"
)

// machine is a container that plays a machine.
type machine struct {
	fleet  *Fleet
	host   fleet.Host
	number int
	// container is its name in Docker.
	container string
	wiring    Wiring
	// abandon ends the watch over it.
	abandon context.CancelFunc

	mu sync.Mutex
	// before is the console of earlier containers of the machine, and what was
	// done to it.
	before bytes.Buffer
	// failure is why the machine is down for good.
	failure error
}

func newMachine(f *Fleet, number int) *machine {
	name := fmt.Sprintf("host-%d", number)
	subnet := f.options.Subnet.Addr().As4()
	return &machine{
		fleet: f, number: number, container: f.options.Network + "-" + name,
		host: fleet.Host{
			Name:             name,
			Address:          f.address(firstHost + number - 1),
			MACAddress:       fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", subnet[0], subnet[1], subnet[2], firstHost+number-1),
			StrategicPatches: f.options.StrategicPatches,
		},
	}
}

func (m *machine) docker(ctx context.Context, args ...string) ([]byte, error) {
	return m.fleet.options.Docker.Docker(ctx, args...)
}

// create makes the machine with blank volumes and switches it on.
func (m *machine) create(ctx context.Context) error {
	if err := m.assemble(ctx); err != nil {
		return err
	}
	return m.switchOn(ctx)
}

// assemble makes the machine with blank volumes.
func (m *machine) assemble(ctx context.Context) error {
	o := m.fleet.options
	args := []string{
		"create", "--pull", "never", "--name", m.container, "--label", o.Label, "--hostname", m.host.Name,
		"--network", o.Network, "--ip", m.host.Address, "--mac-address", m.host.MACAddress,
		"--privileged", "--security-opt", "seccomp=unconfined", "--read-only", "--cgroupns", "private",
		"--tmpfs", "/run", "--tmpfs", "/system", "--tmpfs", "/tmp",
		"--env", "PLATFORM=container",
	}
	if o.NameServer != "" {
		args = append(args, "--dns", o.NameServer)
	}
	for _, volume := range volumes {
		args = append(args, "--volume", volume)
	}
	if _, err := m.docker(ctx, append(args, o.Image)...); err != nil {
		return fmt.Errorf("making machine %s: %w", m.host.Name, err)
	}
	if m.wiring.Second.Network != "" {
		address := balancer.Address(m.wiring.Second.Subnet, firstHost+m.number-1)
		if _, err := m.docker(ctx, "network", "connect", "--ip", address, m.wiring.Second.Network, m.container); err != nil {
			return fmt.Errorf("giving machine %s a second link: %w", m.host.Name, err)
		}
	}
	if !m.wiring.NoPods {
		return m.giveNetwork(ctx)
	}
	return nil
}

func (m *machine) switchOn(ctx context.Context) error {
	if _, err := m.docker(ctx, "start", m.container); err != nil {
		return fmt.Errorf("starting machine %s: %w", m.host.Name, err)
	}
	return nil
}

// giveNetwork tells the machine what network its Pods have: a bridge, with
// addresses that no other machine has.
func (m *machine) giveNetwork(ctx context.Context) error {
	type object = map[string]any
	content, err := json.Marshal(object{
		"cniVersion": "1.0.0", "name": "fleet",
		"plugins": []object{{
			"type": "bridge", "bridge": "cni0", "isGateway": true,
			"ipam": object{
				"type":   "host-local",
				"ranges": [][]object{{{"subnet": fmt.Sprintf("10.244.%d.0/24", m.number)}}},
				"routes": []object{{"dst": "0.0.0.0/0"}},
			},
		}},
	})
	if err != nil {
		return fmt.Errorf("describing the network of machine %s: %w", m.host.Name, err)
	}
	folder, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("describing the network of machine %s: %w", m.host.Name, err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	file := filepath.Join(folder, cniFile)
	if err := os.WriteFile(file, content, 0o644); err != nil {
		return fmt.Errorf("describing the network of machine %s: %w", m.host.Name, err)
	}
	if _, err := m.docker(ctx, "cp", file, m.container+":"+cniFolder+"/"+cniFile); err != nil {
		return fmt.Errorf("describing the network of machine %s: %w", m.host.Name, err)
	}
	return nil
}

// supervise does what the hardware does, until the context ends: a machine that
// reboots comes up again, and one that was reset comes up blank.
func (m *machine) supervise(ctx context.Context) {
	for ctx.Err() == nil {
		out, err := m.docker(ctx, "wait", m.container)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = m.ended(ctx, strings.TrimSpace(string(out)))
		}
		if err != nil && ctx.Err() == nil {
			m.note(fmt.Sprintf("is down for good: %v", err))
			m.mu.Lock()
			m.failure = err
			m.mu.Unlock()
			return
		}
	}
}

// ended starts the machine again after its container has ended.
func (m *machine) ended(ctx context.Context, code string) error {
	m.note("has ended with code " + code)
	keeps := m.fleet.keeps()
	switch {
	case code == exitPowerOff && keeps == keptConfiguration:
		return m.renew(ctx)
	case code == exitPowerOff && keeps == keptNothing:
		m.keepConsole(ctx)
		if err := m.remove(ctx); err != nil {
			return err
		}
		m.note("is wiped")
		return m.create(ctx)
	case code != exitPowerOff && code != exitReboot:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(restartPause):
		}
	}
	return m.switchOn(ctx)
}

// renew makes the machine anew with the configuration that it has, and switches it on.
func (m *machine) renew(ctx context.Context) error {
	folder, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return fmt.Errorf("keeping the configuration of machine %s: %w", m.host.Name, err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if _, err := m.docker(ctx, "cp", m.container+":"+stateFolder+"/.", folder); err != nil {
		return fmt.Errorf("keeping the configuration of machine %s: %w", m.host.Name, err)
	}
	m.keepConsole(ctx)
	if err := m.remove(ctx); err != nil {
		return err
	}
	if err := m.assemble(ctx); err != nil {
		return err
	}
	if _, err := m.docker(ctx, "cp", folder+"/.", m.container+":"+stateFolder); err != nil {
		return fmt.Errorf("giving machine %s its configuration back: %w", m.host.Name, err)
	}
	m.note("has kept its configuration only")
	return m.switchOn(ctx)
}

// remove takes the machine away with all that it holds.
func (m *machine) remove(ctx context.Context) error {
	if _, err := m.docker(ctx, "rm", "--force", "--volumes", m.container); err != nil && !strings.Contains(err.Error(), "No such container") {
		return fmt.Errorf("removing machine %s: %w", m.host.Name, err)
	}
	return nil
}

// note writes into the machine's log what was done to it.
func (m *machine) note(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(&m.before, "[fleet] %s %s\n", m.host.Name, what)
}

// keepConsole saves the end of the console before the container goes.
func (m *machine) keepConsole(ctx context.Context) {
	out, err := m.fleet.options.Docker.Logs(ctx, m.container)
	if err != nil {
		m.note(fmt.Sprintf("does not show its console: %v", err))
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before.Write(out[max(0, len(out)-keptConsole):])
}

// console is all that is known of the machine's doings.
func (m *machine) console(ctx context.Context) []byte {
	out, err := m.fleet.options.Docker.Logs(ctx, m.container)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failure != nil {
		err = errors.Join(err, m.failure)
	}
	console := append(bytes.Clone(m.before.Bytes()), out...)
	if err != nil {
		console = fmt.Appendf(console, "[fleet] %v\n", err)
	}
	return console
}
