package vms

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"
)

// monitorTimeout is how long QEMU may take to answer.
const monitorTimeout = 10 * time.Second

func (m *Machine) monitor() string { return filepath.Join(m.dir, "qmp.sock") }

// Panic has the machine's kernel panic, as a fault of its memory would.
func (m *Machine) Panic(ctx context.Context) error { return m.command(ctx, "inject-nmi") }

// command gives QEMU a command by its machine protocol (QMP), and waits for the answer.
func (m *Machine) command(ctx context.Context, name string) error {
	connection, err := (&net.Dialer{Timeout: monitorTimeout}).DialContext(ctx, "unix", m.monitor())
	if err != nil {
		return fmt.Errorf("connecting to the monitor of machine %s: %w", m.Host.Name, err)
	}
	defer func() { _ = connection.Close() }()
	if err := connection.SetDeadline(time.Now().Add(monitorTimeout)); err != nil {
		return err
	}
	in, out := json.NewDecoder(connection), json.NewEncoder(connection)
	for _, command := range []string{"qmp_capabilities", name} {
		if err := out.Encode(map[string]string{"execute": command}); err != nil {
			return fmt.Errorf("giving machine %s command %s: %w", m.Host.Name, command, err)
		}
		if err := answered(in); err != nil {
			return fmt.Errorf("giving machine %s command %s: %w", m.Host.Name, command, err)
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
