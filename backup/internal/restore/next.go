// Package restore restores the etcd of a cluster from a backup: it decides what is next, makes
// the database that a node is sent, and looks at nodes and at the API server.
package restore

import (
	"cmp"
	"slices"
	"strings"
	"time"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
)

const (
	// MaxAttempts is how often machines are wiped for one restore at most.
	MaxAttempts = int32(3)
	// recoveryTime is how long etcd may take to come up with the snapshot: a node pulls the
	// image of etcd, and copies all of the database.
	recoveryTime = 20 * time.Minute
	// restartTime is after which time a node is asked to restart once more, of which no
	// restart was seen.
	restartTime = 10 * time.Minute
)

// Wipe is how far the wipe of a machine for the present attempt is.
type Wipe int

const (
	// WipeNotAsked says that nobody has asked for it.
	WipeNotAsked Wipe = iota
	// WipeUnderWay says that it is being wiped, and gets its configuration again.
	WipeUnderWay
	// WipeDone says that it was, or has never run.
	WipeDone
)

// Machine is what is known about a control plane Machine.
type Machine struct {
	// Name is its name.
	Name string
	// Deleting reports whether it is being deleted.
	Deleting bool
	// Wipe is how far its wipe is.
	Wipe Wipe
	// Node is what its node says; nil when it does not answer.
	Node *Node
	// Restart is the request to restart that its node was sent; nil when it was sent none.
	Restart *backupv1.RestoreRestart
}

// votes reports whether the etcd of the Machine votes, and follows the leader.
func (m Machine) votes() bool { return m.Node != nil && m.Node.Votes }

// hasRestarted reports whether its etcd was started anew since it was asked to restart: at
// another time than before, also where the clock of the node was set back meanwhile.
func (m Machine) hasRestarted() bool {
	if m.Restart == nil || !m.votes() || m.Node.EtcdStarted.IsZero() {
		return false
	}

	return !m.Node.EtcdStarted.Truncate(time.Microsecond).Equal(m.Restart.EtcdStarted.Time)
}

// Facts are what is known about a restore that has begun.
type Facts struct {
	// Now is the present time.
	Now time.Time
	// Attempt is which attempt is under way.
	Attempt int32
	// EtcdVersion is the version of etcd that the backup is of; empty when that is not known.
	EtcdVersion string
	// Target is the Machine whose node was sent the snapshot in this attempt; empty while
	// none was. SentAt is when.
	Target string
	SentAt time.Time
	// Bootstrapped reports whether etcd was seen running there since.
	Bootstrapped bool
	// CanWipe reports whether all machines can be wiped, and so another attempt can be made.
	CanWipe bool
	// Machines are the control plane Machines that have, or may have, a configuration.
	Machines []Machine
}

// Step is what is next.
type Step string

const (
	// AwaitMachine waits for a control plane Machine.
	AwaitMachine Step = "AwaitMachine"
	// AwaitDeletion waits until a Machine is gone that is being deleted.
	AwaitDeletion Step = "AwaitDeletion"
	// WipeMachines asks for machines to be wiped.
	WipeMachines Step = "WipeMachines"
	// AwaitWipe waits until they are, and answer.
	AwaitWipe Step = "AwaitWipe"
	// Send sends the snapshot to the node of a Machine.
	Send Step = "Send"
	// AwaitEtcd waits until etcd runs there.
	AwaitEtcd Step = "AwaitEtcd"
	// Again begins another attempt.
	Again Step = "Again"
	// GiveUp ends the restore.
	GiveUp Step = "GiveUp"
	// AwaitMembers waits until all Machines vote.
	AwaitMembers Step = "AwaitMembers"
	// RestartNode restarts the node of a Machine.
	RestartNode Step = "RestartNode"
	// AwaitRestart waits until etcd has come back there.
	AwaitRestart Step = "AwaitRestart"
	// Finish looks at the API server, and lets the control plane go.
	Finish Step = "Finish"
)

// Decision is what is next, and about which Machines, in the order of their names.
type Decision struct {
	Step     Step
	Machines []string
	// Failure says in a sentence why the attempt has failed, for Again and GiveUp.
	Failure string
}

// Names are the Machines in words.
func (d Decision) Names() string { return strings.Join(d.Machines, ", ") }

// Next says what is next. Machines are wiped until etcd was seen running with the snapshot,
// and never after.
func Next(facts Facts) Decision {
	machines := slices.SortedFunc(slices.Values(facts.Machines), func(a, b Machine) int { return cmp.Compare(a.Name, b.Name) })
	if !facts.Bootstrapped {
		return nextOfRecovery(facts, machines)
	}
	staying := slices.DeleteFunc(machines, func(machine Machine) bool { return machine.Deleting })
	if silent := namesOf(staying, func(machine Machine) bool { return !machine.votes() && machine.Restart == nil }); len(staying) == 0 || len(silent) > 0 {
		return Decision{Step: AwaitMembers, Machines: silent}
	}

	return nextOfRestarts(facts, staying)
}

