package v1beta1

// TalosControlPlaneBackupSpec says how etcd is backed up before what may cost its data.
type TalosControlPlaneBackupSpec struct {
	// scheduleName is the name of a TalosEtcdBackupSchedule in the namespace: the backup is
	// made in its store, as it says. It need not select the Cluster; if it does, the
	// backup is kept as long as it says, else until somebody deletes it.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ScheduleName string `json:"scheduleName,omitempty"`

	// policy says what happens when there can be no backup: with Required the rollout, or
	// the reduction of replicas, waits; with BestEffort it goes on once the backup has
	// failed, after ten minutes at most. A Machine that is remediated never waits, nor does
	// one that somebody deletes.
	// Defaults to Required.
	// +optional
	Policy BackupPolicy `json:"policy,omitempty"`
}

// BackupPolicy says what happens when there can be no backup.
// +kubebuilder:validation:Enum=Required;BestEffort
type BackupPolicy string

const (
	// BackupRequired waits for the backup.
	BackupRequired BackupPolicy = "Required"
	// BackupBestEffort goes on without one.
	BackupBestEffort BackupPolicy = "BestEffort"
)
