package plan

import controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"

// BackupState is how far the backup is that is made before what may cost the data of etcd.
type BackupState int

const (
	// BackupNotWanted says that nobody has asked for one.
	BackupNotWanted BackupState = iota
	// BackupDue says that there is none yet.
	BackupDue
	// BackupUnderWay says that it is being made, or cannot be made.
	BackupUnderWay
	// BackupMade says that it is complete, or is not waited for any more.
	BackupMade
)

// BackupFacts are what is known about that backup.
type BackupFacts struct {
	// State is how far it is.
	State BackupState
	// Begun reports whether one is recorded as begun.
	Begun bool
	// Message says in words what it waits for; empty when that is not known.
	Message string
}

// decideChanges is about the number of Machines, and those that are outdated, with a backup
// of etcd before one goes. Once nothing is to be changed any more, that backup is history.
func decideChanges(facts Facts) *Decision {
	decision := decideReplicas(facts)
	switch {
	case decision == nil && facts.Backup.Begun:
		return &Decision{Action: ForgetBackup, Reason: controlplanev1.InitializedReason, Message: "The backup before the last change is not waited for any more"}
	case decision == nil || !decision.Risky:
		return decision
	}

	return backUpFirst(facts, decision, true)
}

// decideRepair is about Machines that are to be remediated: a backup is begun before, and
// not waited for.
func decideRepair(facts Facts) *Decision {
	decision := decideRemediation(facts)
	if decision == nil || !facts.Initialized {
		return decision
	}

	return backUpFirst(facts, decision, false)
}

// backUpFirst has a backup made before a decision is carried out.
func backUpFirst(facts Facts, decision *Decision, waits bool) *Decision {
	switch {
	case facts.Backup.State == BackupDue:
		return &Decision{Action: BackUp, Machine: decision.Machine, Reason: decision.Reason, Message: decision.Message + ", after a backup of etcd"}
	case facts.Backup.State == BackupUnderWay && waits:
		message := decision.Message + ", after a backup of etcd"
		if facts.Backup.Message != "" {
			message += ": " + facts.Backup.Message
		}
		return &Decision{Action: WaitForBackup, Machine: decision.Machine, Reason: decision.Reason, Message: message}
	}

	return decision
}