// nextOfRecovery is what is next until etcd runs on the first machine.
func nextOfRecovery(facts Facts, machines []Machine) Decision {
	going := namesOf(machines, func(machine Machine) bool { return machine.Deleting })
	unasked := namesOf(machines, func(machine Machine) bool { return machine.Wipe == WipeNotAsked })
	wiping := namesOf(machines, func(machine Machine) bool { return machine.Wipe != WipeDone })
	silent := namesOf(machines, func(machine Machine) bool { return machine.Node == nil })
	holding := namesOf(machines, func(machine Machine) bool { return machine.Node != nil && machine.Node.HasData })
	older := namesOf(machines, func(machine Machine) bool {
		return machine.Node != nil && IsOlder(machine.Node.EtcdVersion, facts.EtcdVersion)
	})
	switch {
	case len(machines) == 0:
		return Decision{Step: AwaitMachine}
	case len(going) > 0:
		// Its node may have the data still, and nobody wipes it before its Machine is let go.
		return Decision{Step: AwaitDeletion, Machines: going}
	case len(unasked) > 0:
		return Decision{Step: WipeMachines, Machines: unasked}
	case len(wiping) > 0:
		return Decision{Step: AwaitWipe, Machines: wiping}
	case facts.Target != "":
		return nextOfTarget(facts, machines)
	case len(holding) > 0:
		// It was made by an attempt of which nothing is known any more.
		return facts.again("etcd on Machine " + strings.Join(holding, ", ") + " has data, and not of this attempt")
	case len(silent) > 0:
		return Decision{Step: AwaitWipe, Machines: silent}
	case len(older) > 0:
		return Decision{Step: GiveUp, Failure: "Machine " + strings.Join(older, ", ") + " runs an etcd of a release before that of the backup, " + facts.EtcdVersion}
	}

	return Decision{Step: Send, Machines: []string{oldest(machines).Name}}
}

// oldest is the first machine of those with the oldest etcd: a member of an older release
// cannot join newer ones only.
func oldest(machines []Machine) Machine {
	found := machines[0]
	for _, machine := range machines[1:] {
		if IsOlder(machine.Node.EtcdVersion, found.Node.EtcdVersion) {
			found = machine
		}
	}

	return found
}

// again is what is next when the attempt has failed.
func (f *Facts) again(failure string) Decision {
	if f.Attempt >= MaxAttempts || !f.CanWipe {
		return Decision{Step: GiveUp, Failure: failure}
	}

	return Decision{Step: Again, Failure: failure}
}

// nextOfTarget is what is next while etcd comes up on the Machine whose node has the snapshot.
func nextOfTarget(facts Facts, machines []Machine) Decision {
	i := slices.IndexFunc(machines, func(machine Machine) bool { return machine.Name == facts.Target })
	switch {
	case i < 0:
		return facts.again("Machine " + facts.Target + ", whose node was sent the snapshot, is gone")
	case machines[i].votes(): // The control plane is to record it yet.
	case machines[i].Node != nil && machines[i].Node.EtcdFailed:
		return facts.again("etcd on Machine " + facts.Target + " cannot be restored from the snapshot: " + machines[i].Node.EtcdMessage)
	case !facts.SentAt.IsZero() && facts.Now.Sub(facts.SentAt) > recoveryTime:
		return facts.again("etcd on Machine " + facts.Target + " has not come up with the snapshot in time")
	}

	return Decision{Step: AwaitEtcd, Machines: []string{facts.Target}}
}

// nextOfRestarts is what is next once all have voted: one node after the other restarts, the
// first that had the snapshot last.
func nextOfRestarts(facts Facts, machines []Machine) Decision {
	slices.SortStableFunc(machines, func(a, b Machine) int { return rank(facts, a) - rank(facts, b) })
	var next *Machine
	for i := range machines {
		switch machine := &machines[i]; {
		case machine.hasRestarted():
		case machine.Restart != nil && facts.Now.Sub(machine.Restart.At.Time) < restartTime:
			return Decision{Step: AwaitRestart, Machines: []string{machine.Name}}
		case next == nil:
			next = machine
		}
	}
	if next == nil {
		return Decision{Step: Finish}
	}
	if silent := namesOf(machines, func(machine Machine) bool { return !machine.votes() && machine.Name != next.Name }); len(silent) > 0 {
		return Decision{Step: AwaitRestart, Machines: silent}
	}

	return Decision{Step: RestartNode, Machines: []string{next.Name}}
}

func rank(facts Facts, machine Machine) int {
	if machine.Name == facts.Target {
		return 1
	}

	return 0
}

func namesOf(machines []Machine, are func(Machine) bool) []string {
	var names []string
	for _, machine := range machines {
		if are(machine) {
			names = append(names, machine.Name)
		}
	}

	return names
}
