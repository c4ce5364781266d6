// Package wipe decides what the release of a machine needs next, and when a
// machine is proven wiped (design D10). It is pure.
package wipe

import (
	"slices"
	"strings"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

const (
	// resetSettle is how long a machine that was told to wipe itself may go on
	// answering in the same boot before it is told again: it may never have
	// got the order.
	resetSettle = time.Minute
	// volumesSettle is how long a machine that boots may take to make its volumes before
	// it is told to wipe those that it has: one may have no disk.
	volumesSettle = 2 * time.Minute
	// etcdSettle is how long the etcd of a machine that has left and has data again
	// may be silent: it may be starting, or be removed by the others.
	etcdSettle = 5 * time.Minute
)

// Vote reports whether a machine votes in an etcd that it had left.
type Vote string

const (
	// NoVote says that it does not, or that nobody cares.
	NoVote Vote = ""
	// Votes says that it does.
	Votes Vote = "Votes"
	// MayVote says that it has data, and that its etcd does not answer.
	MayVote Vote = "MayVote"
)

// Facts are what is known about a machine that is to be wiped.
type Facts struct {
	// Release is what was asked for and done so far.
	Release infrav1.HostRelease
	// Handover is the record of the configuration that we gave it; zero for a
	// machine that somebody else has configured.
	Handover infrav1.HostHandover
	// Outcome is how the machine has answered.
	Outcome probe.Outcome
	// Fingerprint is the fingerprint of the certificate it has presented.
	Fingerprint string
	// Stage is its stage, one of the talosclient.Stage constants.
	Stage string
	// Vote reports whether it votes in an etcd that it had left.
	Vote Vote
	// Container reports whether the machine is a container: it has no volumes of its
	// own.
	Container bool
	// VolumesKnown reports whether Volumes could be read.
	VolumesKnown bool
	// Volumes are the volumes of the machine, and what was found on its disks.
	Volumes []talosclient.Volume
	// Disks are its disks.
	Disks []talosclient.Disk
	// Refusal is what condition Released tells of the machine's answer to the last
	// order to wipe itself; empty when it has not refused that.
	Refusal string
	// Now is the present time.
	Now time.Time
	// RetryAfter is how long a machine that came back unwiped is left alone.
	RetryAfter time.Duration
	// RetryNow reports whether a person wants it to be tried again at once.
	RetryNow bool
}

// Action is what to do next.
type Action string

const (
	// Wait does nothing.
	Wait Action = "Wait"
	// Reset tells the machine to wipe itself.
	Reset Action = "Reset"
	// WipeDevices has a machine in maintenance mode wipe partitions and whole disks
	// that it was not told to wipe before, or that it has not wiped.
	WipeDevices Action = "WipeDevices"
	// Done ends the release: the machine is proven wiped.
	Done Action = "Done"
)

// Decision is what to do next, and why.
type Decision struct {
	// Action is what to do.
	Action Action
	// Reason is the reason of condition Released.
	Reason string
	// Message is the message of that condition.
	Message string
	// Labels are the volumes to wipe, for Reset. None wipes the whole system
	// disk on metal; a container takes none.
	Labels []string
	// Disks are the disks to wipe as a whole beside those, for Reset.
	Disks []string
	// Volumes are the UUIDs of the volumes of the cluster, to be recorded with the
	// order, for Reset.
	Volumes []string
	// Devices are the partitions and the whole disks to wipe, for WipeDevices.
	Devices []string
	// Failed reports whether the machine needs attention: waiting alone does not
	// help, and its consumer is let go.
	Failed bool
	// Next is when the decision may change by time alone; zero when it does not.
	Next time.Duration
}

// Decide says what the release of a machine needs next.
func Decide(facts Facts) Decision {
	switch facts.Outcome {
	case probe.Silent, probe.WrongFingerprint:
		return unreachable(facts)
	case probe.Foreign:
		return Decision{
			Action: Wait, Reason: infrav1.ReleaseUntrustedReason,
			Message: "The machine answers, but does not accept the client certificate of the host; it cannot be wiped with it",
		}
	case probe.WrongClock:
		return Decision{
			Action: Wait, Reason: infrav1.ReleaseClockSkewReason,
			Message: "The machine answers, but its clock and that of the management cluster differ by more than ten minutes, " +
				"so that they refuse each other's certificates; it is wiped once they agree. Set the time servers of both",
		}
	case probe.WrongMachine:
		return Decision{
			Action: Wait, Reason: infrav1.ReleaseIdentityReason,
			Message: "Another machine answers at the addresses of the host; it is left alone",
		}
	case probe.InMaintenance:
		return inMaintenance(facts)
	case probe.Configured:
		return configured(facts)
	}

	return Decision{Action: Wait, Reason: infrav1.ReleaseUnreachableReason, Message: "The machine was not seen"}
}

func unreachable(facts Facts) Decision {
	switch {
	case facts.Release.Policy == infrav1.ReleaseRetain:
		return retained()
	case facts.Release.ResetAt.IsZero():
		return Decision{
			Action: Wait, Reason: infrav1.ReleaseUnreachableReason,
			Message: "The machine does not answer; it is wiped once it does",
		}
	}

	return resetting()
}

func resetting() Decision {
	return Decision{
		Action: Wait, Reason: infrav1.ResettingReason,
		Message: "The machine was told to wipe itself; waiting for it to come back in maintenance mode. It is told again if it goes on as it is",
	}
}

func retained() Decision {
	return Decision{
		Action: Wait, Reason: infrav1.RetainedReason, Failed: true,
		Message: "The machine was left as it is, as releasePolicy Retain wants; reset it to maintenance mode to use the host again",
	}
}

// votes waits until the control plane provider has removed the member with which a
// machine has joined etcd again: without its vote the others may be no majority.
func votes(facts Facts) Decision {
	decision := Decision{
		Action: Wait, Reason: infrav1.EtcdVoterReason,
		Message: "The machine has left etcd, was restarted before it was reset, and has joined again; it is wiped once the control plane provider has removed its member, or when the host gets the annotation " +
			infrav1.HostRetryAnnotation,
	}
	if facts.Vote == MayVote {
		decision.Next = etcdSettle - facts.Now.Sub(facts.Release.RequestedAt.Time)
	}

	return decision
}

// inMaintenance looks for the proof: a new boot, nothing in the volumes, and the disk on
// which they were.
func inMaintenance(facts Facts) Decision {
	switch {
	case !facts.VolumesKnown || facts.Stage != talosclient.StageMaintenance:
		return Decision{
			Action: Wait, Reason: infrav1.WaitingForResetReason,
			Message: "The machine answers in maintenance mode; waiting for it to tell its volumes",
		}
	case !isNewBoot(facts) && facts.Now.Sub(facts.Release.RequestedAt.Time) < taloshost.HandoverSettle:
		return Decision{
			Action: Wait, Reason: infrav1.WaitingForResetReason,
			Message: "The machine is in maintenance mode, in the boot in which it was given its configuration; waiting until that is sure not to have been taken",
			Next:    taloshost.HandoverSettle - facts.Now.Sub(facts.Release.RequestedAt.Time),
		}
	}
	if left := leftovers(facts); len(left) > 0 {
		return unwiped(facts, left)
	}
	if !isNewBoot(facts) {
		return Decision{Action: Done, Reason: infrav1.NothingToReleaseReason, Message: "The machine has never taken the configuration"}
	}
	if lacksSystem(facts) && !facts.RetryNow {
		return Decision{
			Action: Wait, Reason: infrav1.NotWipedReason, Failed: true,
			Message: "The machine is in maintenance mode, but does not find the disk of its system: META, which a wipe of the system keeps, is on none of its disks. " +
				"STATE and EPHEMERAL may be on a disk that is missing. Put it back, and restart the machine; " +
				"where it was wiped as a whole, or is gone for good, give the host the annotation " + infrav1.HostRetryAnnotation,
		}
	}

	return Decision{Action: Done, Reason: infrav1.NothingToReleaseReason, Message: "The machine is proven wiped"}
}

// unwiped decides about a machine in maintenance mode on which something is left.
func unwiped(facts Facts, left []talosclient.Volume) Decision {
	if devices := wipeable(facts, left); len(devices) > 0 {
		return Decision{
			Action: WipeDevices, Reason: infrav1.ResettingReason, Devices: devices,
			Message: "The machine is back in maintenance mode, and still has volumes of the cluster or of an earlier one; it is told to wipe " + strings.Join(devices, ", "),
		}
	}
	message := "The machine is back in maintenance mode, but still has " + names(left) + "; wipe it by hand (talosctl wipe disk --insecure --drop-partition)"
	if facts.Release.Policy != infrav1.ReleaseRetain {
		message += ". The annotation " + infrav1.HostRetryAnnotation + " on the host has those of them wiped that are not in use"
	}

	return Decision{Action: Wait, Reason: infrav1.NotWipedReason, Failed: true, Message: message}
}

func isNewBoot(facts Facts) bool {
	return facts.Handover.MaintenanceCertFingerprint == "" || facts.Fingerprint != facts.Handover.MaintenanceCertFingerprint
}

func configured(facts Facts) Decision {
	resetAt := facts.Release.ResetAt
	switch {
	case facts.Release.Policy == infrav1.ReleaseRetain:
		return retained()
	case slices.Contains([]string{talosclient.StageResetting, talosclient.StageRebooting, talosclient.StageShuttingDown}, facts.Stage):
		return resetting()
	case facts.RetryNow:
		return reset(facts)
	case facts.Vote == Votes, facts.Vote == MayVote && facts.Now.Sub(facts.Release.RequestedAt.Time) < etcdSettle:
		return votes(facts)
	case resetAt.IsZero() && makesVolumes(facts) && facts.Now.Sub(facts.Release.RequestedAt.Time) < volumesSettle:
		return Decision{
			Action: Wait, Reason: infrav1.WaitingForResetReason,
			Message: "The machine boots, and does not tell all its volumes yet; it is told to wipe itself once it does",
			Next:    volumesSettle - facts.Now.Sub(facts.Release.RequestedAt.Time),
		}
	case resetAt.IsZero():
		return reset(facts)
	case facts.Fingerprint == facts.Release.ResetCertFingerprint:
		left := resetSettle - facts.Now.Sub(resetAt.Time)
		if left <= 0 {
			return reset(facts)
		}
		decision := resetting()
		if facts.Refusal != "" {
			decision.Reason, decision.Message = infrav1.ReleaseFailedReason, facts.Refusal
		}
		decision.Next = left

		return decision
	case facts.Now.Sub(resetAt.Time) >= max(facts.RetryAfter, resetSettle):
		return reset(facts)
	}

	return Decision{
		Action: Wait, Reason: infrav1.NotWipedReason, Failed: true,
		Message: "The machine runs with its configuration although it was told to wipe itself; it is told again after hostRetryAfterSeconds, or when the host gets the annotation " + infrav1.HostRetryAnnotation,
		Next:    max(facts.RetryAfter, resetSettle) - facts.Now.Sub(resetAt.Time),
	}
}

func reset(facts Facts) Decision {
	decision := Decision{
		Action: Reset, Reason: infrav1.ResettingReason, Message: resetting().Message,
	}
	if facts.Container {
		return decision
	}
	if !facts.VolumesKnown {
		return Decision{
			Action: Wait, Reason: infrav1.ReleaseFailedReason,
			Message: "The machine does not tell its volumes, so it is not known what to wipe; it is asked again. If that lasts, wipe it by hand",
		}
	}
	made := orderFor(facts)
	decision.Labels, decision.Disks, decision.Volumes = made.labels, made.disks, made.volumes
	// An empty list would wipe the boot loader too.
	if len(decision.Labels) == 0 && facts.Release.Policy != infrav1.ReleaseWipeAll {
		return Decision{
			Action: Wait, Reason: infrav1.ReleaseFailedReason,
			Message: "The machine tells no volume that could be wiped; without one the whole system disk would be. Wipe it by hand",
		}
	}

	return decision
}
