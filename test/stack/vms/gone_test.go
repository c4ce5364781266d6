package vms

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestDisksDisappear: a machine that loses the disk of its volumes runs on, also after a power
// cut, and has them again with it. One that comes back without the disk of its system is in
// maintenance mode: it is not configured again, and nothing is written to what it has; with
// that disk it runs again, and nobody has to do anything.
func TestDisksDisappear(t *testing.T) {
	const name = "gone"
	g := NewWithT(t)
	machines := raise(t, volumes)
	ctx, cancel := context.WithTimeout(t.Context(), 2*StepTimeout)
	defer cancel()
	l := newLives(t, machines, name, nil)
	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, management.Shape{Name: name})
	l.step(ctx, t, "to run", func(ctx context.Context) error { return l.expectTrue(ctx, infrav1.RunningCondition) })
	before, err := l.talosMachine(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	bundle, err := secrets.GetBundle(ctx, l.client, client.ObjectKey{Namespace: name, Name: name})
	g.Expect(err).NotTo(HaveOccurred())
	l.step(ctx, t, "to have its volumes", func(ctx context.Context) error { return l.expectVolume(ctx, bundle, true) })

	g.Expect(l.machine.PullDisk(ctx, DataDisk)).To(Succeed())
	l.step(ctx, t, "to miss the disk of its volumes", func(ctx context.Context) error { return l.expectDisk(ctx, bundle, DataDisk, false) })
	// Nobody tells our providers of a disk that is lost while the machine runs: their conditions
	// are what they were.
	l.tellConditions(ctx, t, "has lost the disk of its volumes")
	l.cutPower(ctx, t)
	l.step(ctx, t, "to run without the disk of its volumes", func(ctx context.Context) error {
		return errors.Join(l.expectTrue(ctx, infrav1.RunningCondition), l.expectDisk(ctx, bundle, DataDisk, false), l.expectVolume(ctx, bundle, false))
	})
	l.tellConditions(ctx, t, "has booted without the disk of its volumes")
	l.machine.ReturnDisk(DataDisk)
	l.cutPower(ctx, t)
	l.step(ctx, t, "to run with the disk of its volumes", func(ctx context.Context) error {
		return errors.Join(l.expectTrue(ctx, infrav1.RunningCondition), l.expectVolume(ctx, bundle, true))
	})

	g.Expect(l.machine.PowerOff()).To(Succeed())
	g.Expect(l.machine.PullDisk(ctx, InstallDisk)).To(Succeed())
	g.Expect(l.machine.PowerOn()).To(Succeed())
	l.step(ctx, t, "to be back in maintenance mode", func(ctx context.Context) error {
		machine, err := l.talosMachine(ctx)
		if err == nil && conditions.GetReason(machine, infrav1.RunningCondition) != infrav1.ReturnedToMaintenanceReason {
			err = fmt.Errorf("TalosMachine %s: %s", machine.Name, conditions.GetMessage(machine, infrav1.RunningCondition))
		}
		return err
	})
	l.tellConditions(ctx, t, "has booted without the disk of its system")
	g.Expect(l.machine.PowerOff()).To(Succeed())
	g.Expect(l.expectDisks(ctx, inUse(), "")).To(Succeed())
	g.Expect(l.machine.Written(0)).To(BeZero())
	l.machine.ReturnDisk(InstallDisk)
	g.Expect(l.machine.PowerOn()).To(Succeed())
	l.step(ctx, t, "to run again", func(ctx context.Context) error {
		return errors.Join(l.expectTrue(ctx, infrav1.ReadyCondition), l.expectVolume(ctx, bundle, true))
	})
	after, err := l.talosMachine(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.UID).To(Equal(before.UID))
	g.Expect(l.expectState(ctx, infrav1.HostProvisioned)).To(Succeed())
}

// cutPower takes the power from the machine, and gives it back.
func (l *lives) cutPower(ctx context.Context, t *testing.T) {
	t.Helper()
	NewWithT(t).Expect(l.fleet.Restart(ctx, l.machine.Host)).To(Succeed())
}

// expectTrue wants a condition of the TalosMachine to be true.
func (l *lives) expectTrue(ctx context.Context, condition string) error {
	machine, err := l.talosMachine(ctx)
	if err == nil && !conditions.IsTrue(machine, condition) {
		err = fmt.Errorf("TalosMachine %s: %s", machine.Name, conditions.GetMessage(machine, condition))
	}
	return err
}

// expectDisk wants Talos to list a disk, or not to.
func (l *lives) expectDisk(ctx context.Context, bundle *secrets.Bundle, disk int, listed bool) error {
	return call(ctx, bundle, l.machine.Host.Address, func(node talosclient.Node) error {
		hardware, err := node.Hardware(ctx)
		found := slices.ContainsFunc(hardware.Disks, func(d talosclient.Disk) bool { return d.Serial == l.machine.DiskSerial(disk) })
		if err == nil && found != listed {
			err = fmt.Errorf("machine %s has disk %d: %t", l.machine.Host.Name, disk, found)
		}
		return err
	})
}

// expectVolume wants the user volume to be ready, or not to be.
func (l *lives) expectVolume(ctx context.Context, bundle *secrets.Bundle, ready bool) error {
	return call(ctx, bundle, l.machine.Host.Address, func(node talosclient.Node) error {
		all, err := node.Volumes(ctx)
		found := slices.ContainsFunc(all, func(v talosclient.Volume) bool { return !v.Discovered && v.ID == "u-data" && v.Phase == "ready" })
		if err == nil && found != ready {
			err = fmt.Errorf("the volume of machine %s is ready: %t", l.machine.Host.Name, found)
		}
		return err
	})
}
