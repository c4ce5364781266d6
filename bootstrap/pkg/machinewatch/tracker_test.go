package machinewatch

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

const address = "192.0.2.1"

var waiting = talosclient.MachineStatus{Stage: talosclient.StageMaintenance}

func newTracker(t *testing.T) (*Tracker, *Watcher, *talosfake.Machine, *clocktesting.FakePassiveClock) {
	t.Helper()
	dialer := talosfake.NewDialer()
	machine := dialer.Add(address, talosfake.NewMachine(talosfake.State{Maintenance: true, Fingerprint: "boot-1", Status: waiting}))
	watcher := New(t.Context(), dialer, func(client.ObjectKey) client.Object { return &corev1.Secret{} })
	passiveClock := clocktesting.NewFakePassiveClock(time.Unix(1<<30, 0))

	return NewTracker(watcher, passiveClock), watcher, machine, passiveClock
}

func watchFree(f *Watcher) { f.WatchMaintenance(key, address, "boot-1", waiting) }

func TestAMachineIsLeftInPeaceOnceItWasSeenOftenEnough(t *testing.T) {
	g := NewWithT(t)
	l, _, machine, _ := newTracker(t)
	for i := range enough {
		_, calm := l.Unchanged(key, "t")
		g.Expect(calm).To(BeFalse(), "after %d looks", i)
		g.Expect(l.Seen(key, "t", waiting, "disks", watchFree)).To(Equal(i+1 == enough))
	}
	status, calm := l.Unchanged(key, "t")
	g.Expect(calm).To(BeTrue())
	g.Expect(status).To(Equal(waiting))
	_, calm = l.Unchanged(key, "another address")
	g.Expect(calm).To(BeFalse())

	g.Expect(l.Seen(key, "t", waiting, "more disks", watchFree)).To(BeFalse(), "what changes is looked at again")
	l.Seen(key, "t", waiting, "more disks", watchFree)
	g.Expect(l.Seen(key, "t", waiting, "more disks", watchFree)).To(BeTrue())

	g.Eventually(func() bool {
		machine.Update(func(s *talosfake.State) { s.Status.Stage = talosclient.StageInstalling })
		_, calm := l.Unchanged(key, "t")
		return calm
	}).Should(BeFalse())
	l.Forget(key)
	_, calm = l.Unchanged(key, "t")
	g.Expect(calm).To(BeFalse())
}

func TestAWatchThatBreaksAtOnceIsNotOpenedForEver(t *testing.T) {
	g := NewWithT(t)
	l, watcher, machine, passiveClock := newTracker(t)
	machine.SetSilent(true)
	g.Expect(l.Seen(key, "t", waiting, "disks", watchFree)).To(BeFalse())
	g.Eventually(watcher.Events()).Should(Receive())
	g.Expect(watcher.Watching(key)).To(BeFalse())
	for range 2 * enough {
		g.Expect(l.Seen(key, "t", waiting, "disks", watchFree)).To(BeFalse(), "there is no watch to trust")
		g.Expect(watcher.Watching(key)).To(BeFalse())
	}
	g.Expect(watcher.Events()).NotTo(Receive())

	passiveClock.SetTime(passiveClock.Now().Add(patience))
	machine.SetSilent(false)
	g.Expect(l.Seen(key, "t", waiting, "disks", watchFree)).To(BeTrue())
}
