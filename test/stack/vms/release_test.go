package vms

import (
	"context"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// life is what becomes of a machine from its claim to its next one.
type life struct {
	name   string
	policy infrav1.ReleasePolicy
	// leftovers are the labels of partitions that lie on its disks before, by disk, and that
	// its configuration does not know.
	leftovers map[int]string
	// stays is the disk whose leftover stays until a person says that it may go; 0 is none.
	stays int
	// after are the partitions of its disks at the end.
	after [disks][]string
}

// TestWhatAReleaseTakes has one machine of a control plane, with volumes of each kind, given
// back three times, and compares its disks, looked at from outside, with the table of
// docs/hosts.md.
func TestWhatAReleaseTakes(t *testing.T) {
	machines := raise(t, func(m *Machine) []string {
		const whole = "apiVersion: v1alpha1\nkind: UserVolumeConfig\nname: whole\nvolumeType: disk\nprovisioning: {diskSelector: {match: disk.serial == %q}}\n"
		return append(volumes(m), fmt.Sprintf(whole, m.DiskSerial(WholeDisk)))
	})
	l := newLives(t, machines, "lives", nil)

	system := [disks][]string{InstallDisk: {"EFI", "META"}}
	for _, one := range []life{
		{name: "wipe-system", policy: infrav1.ReleaseWipeSystem, after: system},
		{
			name: "leftovers", policy: infrav1.ReleaseWipeSystem, after: system,
			leftovers: map[int]string{InstallDisk: "u-former", DataDisk: "u-other"}, stays: DataDisk,
		},
		{name: "wipe-all", policy: infrav1.ReleaseWipeAll},
	} {
		if !t.Run(one.name, func(t *testing.T) { l.live(t, one) }) {
			return
		}
	}
}

// live lives one.
func (l *lives) live(t *testing.T, one life) {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), StepTimeout)
	defer cancel()
	l.leave(ctx, t, one.leftovers)
	l.step(ctx, t, "to be Available", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) })

	l.createCluster(ctx, t, one.policy, management.Shape{Name: one.name})
	l.step(ctx, t, "to be Provisioned", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostProvisioned) })
	running := inUse()
	for disk, label := range one.leftovers {
		running[disk] = append(running[disk], label)
		slices.Sort(running[disk])
	}
	l.step(ctx, t, "to have its volumes", func(ctx context.Context) error { return l.expectDisks(ctx, running, "xfs") })
	bundle, err := secrets.GetBundle(ctx, l.client, client.ObjectKey{Namespace: l.namespace, Name: one.name})
	g.Expect(err).NotTo(HaveOccurred())
	secret := bundle.Machinery().TrustdInfo.Token
	g.Expect(expectText(l.machine, secret, InstallDisk)).To(Succeed())
	l.tell(ctx, t, "runs with its configuration")

	l.deleteCluster(ctx, t, one.name)
	if one.stays > 0 {
		l.step(ctx, t, "to be in Error", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostError) })
		l.tell(ctx, t, "has something left")
		left, label := one.after, one.leftovers[one.stays]
		left[one.stays] = []string{label}
		g.Expect(l.expectDisks(ctx, left, "")).To(Succeed())
		host, err := l.host(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(conditions.GetMessage(host, infrav1.ReleasedCondition)).To(ContainSubstring(label))
		g.Expect(retry(ctx, l.client, host)).To(Succeed())
	}
	l.step(ctx, t, "to be Available again", func(ctx context.Context) error { return l.expectState(ctx, infrav1.HostAvailable) })
	l.tell(ctx, t, "is wiped")
	g.Expect(l.expectDisks(ctx, one.after, "")).To(Succeed())
	g.Expect(expectText(l.machine, secret, noDisk)).To(Succeed())
	signature, err := l.machine.Signature(ctx, InstallDisk)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(signature == "").To(Equal(one.policy == infrav1.ReleaseWipeAll), "the system disk has %q", signature)
	g.Expect(l.machine.Written(0)).To(BeZero())
	l.step(ctx, t, "to see its Cluster go", func(ctx context.Context) error { return expectNoCluster(ctx, l.client, l.namespace, one.name) })
}

// leave adds partitions to the disks of the machine, which has no power meanwhile.
func (l *lives) leave(ctx context.Context, t *testing.T, partitions map[int]string) {
	t.Helper()
	if len(partitions) == 0 {
		return
	}
	g := NewWithT(t)
	g.Expect(l.machine.PowerOff()).To(Succeed())
	for disk, label := range partitions {
		g.Expect(l.machine.AddPartition(ctx, disk, label)).To(Succeed())
	}
	g.Expect(l.machine.PowerOn()).To(Succeed())
	g.Expect(l.machine.AwaitMaintenance(ctx)).To(Succeed())
}
