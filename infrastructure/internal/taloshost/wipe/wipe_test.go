package wipe

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

var installed = []talosclient.Volume{
	{ID: "META", Phase: "ready", Location: "/dev/vda4", Filesystem: "talosmeta"},
	{ID: "STATE", Phase: "ready", Location: "/dev/vda5", Filesystem: "xfs"},
	{ID: "EPHEMERAL", Phase: "ready", Location: "/dev/vda6", Filesystem: "xfs"},
	{ID: "u-data", Phase: "ready", Location: "/dev/vdb1", Filesystem: "ext4"},
	{ID: "r-raw", Phase: "ready", Location: "/dev/vdb2"},
	{ID: "s-swap", Phase: "ready", Location: "/dev/vdb3", Filesystem: "swap"},
	{ID: "e-theirs", Phase: "ready", Location: "/dev/vdc1", Filesystem: "ext4"},
	{ID: "/var/log", Phase: "ready"},
}

func TestDecide(t *testing.T) {
	wipeSystem := infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: ago(10 * time.Second)}
	told := func(d time.Duration) infrav1.HostRelease {
		release := wipeSystem
		release.RequestedAt, release.ResetAt, release.ResetCertFingerprint = ago(d), ago(d), "apid-1"

		return release
	}
	handover := infrav1.HostHandover{ProviderID: "talos://a", Progress: infrav1.HandoverRan, MaintenanceCertFingerprint: "boot-1"}

	tests := map[string]struct {
		facts  Facts
		action Action
		reason string
		labels []string
		failed bool
		// next is when time alone may change the decision, and says is in the message.
		next time.Duration
		says string
	}{
		"a running machine is told to wipe what Talos has made, and nothing of others": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Reset, reason: infrav1.ResettingReason, labels: []string{"EPHEMERAL", "r-raw", "s-swap", "u-data", "STATE"},
		},
		"a container is told to wipe itself without naming volumes": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.Configured, Stage: talosclient.StageRunning, Container: true},
			action: Reset, reason: infrav1.ResettingReason,
		},
		"a machine without located volumes is never told to wipe, because that would take the boot loader": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true},
			action: Wait, reason: infrav1.ReleaseFailedReason,
		},
		"a machine whose volumes could not be read is never told to wipe": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.Configured, Stage: talosclient.StageRunning, Volumes: installed},
			action: Wait, reason: infrav1.ReleaseFailedReason,
		},
		"WipeAll takes the whole system disk": {
			facts:  Facts{Release: infrav1.HostRelease{Policy: infrav1.ReleaseWipeAll}, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Reset, reason: infrav1.ResettingReason,
		},
		"a machine that votes in the etcd that it had left is not wiped": {
			facts:  Facts{Release: wipeSystem, Vote: Votes, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.EtcdVoterReason,
		},
		"it is when a person says so": {
			facts:  Facts{Release: wipeSystem, Vote: Votes, RetryNow: true, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Reset, reason: infrav1.ResettingReason, labels: []string{"EPHEMERAL", "r-raw", "s-swap", "u-data", "STATE"},
		},
		"a machine that may vote is given time to say so": {
			facts:  Facts{Release: wipeSystem, Vote: MayVote, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.EtcdVoterReason, next: 4*time.Minute + 50*time.Second,
		},
		"a machine whose etcd stays silent is wiped": {
			facts: Facts{Release: infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: ago(5 * time.Minute)}, Vote: MayVote,
				Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Reset, reason: infrav1.ResettingReason, labels: []string{"EPHEMERAL", "r-raw", "s-swap", "u-data", "STATE"},
		},
		"a machine that came back unwiped, and votes, is not told again": {
			facts:  Facts{Release: told(time.Hour), Vote: Votes, Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-2", VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.EtcdVoterReason,
		},
		"Retain never wipes": {
			facts:  Facts{Release: infrav1.HostRelease{Policy: infrav1.ReleaseRetain}, Outcome: probe.Configured, Stage: talosclient.StageRunning, VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.RetainedReason, failed: true,
		},
		"a machine that was told, and is in the same boot, is waited for": {
			facts:  Facts{Release: told(59 * time.Second), Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-1", VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.ResettingReason, next: time.Second,
		},
		"a machine that is wiping is waited for": {
			facts:  Facts{Release: told(time.Hour * 2), Outcome: probe.Configured, Stage: talosclient.StageResetting, Fingerprint: "apid-1", VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.ResettingReason,
		},
		"a machine that has booted with its configuration was not wiped": {
			facts:  Facts{Release: told(time.Minute), Outcome: probe.Configured, Stage: talosclient.StageBooting, Fingerprint: "apid-2", VolumesKnown: true, Volumes: installed, RetryAfter: time.Hour},
			action: Wait, reason: infrav1.NotWipedReason, failed: true, next: 59 * time.Minute,
		},
		"a machine that did not hear it is told again": {
			facts:  Facts{Release: told(time.Minute), Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-1", Container: true, RetryAfter: time.Hour},
			action: Reset, reason: infrav1.ResettingReason,
		},
		"an unwiped machine is given a minute, however short hostRetryAfterSeconds is": {
			facts:  Facts{Release: told(59 * time.Second), Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-2", Container: true, RetryAfter: time.Second},
			action: Wait, reason: infrav1.NotWipedReason, failed: true, next: time.Second,
		},
		"an unwiped machine is told again after hostRetryAfterSeconds": {
			facts:  Facts{Release: told(time.Hour), Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-2", Container: true, RetryAfter: time.Hour},
			action: Reset, reason: infrav1.ResettingReason,
		},
		"an unwiped machine is told again when a person wants it": {
			facts:  Facts{Release: told(time.Minute), Outcome: probe.Configured, Stage: talosclient.StageRunning, Fingerprint: "apid-2", Container: true, RetryAfter: time.Hour, RetryNow: true},
			action: Reset, reason: infrav1.ResettingReason,
		},
		"maintenance in another boot without content is the proof": {
			facts: Facts{
				Release: told(time.Minute), Handover: handover, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, Fingerprint: "boot-2",
				VolumesKnown: true, Volumes: []talosclient.Volume{{ID: "STATE", Phase: "missing"}, {ID: "META", Location: "/dev/vda4", ParentLocation: "/dev/vda", Filesystem: "talosmeta"}},
			},
			action: Done, reason: infrav1.NothingToReleaseReason, says: "proven wiped",
		},
		"maintenance is no proof while the volumes are unknown": {
			facts:  Facts{Release: told(time.Minute), Handover: handover, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, Fingerprint: "boot-2"},
			action: Wait, reason: infrav1.WaitingForResetReason,
		},
		"maintenance with content is not wiped": {
			facts: Facts{
				Release: told(time.Minute), Handover: handover, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, Fingerprint: "boot-2",
				VolumesKnown: true, Volumes: []talosclient.Volume{{ID: "STATE", Location: "/dev/vda5", Filesystem: "xfs"}},
			},
			action: Wait, reason: infrav1.NotWipedReason, failed: true,
		},
		"the boot of the hand-over is no proof at once": {
			facts: Facts{
				Release: wipeSystem, Handover: handover, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, Fingerprint: "boot-1", VolumesKnown: true,
			},
			action: Wait, reason: infrav1.WaitingForResetReason, next: 50 * time.Second,
		},
		"the boot of the hand-over is enough once the configuration is sure not to have been taken": {
			facts: Facts{
				Release:  infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: ago(time.Minute)},
				Handover: handover, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, Fingerprint: "boot-1", VolumesKnown: true,
			},
			action: Done, reason: infrav1.NothingToReleaseReason, says: "never taken",
		},
		"a silent machine is waited for": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.Silent},
			action: Wait, reason: infrav1.ReleaseUnreachableReason,
		},
		"a silent machine that was told is on its way": {
			facts:  Facts{Release: told(time.Second), Outcome: probe.Silent},
			action: Wait, reason: infrav1.ResettingReason,
		},
		"another machine is left alone": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.WrongMachine, Stage: talosclient.StageRunning},
			action: Wait, reason: infrav1.ReleaseIdentityReason,
		},
		"a machine with a wrong clock is waited for": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.WrongClock},
			action: Wait, reason: infrav1.ReleaseClockSkewReason,
		},
		"a silent machine that is retained is left as it is": {
			facts:  Facts{Release: infrav1.HostRelease{Policy: infrav1.ReleaseRetain}, Outcome: probe.Silent},
			action: Wait, reason: infrav1.RetainedReason, failed: true,
		},
		"a machine that nobody has looked for is waited for": {
			facts:  Facts{Release: wipeSystem},
			action: Wait, reason: infrav1.ReleaseUnreachableReason, says: "not seen",
		},
		"a machine that reboots is waited for": {
			facts:  Facts{Release: told(time.Hour * 2), Outcome: probe.Configured, Stage: talosclient.StageRebooting, Fingerprint: "apid-1", VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.ResettingReason,
		},
		"a machine that shuts down is waited for, though a person wants it told again": {
			facts:  Facts{Release: told(time.Hour * 2), Outcome: probe.Configured, Stage: talosclient.StageShuttingDown, RetryNow: true, VolumesKnown: true, Volumes: installed},
			action: Wait, reason: infrav1.ResettingReason,
		},
		"a machine of somebody else that is in maintenance mode is proven wiped in any boot": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.InMaintenance, Stage: talosclient.StageMaintenance, VolumesKnown: true},
			action: Done, reason: infrav1.NothingToReleaseReason, says: "proven wiped",
		},
		"a machine of somebody else is left alone": {
			facts:  Facts{Release: wipeSystem, Outcome: probe.Foreign},
			action: Wait, reason: infrav1.ReleaseUntrustedReason,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			tt.facts.Now = now
			decision := Decide(tt.facts)
			g.Expect(decision.Action).To(Equal(tt.action))
			g.Expect(decision.Reason).To(Equal(tt.reason))
			g.Expect(decision.Labels).To(Equal(tt.labels))
			g.Expect(decision.Failed).To(Equal(tt.failed))
			g.Expect(decision.Next).To(Equal(tt.next))
			g.Expect(decision.Message).NotTo(BeEmpty())
			g.Expect(decision.Message).To(ContainSubstring(tt.says))
		})
	}
}
