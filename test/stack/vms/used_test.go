package vms

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// TestAUsedMachineGetsAnotherRelease: a machine keeps the Talos that was installed on it, and
// is not claimed for another one, until its boot loader is wiped, as docs/hosts.md says. Then
// it gets the wished release, and runs it.
func TestAUsedMachineGetsAnotherRelease(t *testing.T) {
	g := NewWithT(t)
	machines := raise(t, nil, PreviousParts()...)
	ctx, cancel := context.WithTimeout(t.Context(), StepTimeout)
	defer cancel()
	machines.SetNetworkBoot(NetworkBoot{Part: parts.PreviousTalosBoot})
	l := newLives(t, machines, "used", nil)
	available := func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) }
	shape := former("former")
	l.step(ctx, t, "to be Available", available)

	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, shape)
	l.step(ctx, t, "to run "+parts.PreviousTalosVersion, func(ctx context.Context) error { return l.expectRelease(ctx, parts.PreviousTalosVersion) })
	l.deleteCluster(ctx, t, shape.Name)
	l.step(ctx, t, "to be Available again", available)
	l.tell(ctx, t, "is wiped, but for its installation")

	shape.Name, shape.Variables["TALOS_RELEASE"] = "wished", parts.TalosVersion
	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, shape)
	l.step(ctx, t, "not to be claimed", func(ctx context.Context) error {
		machine, err := l.talosMachine(ctx)
		if err == nil && conditions.GetReason(machine, infrav1.AllocatedCondition) != infrav1.NoHostFitsReason {
			err = errors.New("the TalosMachine does not say that no host fits")
		}
		if err == nil {
			g.Expect(conditions.GetMessage(machine, infrav1.AllocatedCondition)).To(ContainSubstring(parts.PreviousTalosVersion))
		}
		return err
	})

	g.Expect(l.machine.PowerOff()).To(Succeed())
	machines.SetNetworkBoot(NetworkBoot{Part: parts.TalosBoot, Arguments: "talos.experimental.wipe=system"})
	g.Expect(l.machine.PowerOnToNetwork()).To(Succeed())
	l.step(ctx, t, "to have a blank disk", func(ctx context.Context) error {
		signature, err := l.machine.Signature(ctx, InstallDisk)
		if err == nil && signature != "" {
			err = fmt.Errorf("disk %d has %q", InstallDisk, signature)
		}
		return err
	})
	g.Expect(l.machine.PowerOff()).To(Succeed())
	machines.SetNetworkBoot(NetworkBoot{Part: parts.TalosBoot})
	g.Expect(l.machine.PowerOn()).To(Succeed())
	l.step(ctx, t, "to run "+parts.TalosVersion, func(ctx context.Context) error { return l.expectRelease(ctx, parts.TalosVersion) })
	l.tell(ctx, t, "runs another release")
}

// expectRelease wants the machine to run a release with its configuration, to have been
// installed with it, and not to be told apart from what is wished.
func (l *lives) expectRelease(ctx context.Context, version string) error {
	machine, err := l.talosMachine(ctx)
	switch {
	case err != nil:
		return err
	case machine.Status.TalosVersion != version:
		return fmt.Errorf("TalosMachine %s runs %q: %s", machine.Name, machine.Status.TalosVersion, conditions.GetMessage(machine, infrav1.ReadyCondition))
	case machine.Status.InstallerImage != "ghcr.io/siderolabs/installer:"+version:
		return fmt.Errorf("TalosMachine %s was installed with %q", machine.Name, machine.Status.InstallerImage)
	case !conditions.IsTrue(machine, infrav1.RunningCondition):
		return fmt.Errorf("TalosMachine %s: %s", machine.Name, conditions.GetMessage(machine, infrav1.RunningCondition))
	}
	return nil
}
