package nodes

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// TestOneLeaveRunsAtATime: a node is asked once, and the end is told.
func TestOneLeaveRunsAtATime(t *testing.T) {
	g := NewWithT(t)
	leaves := NewLeaves(t.Context(), clocktesting.NewFakePassiveClock(testStart))
	end := make(chan struct{})
	g.Expect(leaves.Start(testKey, func(context.Context) { <-end })).To(BeTrue())
	g.Expect(leaves.Running(testKey)).To(BeTrue())
	g.Expect(leaves.Start(testKey, func(context.Context) { t.Error("it was asked twice") })).To(BeFalse())

	close(end)
	var ended event.GenericEvent
	g.Eventually(leaves.Ended()).Should(Receive(&ended))
	g.Expect(ended.Object.GetName()).To(Equal(testKey.Name))
	g.Expect(leaves.Running(testKey)).To(BeFalse())
	g.Expect(leaves.Unsettled(testKey)).To(BeFalse(), "it has ended by itself")
}

// TestALeaveThatIsStoppedMaySettle: the call ends, but etcd may still carry it out.
func TestALeaveThatIsStoppedMaySettle(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(testStart)
	leaves := NewLeaves(t.Context(), clock)
	leaves.Stop(testKey)
	g.Expect(leaves.Unsettled(testKey)).To(BeFalse(), "none was running")

	g.Expect(leaves.Start(testKey, func(ctx context.Context) { <-ctx.Done() })).To(BeTrue())
	leaves.Stop(testKey)
	g.Expect(leaves.Running(testKey)).To(BeFalse())
	g.Eventually(leaves.Ended()).Should(Receive())
	g.Expect(leaves.Unsettled(testKey)).To(BeTrue())
	clock.SetTime(testStart.Add(LeaveSettles - 1))
	g.Expect(leaves.Unsettled(testKey)).To(BeTrue())
	clock.SetTime(testStart.Add(LeaveSettles))
	g.Expect(leaves.Unsettled(testKey)).To(BeFalse())
}

// leaverStub is a node with an etcd member.
type leaverStub struct {
	status    talosclient.EtcdStatus
	statusErr error
	forfeits  error
	left      bool
}

func (l *leaverStub) EtcdForfeitLeadership(context.Context) error { return l.forfeits }

func (l *leaverStub) EtcdStatus(context.Context) (talosclient.EtcdStatus, error) {
	return l.status, l.statusErr
}

func (l *leaverStub) EtcdLeave(context.Context) error {
	l.left = true
	return nil
}

// TestOnlyTheMemberThatIsMeantLeaves: who has the address may have changed since.
func TestOnlyTheMemberThatIsMeantLeaves(t *testing.T) {
	for name, tc := range map[string]struct {
		node leaverStub
		left bool
	}{
		"a follower":     {leaverStub{status: talosclient.EtcdStatus{MemberID: 7, Leader: 8}}, true},
		"a leader still": {leaverStub{status: talosclient.EtcdStatus{MemberID: 7, Leader: 7}}, true},
		"one that keeps the leadership": {leaverStub{status: talosclient.EtcdStatus{MemberID: 7, Leader: 7},
			forfeits: errors.New("no other voter")}, true},
		"another member":       {leaverStub{status: talosclient.EtcdStatus{MemberID: 8, Leader: 8}}, false},
		"one that tells no ID": {leaverStub{statusErr: errors.New("silent")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			Leave(t.Context(), &tc.node, 7, clocktesting.NewFakePassiveClock(testStart), logr.Discard())
			NewWithT(t).Expect(tc.node.left).To(Equal(tc.left))
		})
	}
}
