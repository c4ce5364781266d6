package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

const (
	// TalosControlPlaneFinalizer keeps a TalosControlPlane until its Machines
	// are gone.
	TalosControlPlaneFinalizer = "controlplane.cluster.x-k8s.io/taloscontrolplane"

	// EtcdPreTerminateHookAnnotation is the pre-terminate hook that the
	// provider puts on each control plane Machine: the Machine's infrastructure
	// is not deleted before its etcd member was taken care of. It goes
	// unconditionally when the whole control plane is deleted.
	EtcdPreTerminateHookAnnotation = clusterv1.PreTerminateDeleteHookAnnotationPrefix + "/talos-etcd"

	// EtcdPreTerminateHookOverrideAnnotation is put on a control plane Machine by
	// a person, and lets the Machine go without any care for its etcd member. Its
	// value does not matter. Use it only when the member is lost anyway, or the
	// loss of the cluster's data is accepted.
	EtcdPreTerminateHookOverrideAnnotation = "controlplane.cluster.x-k8s.io/talos-etcd-hook-override"

	// EtcdLeftAnnotation is put on a control plane Machine when it is let go because
	// etcd is rid of it. A node that restarts before it is reset joins again; by
	// this annotation the infrastructure provider knows that it must not wipe it
	// while it votes. Its value does not matter. It belongs to the provider.
	EtcdLeftAnnotation = "controlplane.cluster.x-k8s.io/talos-etcd-left"

	// BootstrapIntentAnnotation is the durable record on a TalosControlPlane of
	// the one Machine on which etcd is, or was, bootstrapped. Its value is a
	// JSON object (see BootstrapIntent). It is written before etcd is
	// bootstrapped and never removed; it belongs to the provider.
	BootstrapIntentAnnotation = "controlplane.cluster.x-k8s.io/talos-bootstrap-intent"

	// BootstrapOverrideAnnotation is put on a TalosControlPlane by a person. It names
	// the Machine on which etcd may be bootstrapped instead of the one in the
	// bootstrap intent. It says that the data of the earlier etcd cluster, if
	// there was any, is given up. The rename happens only when every control
	// plane node has answered that it has no etcd data and nothing answers at
	// the control plane endpoint; the annotation is removed with it.
	BootstrapOverrideAnnotation = "controlplane.cluster.x-k8s.io/talos-bootstrap-override"

	// RenewCredentialsAnnotation is put on a TalosControlPlane by a person, and
	// has the client certificates in the Secrets <cluster>-kubeconfig and
	// <cluster>-talosconfig made anew at once, if the provider has made these
	// Secrets. It is removed when that is done. Its value does not matter, but
	// for the name of one of these Secrets, which means that one alone: the
	// provider writes it when the API server has taken the other one only. The
	// former certificates stay valid until they expire, because neither
	// Kubernetes nor Talos can revoke one.
	RenewCredentialsAnnotation = "controlplane.cluster.x-k8s.io/talos-renew-credentials"

	// BundleDigestAnnotation is the digest of the secrets bundle with which the
	// cluster was bootstrapped. A bundle with another digest is not used. It
	// belongs to the provider.
	BundleDigestAnnotation = "controlplane.cluster.x-k8s.io/talos-bundle-digest"

	// NextMachineAnnotation is the name of the Machine that the provider is
	// about to create. It is written before the first of the objects of that
	// name (infrastructure machine, TalosConfig, Machine), so that a provider
	// that died in between goes on with the same name. It belongs to the
	// provider.
	NextMachineAnnotation = "controlplane.cluster.x-k8s.io/talos-next-machine"

	// BackupBeforeAnnotation is the name of the TalosEtcdBackup that is made before the
	// rollout, or the deletion of Machines, that is under way. It is written before the
	// backup is created, and removed when nothing more is to be replaced or deleted. It
	// belongs to the provider.
	BackupBeforeAnnotation = "controlplane.cluster.x-k8s.io/talos-backup-before"

	// BackupRefusedAnnotation is the record on a TalosControlPlane of the TalosEtcdBackup
	// before the present change, while the API server does not take it. Its value is a JSON
	// object (see RefusedBackupRecord). It belongs to the provider.
	BackupRefusedAnnotation = "controlplane.cluster.x-k8s.io/talos-backup-refused"

	// RestoreAnnotation is put on a new TalosControlPlane by a person. It names the
	// TalosEtcdRestore that brings the secrets and the etcd of the cluster from a backup:
	// until then no Machine but the first is created, and etcd is not bootstrapped. It means
	// nothing once the API server has answered.
	RestoreAnnotation = "controlplane.cluster.x-k8s.io/talos-restore"

	// RestoreInProgressAnnotation is the record on a TalosControlPlane of the
	// TalosEtcdRestore that holds it. Its value is a JSON object (see RestoreRecord).
	// Meanwhile no Machine is created but the first, none is replaced or deleted, and etcd is
	// bootstrapped only as the record says. The restore writes and removes it. A person
	// removes it where there is no TalosEtcdRestore of that name.
	RestoreInProgressAnnotation = "controlplane.cluster.x-k8s.io/talos-restore-in-progress"

	// RestoredRevisionAnnotation is the record on a TalosControlPlane of the revision from
	// which its etcd went on after the last restore, a decimal number. The next one goes on
	// from a later one, whichever backup it is of. It belongs to the backup provider.
	RestoredRevisionAnnotation = "controlplane.cluster.x-k8s.io/talos-restored-revision"

	// EtcdMemberAnnotation is the record on a control plane Machine of its etcd
	// member, as the node told it last. Its value is a JSON object (see
	// EtcdMemberRecord). By it the member of a node that does not answer is known.
	// It belongs to the provider.
	EtcdMemberAnnotation = "controlplane.cluster.x-k8s.io/talos-etcd-member"

	// RemediationInProgressAnnotation is the record on a TalosControlPlane of the
	// remediation whose replacement does not exist yet. Its value is a JSON object
	// (see RemediationRecord). It belongs to the provider.
	RemediationInProgressAnnotation = "controlplane.cluster.x-k8s.io/remediation-in-progress"

	// ManifestsAnnotation is the record on a TalosControlPlane of the Kubernetes
	// version of Talos' own manifests in the cluster: kube-proxy, CoreDNS, Flannel
	// and what they need. It belongs to the provider; with any other value than
	// spec.version, which a person may set, they are applied once more.
	ManifestsAnnotation = "controlplane.cluster.x-k8s.io/talos-manifests"

	// SkipManifestsAnnotation is put on a TalosControlPlane by a person who sees to
	// Talos' own manifests in the cluster: the provider leaves them alone. Its value
	// does not matter.
	SkipManifestsAnnotation = "controlplane.cluster.x-k8s.io/talos-skip-manifests"

	// RemediationForAnnotation is the record on a control plane Machine of the
	// remediation that it is the replacement of. Its value is a JSON object (see
	// RemediationRecord). It belongs to the provider.
	RemediationForAnnotation = "controlplane.cluster.x-k8s.io/remediation-for"
)

