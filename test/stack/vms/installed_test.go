package vms

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// TestAMachineRunsFromItsDisk: the host tells the hardware that QEMU was told to make. Talos is installed on the disk that a selector names, runs from
// there with its configuration, also after a power cut, and has written to no other disk.
func TestAMachineRunsFromItsDisk(t *testing.T) {
	const name = "disk"
	g := NewWithT(t)
	machines := raise(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), StepTimeout)
	defer cancel()
	l := newLives(t, machines, name, nil)
	l.step(ctx, t, "to be Available", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) })
	t.Logf("from power to Available: %.0f s", time.Since(l.began).Seconds())
	l.step(ctx, t, "to have its hardware told", l.expectHardware)
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

// expectHardware compares what the host tells of the machine with what QEMU was told.
func (l *lives) expectHardware(ctx context.Context) error {
	host, err := l.host(ctx)
	if err != nil {
		return err
	}
	told := host.Status.Hardware
	found, wanted := []string{"UUID " + told.SystemUUID, "serial " + told.SerialNumber}, []string{"UUID " + l.machine.Host.UUID, "serial " + l.machine.Serial}
	const disk, link = "disk %s of %d bytes", "link "
	for _, one := range told.Disks {
		// A device that Talos has made itself has no serial number.
		if one.Serial != "" {
			found = append(found, fmt.Sprintf(disk, one.Serial, ptr.Deref(one.SizeBytes, 0)))
		}
	}
	for _, one := range told.Links {
		found = append(found, link+one.HardwareAddress)
	}
	for number := range disks {
		wanted = append(wanted, fmt.Sprintf(disk, l.machine.DiskSerial(number), int64(diskBytes)))
	}
	for number := range l.fleet.network.bridges() {
		wanted = append(wanted, link+hardwareAddress(number, l.machine.number))
	}
	slices.Sort(found)
	slices.Sort(wanted)
	if !slices.Equal(found, wanted) {
		return fmt.Errorf("host %s tells %q instead of %q", host.Name, found, wanted)
	}
	return nil
}
