package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Finalizers, labels and annotations of the backup provider.
const (
	// BackupFinalizer keeps a TalosEtcdBackup until its data is deleted, or left in the
	// store as its deletionPolicy says.
	BackupFinalizer = "backup.cluster.x-k8s.io/talosetcdbackup"

	// RestoreFinalizer keeps a TalosEtcdRestore until the TalosControlPlane is let go that it
	// holds.
	RestoreFinalizer = "backup.cluster.x-k8s.io/talosetcdrestore"

	// IDAnnotation on a TalosEtcdBackup tells the backup from others of the same name in
	// the store, and on a TalosEtcdRestore the restore from others. The provider writes it
	// before it stores or wipes anything. It is no UID of an object: clusterctl move gives
	// every object a new one.
	IDAnnotation = "backup.cluster.x-k8s.io/id"
	// ClusterIdentityAnnotation on a TalosEtcdBackup is a digest of the CA of the Talos API
	// of the cluster that it is of, which another cluster of the same name does not have.
	// The provider writes it beside the ID.
	ClusterIdentityAnnotation = "backup.cluster.x-k8s.io/cluster-identity"
	// ImportedAnnotation on a TalosEtcdBackup says that the provider has found the backup
	// in the store, and has not made it. On a TalosBackupStore it says that what was found
	// there was imported; without it, it is again. Its value does not matter.
	ImportedAnnotation = "backup.cluster.x-k8s.io/imported"
	// OutcomeAnnotation on a TalosEtcdBackup or a TalosEtcdRestore says how it has ended,
	// Completed or Failed, so that it is not made again where its status was lost, as by
	// clusterctl move.
	OutcomeAnnotation = "backup.cluster.x-k8s.io/outcome"

	// DeletionBegunAnnotation on a TalosEtcdBackup is the place, by endpoint, bucket and prefix,
	// at which something of its data was found to be deleted, written before anything is. What is
	// not found there any more was deleted, and is not at another place. It belongs to the provider.
	DeletionBegunAnnotation = "backup.cluster.x-k8s.io/deletion-begun"

	// ScheduleNameLabel on a TalosEtcdBackup is the name of the TalosEtcdBackupSchedule that
	// has made it, and that deletes it when it is not to be kept.
	ScheduleNameLabel = "backup.cluster.x-k8s.io/schedule-name"
	// ScheduledAtAnnotation on a TalosEtcdBackup is the time of the schedule for which it was
	// made.
	ScheduledAtAnnotation = "backup.cluster.x-k8s.io/scheduled-at"
	// RunAnnotation on a TalosEtcdBackupSchedule makes a backup of each selected Cluster
	// now. Each new value does so once; the last one is in status.lastRun.
	RunAnnotation = "backup.cluster.x-k8s.io/run"

	// VerifyAnnotation on a TalosEtcdBackup has it verified now. Its value is the level, and
	// after a slash anything that makes it another value: Snapshot/2026-11-25. Each new
	// value does so once; the last one is in status.verification.request.
	VerifyAnnotation = "backup.cluster.x-k8s.io/verify"

	// RestoreProgressAnnotation on a TalosEtcdRestore is the record of how far it is. Its
	// value is a JSON object (see RestoreProgress). It belongs to the provider.
	RestoreProgressAnnotation = "backup.cluster.x-k8s.io/restore-progress"
	// WipedForAnnotation on a TalosMachine is the attempt of a restore for which its machine
	// was last asked to be re-provisioned, so that each is once. It is written together with
	// that wish, and belongs to the provider.
	WipedForAnnotation = "backup.cluster.x-k8s.io/wiped-for"

	// ForceDeleteAnnotation on a TalosEtcdBackup that is being deleted lets it go though
	// its data could not be deleted. Its value does not matter.
	ForceDeleteAnnotation = "backup.cluster.x-k8s.io/force-delete"
)

// RestoreProgress is the value of RestoreProgressAnnotation, as JSON. It has what cannot be
// seen on the machines themselves.
type RestoreProgress struct {
	// Attempt is which attempt is under way, from 1.
	Attempt int32 `json:"attempt"`
	// Revision is the revision of etcd from which the restored one goes on.
	Revision int64 `json:"revision"`
	// EtcdVersion is the version of etcd that the backup is of.
	EtcdVersion string `json:"etcdVersion,omitempty"`
	// Machine is the Machine whose node was sent the snapshot in this attempt, and SentAt
	// when it had it; nothing while none has it.
	Machine string      `json:"machine,omitempty"`
	SentAt  metav1.Time `json:"sentAt,omitempty,omitzero"`
	// Bootstrapped reports whether etcd was seen running there since: nothing is wiped any
	// more.
	Bootstrapped bool `json:"bootstrapped,omitempty"`
	// Restarts are the Machines whose nodes were asked to restart, by name.
	Restarts map[string]RestoreRestart `json:"restarts,omitempty"`
}

// RestoreRestart tells a node before its restart from the same one after.
type RestoreRestart struct {
	// EtcdStarted is when its etcd was started before, by the clock of the node.
	EtcdStarted metav1.MicroTime `json:"etcdStarted"`
	// At is when it was asked.
	At metav1.Time `json:"at"`
}
