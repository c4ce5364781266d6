package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// node is a connection to a Machine.
type node struct {
	machine *Machine
}

var _ talosclient.Node = &node{}

// answer is the result of a reading call: a fault, or what read finds.
func answer[T any](n *node, method string, read func(State) T) (T, error) {
	if err := n.machine.fault(method); err != nil {
		var none T
		return none, err
	}
	return read(n.machine.Snapshot()), nil
}

func (n *node) Fingerprint() string { return n.machine.Snapshot().Fingerprint }

func (n *node) Close() error { return nil }

func (n *node) Version(context.Context) (string, error) {
	return answer(n, "Version", func(s State) string { return s.Version })
}

func (n *node) MachineStatus(context.Context) (talosclient.MachineStatus, error) {
	return answer(n, "MachineStatus", func(s State) talosclient.MachineStatus { return s.Status })
}

func (n *node) WatchMachineStatus(ctx context.Context, fn func(talosclient.MachineStatus)) error {
	if err := n.machine.fault("WatchMachineStatus"); err != nil {
		return err
	}
	changes := make(chan talosclient.MachineStatus, 16)
	n.machine.mu.Lock()
	n.machine.watchers[changes] = struct{}{}
	present := n.machine.state.Status
	n.machine.mu.Unlock()
	defer func() {
		n.machine.mu.Lock()
		delete(n.machine.watchers, changes)
		n.machine.mu.Unlock()
	}()

	fn(present)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case status, open := <-changes:
			if !open {
				return ErrUnreachable
			}
			fn(status)
		}
	}
}

func (n *node) Hardware(context.Context) (talosclient.Hardware, error) {
	return answer(n, "Hardware", func(s State) talosclient.Hardware { return s.Hardware })
}

func (n *node) Volumes(context.Context) ([]talosclient.Volume, error) {
	return answer(n, "Volumes", func(s State) []talosclient.Volume { return s.Volumes })
}

func (n *node) Addresses(context.Context) (talosclient.Addresses, error) {
	return answer(n, "Addresses", func(s State) talosclient.Addresses {
		return talosclient.Addresses{Node: s.Addresses, Internal: s.InternalAddresses, External: s.ExternalAddresses}
	})
}

func (n *node) ProviderID(context.Context) (string, error) {
	return answer(n, "ProviderID", func(s State) string { return s.ProviderID })
}

func (n *node) Hostname(context.Context) (string, error) {
	return answer(n, "Hostname", func(s State) string { return s.Hostname })
}

func (n *node) ApplyConfiguration(_ context.Context, configuration []byte) error {
	if err := n.machine.fault("ApplyConfiguration"); err != nil {
		return err
	}
	n.machine.mu.Lock()
	n.machine.applied = append(n.machine.applied, configuration)
	n.machine.mu.Unlock()
	if n.machine.OnApply == nil {
		return nil
	}
	return n.machine.OnApply(n.machine, configuration)
}

func (n *node) Reset(_ context.Context, options talosclient.ResetOptions) error {
	if err := n.machine.fault("Reset"); err != nil {
		return err
	}
	n.machine.mu.Lock()
	n.machine.resets = append(n.machine.resets, options)
	n.machine.mu.Unlock()
	if n.machine.OnReset == nil {
		return nil
	}
	return n.machine.OnReset(n.machine, options)
}

func (n *node) WipeDevices(_ context.Context, devices []string) error {
	if err := n.machine.fault("WipeDevices"); err != nil {
		return err
	}
	n.machine.mu.Lock()
	n.machine.wipes = append(n.machine.wipes, devices)
	n.machine.mu.Unlock()
	if n.machine.OnWipe != nil {
		return n.machine.OnWipe(n.machine, devices)
	}
	n.machine.Update(func(s *State) {
		s.Volumes = slices.DeleteFunc(slices.Clone(s.Volumes), func(v talosclient.Volume) bool { return slices.Contains(devices, v.Location) })
	})
	return nil
}

func (n *node) Restart(context.Context) error {
	if err := n.machine.fault("Restart"); err != nil {
		return err
	}
	n.machine.mu.Lock()
	n.machine.restarts++
	n.machine.mu.Unlock()
	if n.machine.OnRestart == nil {
		return nil
	}
	return n.machine.OnRestart(n.machine)
}

