package vms

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestAMachineRunsFromItsDisk: Talos is installed on the disk that a selector names, runs from
// there with its configuration, also after a power cut, and has written to no other disk.
func TestAMachineRunsFromItsDisk(t *testing.T) {
	const name = "disk"
	g := NewWithT(t)
	machines := raise(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), StepTimeout)
	defer cancel()
	l := newLives(t, machines, name, nil)
	l.step(ctx, t, "to be Available", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) })
	l.createCluster(ctx, t, infrav1.ReleaseWipeSystem, management.Shape{Name: name})
	l.step(ctx, t, "to run", func(ctx context.Context) error { return l.expectTrue(ctx, infrav1.RunningCondition) })

	node, err := l.dial(ctx, name, l.machine.Host.Address)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = node.Close() }()
	var before uint64
	l.step(ctx, t, "to tell when it has booted", func(ctx context.Context) (err error) {
		before, err = bootOf(ctx, node)
		return err
	})
	l.cutPower(ctx, t)
	l.step(ctx, t, "to run after a power cut", func(ctx context.Context) error {
		boot, err := bootOf(ctx, node)
		if err == nil && boot == before {
			err = fmt.Errorf("machine %s has not booted again", l.machine.Host.Name)
		}
		return errors.Join(err, l.expectTrue(ctx, infrav1.ReadyCondition))
	})
	l.tell(ctx, t, "has run twice")

	bundle, err := secrets.GetBundle(ctx, l.client, client.ObjectKey{Namespace: name, Name: name})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(l.machine.PowerOff()).To(Succeed())
	g.Expect(expectText(l.machine, bundle.Machinery().TrustdInfo.Token, InstallDisk)).To(Succeed())
	g.Expect(l.expectDisks(ctx, [disks][]string{InstallDisk: inUse()[InstallDisk]}, "")).To(Succeed())
	for disk := range disks {
		if disk != InstallDisk {
			g.Expect(l.machine.Written(disk)).To(BeZero(), "bytes of disk %d", disk)
		}
	}
}
