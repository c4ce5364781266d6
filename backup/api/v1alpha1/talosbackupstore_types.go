package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultCheckIntervalSeconds is how often a store is checked.
const DefaultCheckIntervalSeconds = int32(300)

// Keys of the Secrets of a store.
const (
	// AccessKeyIDKey and SecretAccessKeyKey are the keys of the credentials, and
	// SessionTokenKey that of the token of temporary ones.
	AccessKeyIDKey     = "accessKeyID"
	SecretAccessKeyKey = "secretAccessKey"
	SessionTokenKey    = "sessionToken"
	// CAKey is the key of CA certificates.
	CAKey = "ca.crt"
	// IdentitiesKey is the key of private keys of age, one a line.
	IdentitiesKey = "identities"
	// CustomerKeyKey is the key of the 32 bytes with which the server encrypts.
	CustomerKeyKey = "key"
)

// TalosBackupStoreSpec defines the desired state of a TalosBackupStore. The rule about
// recipients is not one of theirs: an API server repeats what a string is.
// +kubebuilder:validation:XValidation:rule="!has(self.recipients) || self.recipients.all(key, key.startsWith('age1'))",message="recipients are public keys of age, which begin with age1; if a private key was given here, others know it now",fieldPath=".recipients"
type TalosBackupStoreSpec struct {
	// s3 is the bucket in which backups are kept.
	// +required
	S3 S3Store `json:"s3,omitempty,omitzero"`

	// recipients are the public keys of age (age1…) of those who can read backups. The
	// private keys are not needed to make backups, and belong elsewhere. By default
	// snapshots are not encrypted, and only backups that exclude the secrets of their
	// cluster are made. A change is of the backups that are made from then on.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=4096
	Recipients []string `json:"recipients,omitempty"`

	// identitySecretName is the name of a Secret in the namespace with private keys of age
	// under the key identities, one a line. With them backups are verified at the levels
	// Snapshot and Restore. By default those that are encrypted can be verified by their
	// digests only, and the private keys need not be in the management cluster.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	IdentitySecretName string `json:"identitySecretName,omitempty"`

	// accessMode says what may be done with the store: ReadWrite, or ReadOnly: then
	// backups are read and imported, and nothing is written or deleted. Defaults to
	// ReadWrite.
	// +optional
	AccessMode AccessMode `json:"accessMode,omitempty"`

	// importPolicy says when a TalosEtcdBackup is made for each backup of the clusters of
	// this namespace that is found in the store without one, as after the loss of the
	// management cluster: Once when the store is first ready, Always at each check, or
	// Never. Defaults to Once, and does so again when the annotation
	// backup.cluster.x-k8s.io/imported is taken away.
	// +optional
	ImportPolicy ImportPolicy `json:"importPolicy,omitempty"`

	// checkIntervalSeconds is after how many seconds the store is checked again. Defaults
	// to 300.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	CheckIntervalSeconds *int32 `json:"checkIntervalSeconds,omitempty"`
}

// AccessMode says what may be done with a store.
// +kubebuilder:validation:Enum=ReadWrite;ReadOnly
type AccessMode string

const (
	// AccessReadWrite lets backups be written, read and deleted.
	AccessReadWrite AccessMode = "ReadWrite"
	// AccessReadOnly lets backups be read.
	AccessReadOnly AccessMode = "ReadOnly"
)

// ImportPolicy says when objects are made for backups without one.
// +kubebuilder:validation:Enum=Once;Always;Never
type ImportPolicy string

const (
	// ImportOnce makes them when the store is first ready.
	ImportOnce ImportPolicy = "Once"
	// ImportAlways makes them at each check.
	ImportAlways ImportPolicy = "Always"
	// ImportNever leaves them alone.
	ImportNever ImportPolicy = "Never"
)