func (n *node) Bootstrap(context.Context) error {
	if err := n.machine.fault("Bootstrap"); err != nil {
		return err
	}
	n.machine.mu.Lock()
	n.machine.boots++
	data := n.machine.state.EtcdData
	n.machine.mu.Unlock()
	if data {
		return talosclient.ErrAlreadyBootstrapped
	}
	if n.machine.OnBootstrap == nil {
		n.machine.Update(func(s *State) { s.EtcdData = true })
		return nil
	}
	return n.machine.OnBootstrap(n.machine)
}

func (n *node) EtcdRecover(ctx context.Context, database io.Reader) error {
	if err := n.machine.fault("EtcdRecover"); err != nil {
		return err
	}
	content, err := io.ReadAll(database)
	if err != nil {
		return fmt.Errorf("reading a database of etcd: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	n.machine.Update(func(s *State) { s.EtcdDatabase = content })
	return nil
}

func (n *node) BootstrapFromSnapshot(context.Context) error {
	if err := n.machine.fault("BootstrapFromSnapshot"); err != nil {
		return err
	}
	n.machine.mu.Lock()
	n.machine.boots++
	n.machine.recovers++
	data := n.machine.state.EtcdData
	n.machine.mu.Unlock()
	if data {
		return talosclient.ErrAlreadyBootstrapped
	}
	if n.machine.OnRecover != nil {
		return n.machine.OnRecover(n.machine)
	}
	n.machine.Update(func(s *State) {
		if s.EtcdDatabase != nil {
			s.EtcdData, s.EtcdDatabase = true, nil
		}
	})
	return nil
}

func (n *node) EtcdDataExists(context.Context) (bool, error) {
	return answer(n, "EtcdDataExists", func(s State) bool { return s.EtcdData })
}

func (n *node) EtcdMembers(context.Context) ([]talosclient.EtcdMember, error) {
	return answer(n, "EtcdMembers", func(s State) []talosclient.EtcdMember { return s.Members })
}

func (n *node) EtcdStatus(context.Context) (talosclient.EtcdStatus, error) {
	return answer(n, "EtcdStatus", func(s State) talosclient.EtcdStatus {
		status := s.EtcdStatus
		for _, alarm := range s.Alarms { // As etcd does.
			status.Errors = append(slices.Clone(status.Errors), fmt.Sprintf("memberID:%d alarm:%s ", alarm.MemberID, alarm.Alarm))
		}
		return status
	})
}

func (n *node) EtcdSpec(context.Context) (talosclient.EtcdSpec, error) {
	return answer(n, "EtcdSpec", func(s State) talosclient.EtcdSpec { return s.EtcdSpec })
}

func (n *node) EtcdAlarms(context.Context) ([]talosclient.EtcdAlarm, error) {
	return answer(n, "EtcdAlarms", func(s State) []talosclient.EtcdAlarm { return s.Alarms })
}

func (n *node) EtcdForfeitLeadership(context.Context) error {
	if err := n.machine.fault("EtcdForfeitLeadership"); err != nil || n.machine.OnForfeit == nil {
		return err
	}
	return n.machine.OnForfeit(n.machine)
}

func (n *node) EtcdLeave(context.Context) error {
	if err := n.machine.fault("EtcdLeave"); err != nil {
		return err
	}
	if n.machine.OnLeave == nil {
		n.machine.Update(func(s *State) { s.EtcdData = false })
		return nil
	}
	return n.machine.OnLeave(n.machine)
}

func (n *node) EtcdRemoveMember(_ context.Context, id uint64) error {
	if err := n.machine.fault("EtcdRemoveMember"); err != nil {
		return err
	}
	if n.machine.OnRemoveMember == nil {
		return talosclient.ErrMemberNotFound
	}
	return n.machine.OnRemoveMember(n.machine, id)
}

func (n *node) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	if err := n.machine.fault("EtcdSnapshot"); err != nil {
		return nil, err
	}
	if n.machine.OnSnapshot == nil {
		return nil, errors.New("the machine has no snapshot")
	}
	return n.machine.OnSnapshot(ctx, n.machine)
}

func (n *node) Services(context.Context) ([]talosclient.Service, error) {
	return answer(n, "Services", func(s State) []talosclient.Service { return s.Services })
}

func (n *node) StaticPods(context.Context) ([]talosclient.StaticPod, error) {
	return answer(n, "StaticPods", func(s State) []talosclient.StaticPod { return s.StaticPods })
}

func (n *node) Manifests(context.Context) ([]map[string]any, error) {
	return answer(n, "Manifests", func(s State) []map[string]any { return s.Manifests })
}
