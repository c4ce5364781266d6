package vms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// monitorTimeout is how long QEMU may take to answer.
const monitorTimeout = 10 * time.Second

// monitorFile is QEMU's monitor, in the folder of the machine.
const monitorFile = "qmp.sock"

// Panic has the machine's kernel panic, as a fault of its memory would.
func (m *Machine) Panic(ctx context.Context) error { return m.command(ctx, "inject-nmi", nil) }

// PullDisk takes a disk out of the machine: one that runs loses DataDisk, one without power
// any. The image stays, and ReturnDisk puts it back for the next time that there is power.
func (m *Machine) PullDisk(ctx context.Context, disk int) error {
	m.pulled[disk] = true
	if m.qemu == nil || !m.qemu.Running() {
		return nil
	}
	return m.command(ctx, "device_del", map[string]string{"id": blockDevice(disk)})
}

// ReturnDisk puts a disk back.
func (m *Machine) ReturnDisk(disk int) { m.pulled[disk] = false }

// command gives QEMU a command by its machine protocol (QMP), and waits for the answer.
func (m *Machine) command(ctx context.Context, name string, arguments map[string]string) error {
	folder, err := os.Open(m.dir)
	if err != nil {
		return fmt.Errorf("connecting to the monitor of machine %s: %w", m.Host.Name, err)
	}
	defer func() { _ = folder.Close() }()
	// The path of a socket has 107 characters at most, and that of the folder may have more.
	path := fmt.Sprintf("/proc/self/fd/%d/%s", folder.Fd(), monitorFile)
	connection, err := (&net.Dialer{Timeout: monitorTimeout}).DialContext(ctx, "unix", path)
	if err != nil {
		return fmt.Errorf("connecting to the monitor of machine %s: %w", m.Host.Name, err)
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(monitorTimeout)); err != nil {
		return err
	}
	in, out := json.NewDecoder(connection), json.NewEncoder(connection)
	type order struct {
		Execute   string            `json:"execute"`
		Arguments map[string]string `json:"arguments,omitempty"`
	}
	for _, order := range []order{{Execute: "qmp_capabilities"}, {Execute: name, Arguments: arguments}} {
		if err := out.Encode(order); err != nil {
			return fmt.Errorf("giving machine %s command %s: %w", m.Host.Name, order.Execute, err)
		}
		if err := answered(in); err != nil {
			return fmt.Errorf("giving machine %s command %s: %w", m.Host.Name, order.Execute, err)
		}
	}
	return nil
}

// answered reads up to the answer of a command: the greeting and events come in between.
func answered(in *json.Decoder) error {
	for {
		var message struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Description string `json:"desc"`
			} `json:"error"`
		}
		if err := in.Decode(&message); err != nil {
			return err
		}
		if message.Error != nil {
			return errors.New(message.Error.Description)
		}
		if message.Return != nil {
			return nil
		}
	}
}
