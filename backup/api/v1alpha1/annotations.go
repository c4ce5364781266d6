package v1alpha1

// Finalizers, labels and annotations of the backup provider.
const (
	// BackupFinalizer keeps a TalosEtcdBackup until its data is deleted, or left in the
	// store as its deletionPolicy says.
	BackupFinalizer = "backup.cluster.x-k8s.io/talosetcdbackup"

	// IDAnnotation on a TalosEtcdBackup tells the backup from others of the same name in
	// the store. The provider writes it before it stores anything. It is no UID of an
	// object: clusterctl move gives every object a new one.
	IDAnnotation = "backup.cluster.x-k8s.io/id"
	// ClusterIdentityAnnotation on a TalosEtcdBackup is a digest of the CA of the Talos API
	// of the cluster that it is of, which another cluster of the same name does not have.
	// The provider writes it beside the ID.
	ClusterIdentityAnnotation = "backup.cluster.x-k8s.io/cluster-identity"
	// ImportedAnnotation on a TalosEtcdBackup says that the provider has found the backup
	// in the store, and has not made it. On a TalosBackupStore it says that what was found
	// there was imported; without it, it is again. Its value does not matter.
	ImportedAnnotation = "backup.cluster.x-k8s.io/imported"
	// OutcomeAnnotation on a TalosEtcdBackup says how it has ended, Completed or Failed,
	// so that it is not made again where its status was lost, as by clusterctl move.
	OutcomeAnnotation = "backup.cluster.x-k8s.io/outcome"

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

	// ForceDeleteAnnotation on a TalosEtcdBackup that is being deleted lets it go though
	// its data could not be deleted. Its value does not matter.
	ForceDeleteAnnotation = "backup.cluster.x-k8s.io/force-delete"
)
