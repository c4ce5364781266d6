package plan

import (
	"testing"

	. "github.com/onsi/gomega"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// TestABackupComesBeforeWhatMayCostData: before the first Machine of a rollout is made, and
// before one goes; not before one more joins.
func TestABackupComesBeforeWhatMayCostData(t *testing.T) {
	backup := func(state BackupState) func(*Facts) {
		return func(f *Facts) {
			f.Backup = BackupFacts{State: state, Begun: state > BackupDue, Message: "the store is away"}
		}
	}
	noSurge := func(f *Facts) { f.MaxSurge = 0 }
	fewer := func(f *Facts) { f.Replicas = 1 }
	unhealthy := func(f *Facts) { f.Machines[0].Unhealthy = true }
	for name, tc := range map[string]struct {
		change  func(*Facts)
		without Action
		due     Action
		waits   Action
	}{
		"a rollout, one more":  {outdated, CreateMachine, BackUp, WaitForBackup},
		"a rollout, one fewer": {func(f *Facts) { outdated(f); noSurge(f) }, DeleteMachine, BackUp, WaitForBackup},
		"a scale down":         {fewer, DeleteMachine, BackUp, WaitForBackup},
		"a remediation":        {unhealthy, RemediateMachine, BackUp, RemediateMachine},
		"a scale up":           {func(f *Facts) { f.Replicas = 5 }, CreateMachine, CreateMachine, CreateMachine},
		"nothing":              {func(*Facts) {}, Stable, Stable, ForgetBackup},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(Decide(three(tc.change)).Action).To(Equal(tc.without))
			due := Decide(three(tc.change, backup(BackupDue)))
			g.Expect(due.Action).To(Equal(tc.due))
			waits := Decide(three(tc.change, backup(BackupUnderWay)))
			g.Expect(waits.Action).To(Equal(tc.waits))
			if waits.Action == WaitForBackup {
				g.Expect(waits.Message).To(ContainSubstring("after a backup of etcd: the store is away"))
			}
			made := Decide(three(tc.change, backup(BackupMade)))
			if tc.without == Stable {
				g.Expect(made.Action).To(Equal(ForgetBackup))
				return
			}
			g.Expect(made.Action).To(Equal(tc.without))
		})
	}
}

// TestWhatHasNotBegunNeedsNoBackup: there is nothing to lose.
func TestWhatHasNotBegunNeedsNoBackup(t *testing.T) {
	g := NewWithT(t)
	due := func(f *Facts) { f.Backup = BackupFacts{State: BackupDue} }
	g.Expect(Decide(ready(due, func(f *Facts) { f.Machines[0].Unhealthy = true })).Action).To(Equal(RemediateMachine))
	g.Expect(Decide(ready(due, func(f *Facts) { f.Machines = nil })).Action).To(Equal(CreateMachine))
	held := func(f *Facts) {
		f.Replicas = 1
		f.Machines = append(f.Machines[:1:1], MachineFacts{Name: "cp-b", Held: true}, MachineFacts{Name: "cp-c", Held: true})
		f.Etcd.Members, f.Etcd.Answering = f.Etcd.Members[:1], f.Etcd.Answering[:1]
	}
	decision := Decide(three(held, due))
	g.Expect(decision.Action).To(Equal(DeleteMachine), "one that has not joined has nothing")
	g.Expect(decision.Machine).NotTo(Equal("cp-a"))
	// A member that goes by itself does not wait for a backup either.
	leaving := Decide(three(due, func(f *Facts) {
		f.Replicas, f.Machines[2].Deleting, f.Machines[2].Hook = 3, true, HookDue
		f.APIServer, f.Initialized = health.APIServerReady, true
	}))
	g.Expect(leaving.Action).To(Equal(LeaveEtcd))
	g.Expect(leaving.Reason).NotTo(Equal(controlplanev1.InitializedReason))
}
