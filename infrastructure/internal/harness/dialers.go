package harness

import (
	"context"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// ask counts a call to a machine.
func (w *Environment) ask(address string) {
	w.countMu.Lock()
	defer w.countMu.Unlock()
	w.Asked[address]++
}

// mortalDialer is the dialer of a manager that may die before and after a call
// that changes a machine.
type mortalDialer struct {
	*talosfake.Dialer
	Environment *Environment
}

func (d mortalDialer) Maintenance(ctx context.Context, address, fingerprint string) (talosclient.Node, error) {
	node, err := d.Dialer.Maintenance(ctx, address, fingerprint)

	return d.opened(address, node, err)
}

func (d mortalDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	node, err := d.Dialer.Secure(ctx, address, creds)

	return d.opened(address, node, err)
}

// opened counts the call with which a connection is verified.
func (d mortalDialer) opened(address string, node talosclient.Node, err error) (talosclient.Node, error) {
	if err == nil {
		d.Environment.ask(address)
	}

	return mortalNode{Node: node, Environment: d.Environment, Address: address}, err
}

type mortalNode struct {
	talosclient.Node
	Environment *Environment
	Address     string
}

func (n mortalNode) Version(ctx context.Context) (string, error) {
	n.Environment.ask(n.Address)

	return n.Node.Version(ctx)
}

func (n mortalNode) MachineStatus(ctx context.Context) (talosclient.MachineStatus, error) {
	n.Environment.ask(n.Address)

	return n.Node.MachineStatus(ctx)
}

func (n mortalNode) Hardware(ctx context.Context) (talosclient.Hardware, error) {
	n.Environment.ask(n.Address)

	return n.Node.Hardware(ctx)
}

func (n mortalNode) Addresses(ctx context.Context) (talosclient.Addresses, error) {
	n.Environment.ask(n.Address)

	return n.Node.Addresses(ctx)
}

func (n mortalNode) Hostname(ctx context.Context) (string, error) {
	n.Environment.ask(n.Address)

	return n.Node.Hostname(ctx)
}

func (n mortalNode) Volumes(ctx context.Context) ([]talosclient.Volume, error) {
	n.Environment.ask(n.Address)

	return n.Node.Volumes(ctx)
}

func (n mortalNode) ApplyConfiguration(ctx context.Context, configuration []byte) error {
	return n.around(func() error { return n.Node.ApplyConfiguration(ctx, configuration) })
}

func (n mortalNode) Reset(ctx context.Context, options talosclient.ResetOptions) error {
	return n.around(func() error { return n.Node.Reset(ctx, options) })
}

func (n mortalNode) around(call func() error) error {
	n.Environment.ask(n.Address)

	return n.Environment.Life.Around(call)
}

// watchDialer is the dialer of a manager's watches, and counts them.
type watchDialer struct {
	*talosfake.Dialer
	Environment *Environment
	open        *int
}

func (d watchDialer) Maintenance(ctx context.Context, address, fingerprint string) (talosclient.Node, error) {
	return d.opened(address, func() (talosclient.Node, error) { return d.Dialer.Maintenance(ctx, address, fingerprint) })
}

func (d watchDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	return d.opened(address, func() (talosclient.Node, error) { return d.Dialer.Secure(ctx, address, creds) })
}

func (d watchDialer) opened(address string, dial func() (talosclient.Node, error)) (talosclient.Node, error) {
	node, err := dial()

	return &watchNode{Node: node, dial: dial, Dialer: d, Address: address}, err
}

func (d watchDialer) count(address string, by int) {
	d.Environment.countMu.Lock()
	defer d.Environment.countMu.Unlock()
	d.Environment.watched[address] += by
	*d.open += by
}

// watchNode is a connection that leads to whoever is at its address, as a real
// one does when it is opened again.
type watchNode struct {
	talosclient.Node
	dial    func() (talosclient.Node, error)
	Dialer  watchDialer
	Address string
}

// WatchMachineStatus counts a watch once it has told something: from then on the
// machine can break it.
func (n *watchNode) WatchMachineStatus(ctx context.Context, fn func(talosclient.MachineStatus)) error {
	node, err := n.dial()
	if err != nil {
		return err
	}
	n.Node = node
	told := false
	defer func() {
		if told {
			n.Dialer.count(n.Address, -1)
		}
	}()

	return n.Node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) {
		if !told {
			told = true
			n.Dialer.count(n.Address, 1)
		}
		fn(status)
	})
}
