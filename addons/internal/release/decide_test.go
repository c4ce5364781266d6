package release

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

var now = time.Date(2026, time.November, 24, 12, 0, 0, 0, time.UTC)

// revision is one of ours, of what is asked for, that began a minute ago.
func revision(number int32, status Status, changes ...func(*Revision)) Revision {
	made := Revision{Number: number, Status: status, Owner: "us", Digest: "wanted", At: now.Add(-time.Minute)}
	for _, change := range changes {
		change(&made)
	}

	return made
}

func old(r *Revision)      { r.Digest = "old" }
func theirs(r *Revision)   { r.Owner = "them" }
func nobodys(r *Revision)  { r.Owner, r.Digest = "", "" }
func untested(r *Revision) { r.Tests = "" }
func unwell(r *Revision)   { r.Tests = TestsFailed }

func TestDecide(t *testing.T) {
	rollback := func(f *Facts) { f.OnFailure = addonv1.FailureRollback }
	uninstall := func(f *Facts) { f.OnFailure = addonv1.FailureUninstall }
	tests := func(f *Facts) { f.Tests = true }
	adopt := func(f *Facts) { f.Adoption = addonv1.AdoptAlways }
	failed := func(times int32, ago time.Duration) func(*Facts) {
		return func(f *Facts) { f.Failures, f.FailedAt = times, now.Add(-ago) }
	}
	for name, tt := range map[string]struct {
		history []Revision
		facts   []func(*Facts)
		want    Decision
	}{
		"no release is installed": {want: Decision{State: addonv1.StateAbsent, Action: addonv1.ActionInstall}},
		"one that was uninstalled and kept is installed": {
			history: []Revision{revision(3, Uninstalled)}, want: Decision{State: addonv1.StateAbsent, Action: addonv1.ActionInstall},
		},
		"one that is as it should be is left alone": {history: []Revision{revision(1, Deployed)}, want: Decision{State: addonv1.StateInSync}},
		"another digest is rolled out": {
			history: []Revision{revision(1, Deployed, old)}, want: Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionUpgrade},
		},
		"another digest is rolled out after a failure with a former one": {
			history: []Revision{revision(2, Failed, old), revision(1, Deployed)}, want: Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionUpgrade},
		},
		"what another add-on has installed is left alone": {
			history: []Revision{revision(1, Deployed, theirs)}, facts: []func(*Facts){adopt}, want: Decision{State: addonv1.StateUnmanaged, Reason: addonv1.ReleaseConflictReason},
		},
		"what somebody else has installed is left alone": {
			history: []Revision{revision(1, Failed, nobodys)}, want: Decision{State: addonv1.StateUnmanaged, Reason: addonv1.ReleaseNotManagedReason},
		},
		"unless it shall be taken over": {
			history: []Revision{revision(1, Deployed, nobodys)}, facts: []func(*Facts){adopt}, want: Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionUpgrade},
		},
		"what is pending is waited for": {
			history: []Revision{revision(2, Pending), revision(1, Deployed, old)},
			want:    Decision{State: addonv1.StateLocked, After: 4*time.Minute + 30*time.Second, Reason: addonv1.LockedReason},
		},
		"as long as it was allowed to take then": {
			history: []Revision{revision(2, Pending, func(r *Revision) { r.Timeout = time.Hour })},
			want:    Decision{State: addonv1.StateLocked, After: 59*time.Minute + 30*time.Second, Reason: addonv1.LockedReason},
		},
		"and is unlocked then": {
			history: []Revision{revision(2, Pending, func(r *Revision) { r.At = now.Add(-5*time.Minute - 30*time.Second) })},
			want:    Decision{State: addonv1.StateLocked, Action: addonv1.ActionUnlock, Revision: 2},
		},
		"an uninstallation that was begun is ended": {
			history: []Revision{revision(2, Uninstalling)}, want: Decision{State: addonv1.StateLocked, Action: addonv1.ActionUninstall},
		},
		"a failure is tried again": {
			history: []Revision{revision(1, Failed)}, want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionUpgrade},
		},
		"after a while": {
			history: []Revision{revision(1, Failed)}, facts: []func(*Facts){failed(2, 5*time.Second)},
			want: Decision{State: addonv1.StateFailed, After: 15 * time.Second, Reason: addonv1.ActionFailedReason},
		},
		"when that is over": {
			history: []Revision{revision(1, Failed)}, facts: []func(*Facts){failed(2, 20*time.Second)},
			want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionUpgrade},
		},
		"the last retry": {
			history: []Revision{revision(1, Failed)}, facts: []func(*Facts){failed(3, time.Hour)},
			want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionUpgrade},
		},
		"and then no more": {
			history: []Revision{revision(1, Failed)}, facts: []func(*Facts){failed(4, time.Hour)},
			want: Decision{State: addonv1.StateFailed, Reason: addonv1.StalledReason},
		},
		"a refused installation is not tried for ever": {
			facts: []func(*Facts){failed(4, time.Hour)}, want: Decision{State: addonv1.StateAbsent, Reason: addonv1.StalledReason},
		},
		"a failed upgrade is rolled back": {
			history: []Revision{revision(4, Failed), revision(3, Failed, old), revision(2, Deployed, old), revision(1, Superseded, old)}, facts: []func(*Facts){rollback, failed(9, 0)},
			want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionRollback, Revision: 2},
		},
		"to one that was deployed once, where none is": {
			history: []Revision{revision(3, Failed), revision(2, Superseded, old), revision(1, Superseded, old)}, facts: []func(*Facts){rollback},
			want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionRollback, Revision: 2},
		},
		"a failed installation has nothing to roll back to": {
			history: []Revision{revision(1, Failed)}, facts: []func(*Facts){rollback}, want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionUpgrade},
		},
		"after the rollback it is tried again": {
			history: []Revision{revision(3, Deployed, old), revision(2, Failed)}, facts: []func(*Facts){rollback, failed(1, time.Minute)},
			want: Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionUpgrade},
		},
		"or given up": {
			history: []Revision{revision(3, Deployed, old), revision(2, Failed)}, facts: []func(*Facts){rollback, failed(4, time.Minute)},
			want: Decision{State: addonv1.StateOutOfSync, Reason: addonv1.StalledReason},
		},
		"a failed rollback is followed by an upgrade": {
			history: []Revision{revision(3, Failed, old), revision(2, Failed), revision(1, Superseded, old)}, facts: []func(*Facts){rollback, failed(2, time.Minute)},
			want: Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionUpgrade},
		},
		"a failed installation is uninstalled": {
			history: []Revision{revision(1, Failed)}, facts: []func(*Facts){uninstall, failed(9, 0)}, want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionUninstall},
		},
		"a failed upgrade never is": {
			history: []Revision{revision(2, Failed), revision(1, Deployed, old)}, facts: []func(*Facts){uninstall}, want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionRollback, Revision: 1},
		},
		"a revision is tested": {
			history: []Revision{revision(1, Deployed, untested)}, facts: []func(*Facts){tests}, want: Decision{State: addonv1.StateOutOfSync, Action: addonv1.ActionTest},
		},
		"failed tests are run again": {
			history: []Revision{revision(2, Deployed, unwell), revision(1, Superseded, old)}, facts: []func(*Facts){tests, failed(1, time.Minute)},
			want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionTest},
		},
		"or the revision is rolled back": {
			history: []Revision{revision(2, Deployed, unwell), revision(1, Superseded, old)}, facts: []func(*Facts){tests, rollback},
			want: Decision{State: addonv1.StateFailed, Action: addonv1.ActionRollback, Revision: 1},
		},
		"drift is told": {
			history: []Revision{revision(1, Deployed)}, facts: []func(*Facts){func(f *Facts) { f.Drifted, f.Drift = true, addonv1.DriftWarn }}, want: Decision{State: addonv1.StateDrifted},
		},
		"or corrected": {
			history: []Revision{revision(1, Deployed)}, facts: []func(*Facts){func(f *Facts) { f.Drifted, f.Drift = true, addonv1.DriftCorrect }},
			want: Decision{State: addonv1.StateDrifted, Action: addonv1.ActionCorrectDrift},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			facts := Facts{Owner: "us", Digest: "wanted", History: tt.history, Timeout: 5 * time.Minute, Adoption: addonv1.AdoptNever, OnFailure: addonv1.FailureRetry, Retries: 3, Now: now}
			for _, change := range tt.facts {
				change(&facts)
			}
			got := Decide(facts)
			g.Expect(got.Message != "").To(Equal(got.State == addonv1.StateUnmanaged || got.Reason == addonv1.LockedReason), got.Message)
			got.Message = ""
			g.Expect(got).To(Equal(tt.want))
		})
	}
}

func TestRetriesComeSlower(t *testing.T) {
	g := NewWithT(t)
	for failures, want := range map[int32]time.Duration{1: 10 * time.Second, 2: 20 * time.Second, 6: 320 * time.Second, 7: 10 * time.Minute, 100: 10 * time.Minute} {
		g.Expect(backoff(failures)).To(Equal(want))
	}
}
