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
	// Refused reports whether the API server does not take it.
	Refused bool
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
	case facts.Backup.State == BackupDue:
		return backupBefore(decision, BackUp)
	case facts.Backup.State == BackupUnderWay:
		wait := backupBefore(decision, WaitForBackup)
		if facts.Backup.Message != "" {
			wait.Message += ": " + facts.Backup.Message
		}
		return wait
	}

	return decision
}

// decideRepair is about Machines that are to be remediated: a backup is begun before where
// that can be, and not waited for.
func decideRepair(facts Facts) *Decision {
	decision := decideRemediation(facts)
	if decision == nil || !facts.Initialized || facts.Backup.State != BackupDue || facts.Backup.Refused {
		return decision
	}

	return backupBefore(decision, BackUp)
}

// backupBefore begins the backup before a decision, or waits for it.
func backupBefore(decision *Decision, action Action) *Decision {
	return &Decision{Action: action, Machine: decision.Machine, Reason: decision.Reason, Message: decision.Message + ", after a backup of etcd"}
}