// S3Store is a bucket of a server that speaks S3.
// +kubebuilder:validation:XValidation:rule="self.endpoint.startsWith('https://') || (has(self.insecure) && self.insecure == 'AllowHTTP')",message="endpoint must begin with https://; set insecure: AllowHTTP to use http://, where everybody on the way can read and change backups"
// +kubebuilder:validation:XValidation:rule="self.endpoint.startsWith('https://') || !has(self.encryption) || self.encryption.type != 'CustomerKey'",message="encryption of type CustomerKey needs an endpoint that begins with https://: the key would be readable on the way"
type S3Store struct {
	// endpoint is the URL of the server, without the bucket: https://s3.example.com.
	// +required
	// +kubebuilder:validation:MinLength=8
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^https?://[^/?#@]+/?$')",message="endpoint must be https://host or https://host:port, without user, path and query: bucket and prefix are fields of their own, and credentials belong in the Secret of credentialsSecretName"
	Endpoint string `json:"endpoint,omitempty"`

	// bucket is the name of the bucket. It is never created.
	// +required
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9][a-z0-9.-]*[a-z0-9]$`
	Bucket string `json:"bucket,omitempty"`

	// prefix is put before the names of all objects. Below it, each namespace and cluster
	// has a folder of its own. By default there is none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9_-][a-zA-Z0-9._-]*(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)*$`
	Prefix string `json:"prefix,omitempty"`

	// region is where the bucket is. Defaults to us-east-1, which is what servers with one
	// region call it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Region string `json:"region,omitempty"`

	// addressing says where requests name the bucket: Path in the path of the URL,
	// VirtualHost in the name of the host. Defaults to Path, which all servers but few
	// understand.
	// +optional
	Addressing Addressing `json:"addressing,omitempty"`

	// credentialsSecretName is the name of a Secret in the namespace with the keys
	// accessKeyID and secretAccessKey, and sessionToken for temporary credentials. It is
	// read anew for each use.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`

	// caSecretName is the name of a Secret in the namespace with the CA certificates of
	// the server under the key ca.crt. By default those of the system are trusted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CASecretName string `json:"caSecretName,omitempty"`

	// insecure lets the endpoint begin with http://, where it is AllowHTTP. By default it
	// must begin with https://.
	// +optional
	Insecure InsecureEndpoint `json:"insecure,omitempty"`

	// encryption says how the server encrypts what it keeps, beside the encryption for
	// recipients. By default it does as it does by itself.
	// +optional
	Encryption ServerSideEncryption `json:"encryption,omitempty,omitzero"`

	// objectLock keeps backups from being deleted for a time, whoever asks. The bucket
	// must have been created with object lock. By default nothing is locked.
	// +optional
	ObjectLock ObjectLock `json:"objectLock,omitempty,omitzero"`
}

// Addressing says where requests name the bucket.
// +kubebuilder:validation:Enum=Path;VirtualHost
type Addressing string

const (
	// AddressingPath names it in the path of the URL.
	AddressingPath Addressing = "Path"
	// AddressingVirtualHost names it in the name of the host.
	AddressingVirtualHost Addressing = "VirtualHost"
)

// InsecureEndpoint says which protection an endpoint does without.
// +kubebuilder:validation:Enum=AllowHTTP
type InsecureEndpoint string

// AllowHTTP lets an endpoint be asked by HTTP.
const AllowHTTP InsecureEndpoint = "AllowHTTP"

// ServerSideEncryption says how a server encrypts what it keeps.
// +kubebuilder:validation:XValidation:rule="self.type == 'KMS' || !has(self.kmsKeyID)",message="kmsKeyID is for type KMS only"
// +kubebuilder:validation:XValidation:rule="(self.type == 'CustomerKey') == has(self.customerKeySecretName)",message="customerKeySecretName is for type CustomerKey, which needs it"
type ServerSideEncryption struct {
	// type is S3 for a key that the server has (SSE-S3), KMS for one of its key management
	// service (SSE-KMS), or CustomerKey for one that is sent with each request (SSE-C).
	// +required
	Type EncryptionType `json:"type,omitempty"`

	// kmsKeyID is the ID of the key of the key management service. By default its own
	// default is used.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	KMSKeyID string `json:"kmsKeyID,omitempty"`

	// customerKeySecretName is the name of a Secret in the namespace with a key of 32
	// bytes under the key "key". Backups that were made with another one cannot be read.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CustomerKeySecretName string `json:"customerKeySecretName,omitempty"`
}

// EncryptionType says whose key a server encrypts with.
// +kubebuilder:validation:Enum=S3;KMS;CustomerKey
type EncryptionType string