// BootstrapIntent is the value of BootstrapIntentAnnotation, as JSON. It names
// the Machine without its UID, because a move to another management cluster
// gives every object a new one.
type BootstrapIntent struct {
	// Kind is the kind of the named object, always Machine.
	Kind string `json:"kind"`
	// Namespace is the Machine's namespace.
	Namespace string `json:"namespace"`
	// Name is the Machine's name.
	Name string `json:"name"`
	// ProviderID is the Machine's spec.providerID.
	ProviderID string `json:"providerID"`
	// Bootstrapped reports whether etcd was seen running there after the bootstrap,
	// so that nodes without data can only mean that the data was lost.
	Bootstrapped bool `json:"bootstrapped,omitempty"`
	// Initialized reports whether the API server has answered since, so that etcd
	// holds what users have stored.
	Initialized bool `json:"initialized,omitempty"`
	// Restore is the ID of the RestoreRecord by which etcd is bootstrapped from a snapshot;
	// empty when it begins anew.
	Restore string `json:"restore,omitempty"`
}

// RefusedBackupRecord is the value of BackupRefusedAnnotation, as JSON.
type RefusedBackupRecord struct {
	// Backup is the name of the TalosEtcdBackup. It is tried again under that name.
	Backup string `json:"backup"`
	// Since is when it was tried first, in UTC. With BestEffort it is waited for 10 minutes
	// from then on.
	Since metav1.Time `json:"since"`
	// IsFinal reports whether it was refused when it was tried last, rather than not decided
	// on. With BestEffort it is not waited for then.
	IsFinal bool `json:"isFinal,omitempty"`
}

// RestoreRecord is the value of RestoreInProgressAnnotation, as JSON.
type RestoreRecord struct {
	// Restore is the name of the TalosEtcdRestore.
	Restore string `json:"restore"`
	// ID tells one attempt of one restore from all others.
	ID string `json:"id,omitempty"`
	// Machine is the name of the Machine whose node has the snapshot; empty while none has.
	Machine string `json:"machine,omitempty"`
}

// EtcdMemberRecord is the value of EtcdMemberAnnotation, as JSON.
type EtcdMemberRecord struct {
	// ID is the member ID in hexadecimal digits.
	ID string `json:"id"`
	// PeerURLs are the URLs at which the other members reach it.
	PeerURLs []string `json:"peerURLs,omitempty"`
}

// RemediationRecord is the value of RemediationInProgressAnnotation and
// RemediationForAnnotation, as JSON.
type RemediationRecord struct {
	// Machine is the name of the Machine that was remediated.
	Machine string `json:"machine"`
	// Timestamp is when that was, in UTC.
	Timestamp metav1.Time `json:"timestamp"`
	// RetryCount is how often a replacement was itself replaced before.
	RetryCount int32 `json:"retryCount"`
}