const (
	// EncryptionS3 is SSE-S3.
	EncryptionS3 EncryptionType = "S3"
	// EncryptionKMS is SSE-KMS.
	EncryptionKMS EncryptionType = "KMS"
	// EncryptionCustomerKey is SSE-C.
	EncryptionCustomerKey EncryptionType = "CustomerKey"
)

// ObjectLock keeps objects from being deleted.
type ObjectLock struct {
	// mode is Governance, which privileged users of the server can bypass, or Compliance,
	// which nobody can. We never bypass it.
	// +required
	Mode ObjectLockMode `json:"mode,omitempty"`

	// days is for how many days after its upload an object is locked.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=36500
	Days *int32 `json:"days,omitempty"`
}

// ObjectLockMode is a mode of object lock.
// +kubebuilder:validation:Enum=Governance;Compliance
type ObjectLockMode string

const (
	// LockGovernance can be bypassed by privileged users of the server.
	LockGovernance ObjectLockMode = "Governance"
	// LockCompliance can be bypassed by nobody.
	LockCompliance ObjectLockMode = "Compliance"
)

// TalosBackupStoreStatus defines the observed state of a TalosBackupStore.
// +kubebuilder:validation:MinProperties=1
type TalosBackupStoreStatus struct {
	// observedGeneration is the generation of the spec that was last reconciled.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the observations of the store's present state. Known types are
	// Ready, Imported and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// versioning says whether the bucket keeps the versions of its objects.
	// +optional
	Versioning BucketFeature `json:"versioning,omitempty"`

	// objectLock says whether the bucket can lock objects.
	// +optional
	ObjectLock BucketFeature `json:"objectLock,omitempty"`

	// backups is how many TalosEtcdBackups name the store.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Backups *int32 `json:"backups,omitempty"`
}

// BucketFeature says whether a bucket has something enabled.
// +kubebuilder:validation:Enum=Enabled;Disabled
type BucketFeature string

const (
	// FeatureEnabled says that the bucket has it.
	FeatureEnabled BucketFeature = "Enabled"
	// FeatureDisabled says that it has not.
	FeatureDisabled BucketFeature = "Disabled"
)

// +kubebuilder:object:root=true
// +kubebuilder:resource:path=talosbackupstores,shortName=tbs,scope=Namespaced,categories=cluster-api
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels={cluster.x-k8s.io/v1beta2=v1alpha1,clusterctl.cluster.x-k8s.io/move-hierarchy=}
// +kubebuilder:printcolumn:name="Endpoint",type="string",JSONPath=".spec.s3.endpoint",description="URL of the server"
// +kubebuilder:printcolumn:name="Bucket",type="string",JSONPath=".spec.s3.bucket",description="Bucket"
// +kubebuilder:printcolumn:name="Ready",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="The last check found nothing wrong"
// +kubebuilder:printcolumn:name="Reason",type="string",JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="What is wrong"
// +kubebuilder:printcolumn:name="Backups",type="integer",JSONPath=".status.backups",description="TalosEtcdBackups that name the store"
// +kubebuilder:printcolumn:name="Access",type="string",JSONPath=".spec.accessMode",description="What may be done with the store",priority=10
// +kubebuilder:printcolumn:name="Paused",type="string",JSONPath=`.status.conditions[?(@.type=="Paused")].status`,description="Reconciliation is paused",priority=10
// +kubebuilder:printcolumn:name="Age",type="date",JSONPath=".metadata.creationTimestamp",description="Time since creation"

// TalosBackupStore is a bucket in which backups of the clusters of its namespace are kept.
type TalosBackupStore struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec TalosBackupStoreSpec `json:"spec,omitempty,omitzero"`

	// status is the observed state.
	// +optional
	Status TalosBackupStoreStatus `json:"status,omitempty,omitzero"`
}

// GetConditions returns the conditions of the store.
func (in *TalosBackupStore) GetConditions() []metav1.Condition { return in.Status.Conditions }

// SetConditions replaces the conditions of the store.
func (in *TalosBackupStore) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}

// +kubebuilder:object:root=true

// TalosBackupStoreList is a list of TalosBackupStores.
type TalosBackupStoreList struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard list's metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	// items are the TalosBackupStores.
	Items []TalosBackupStore `json:"items"`
}
