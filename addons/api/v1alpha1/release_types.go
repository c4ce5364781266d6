package v1alpha1

// Phase says when an add-on is installed in the life of a cluster.
// +kubebuilder:validation:Enum=Network;Workloads
type Phase string

const (
	// PhaseNetwork is installed as soon as the API server of the cluster answers, before
	// any of its nodes is ready.
	PhaseNetwork Phase = "Network"
	// PhaseWorkloads is installed after the add-ons of phase Network of the cluster are
	// ready.
	PhaseWorkloads Phase = "Workloads"
)

// DeletionPolicy says what becomes of a release that is no longer wanted.
// +kubebuilder:validation:Enum=Uninstall;Orphan
type DeletionPolicy string

const (
	// DeletionUninstall uninstalls it.
	DeletionUninstall DeletionPolicy = "Uninstall"
	// DeletionOrphan leaves it in place.
	DeletionOrphan DeletionPolicy = "Orphan"
)

// FailurePolicy says what is done after an action has failed.
// +kubebuilder:validation:Enum=Retry;Rollback;Uninstall
type FailurePolicy string

const (
	// FailureRetry tries it again.
	FailureRetry FailurePolicy = "Retry"
	// FailureRollback rolls back to the last revision that was deployed, and then tries
	// again. A first installation has none, and is tried again.
	FailureRollback FailurePolicy = "Rollback"
	// FailureUninstall uninstalls a failed first installation before it is tried again.
	// An upgrade is rolled back.
	FailureUninstall FailurePolicy = "Uninstall"
)

// CRDPolicy says what is done with the CustomResourceDefinitions in the folder crds of a
// chart.
// +kubebuilder:validation:Enum=Skip;Create;CreateReplace
type CRDPolicy string

const (
	// CRDSkip leaves them out.
	CRDSkip CRDPolicy = "Skip"
	// CRDCreate creates those that are missing, and changes none.
	CRDCreate CRDPolicy = "Create"
	// CRDCreateReplace creates those that are missing, and changes the others to what the
	// chart has.
	CRDCreateReplace CRDPolicy = "CreateReplace"
)

// WaitPolicy says what an action waits for.
// +kubebuilder:validation:Enum=None;Resources;ResourcesAndJobs
type WaitPolicy string

const (
	// WaitNone waits for nothing.
	WaitNone WaitPolicy = "None"
	// WaitResources waits until the objects of the release are ready.
	WaitResources WaitPolicy = "Resources"
	// WaitResourcesAndJobs waits until its Jobs are completed, too.
	WaitResourcesAndJobs WaitPolicy = "ResourcesAndJobs"
)

// NamespacePolicy says who makes the namespace of a release.
// +kubebuilder:validation:Enum=Create;Require
type NamespacePolicy string

const (
	// NamespaceCreate has it made where it is missing. It is never deleted.
	NamespaceCreate NamespacePolicy = "Create"
	// NamespaceRequire has the release wait for it.
	NamespaceRequire NamespacePolicy = "Require"
)

// TestPolicy says whether the test hooks of a chart are run.
// +kubebuilder:validation:Enum=Skip;Run
type TestPolicy string

const (
	// TestSkip leaves them out.
	TestSkip TestPolicy = "Skip"
	// TestRun runs them after each installation and upgrade, which fail when they do.
	TestRun TestPolicy = "Run"
)

// AdoptionPolicy says what is done with a release that is there already.
// +kubebuilder:validation:Enum=Never;Always
type AdoptionPolicy string

const (
	// AdoptNever leaves it alone.
	AdoptNever AdoptionPolicy = "Never"
	// AdoptAlways takes it over, unless it belongs to another TalosClusterAddon.
	AdoptAlways AdoptionPolicy = "Always"
)

// DriftMode says what is done about objects of a release that were changed.
// +kubebuilder:validation:Enum=Ignore;Warn;Correct
type DriftMode string

const (
	// DriftIgnore does not look for it.
	DriftIgnore DriftMode = "Ignore"
	// DriftWarn reports it.
	DriftWarn DriftMode = "Warn"
	// DriftCorrect reports it and changes the objects back.
	DriftCorrect DriftMode = "Correct"
)

// ReleaseSpec says how a chart is installed in a cluster.
type ReleaseSpec struct {
	// name is the name of the release. It cannot be changed. Defaults to the name of the
	// add-on.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=53
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="must be lower case letters, digits, - and ., and begin and end with a letter or digit"
	Name string `json:"name,omitempty"`

	// namespace is the namespace of the release in the workload cluster. It cannot be
	// changed. Defaults to default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Label().validate(self).hasValue()",message="must be the name of a namespace: lower case letters, digits and -"
	Namespace string `json:"namespace,omitempty"`

	// namespacePolicy says who makes the namespace: Create has it made where it is
	// missing, and never deleted; Require has the release wait for it. Defaults to Create.
	// +optional
	NamespacePolicy NamespacePolicy `json:"namespacePolicy,omitempty"`

	// crds says what is done with the CustomResourceDefinitions in the folder crds of the
	// chart, at installations and at upgrades: Skip, Create those that are missing, or
	// CreateReplace. None is ever deleted. Defaults to Create.
	// +optional
	CRDs CRDPolicy `json:"crds,omitempty"`

	// wait says what an action waits for: None, Resources or ResourcesAndJobs. Defaults
	// to Resources. An add-on of phase Network is installed without waiting, and is ready
	// when its objects are.
	// +optional
	Wait WaitPolicy `json:"wait,omitempty"`

	// timeoutSeconds is how many seconds an action may take, each of its hooks apart.
	// Defaults to 600.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// historyLimit is how many revisions of the release Helm keeps in the workload
	// cluster. Defaults to 5.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=100
	HistoryLimit *int32 `json:"historyLimit,omitempty"`

	// tests says whether the test hooks of the chart are run after each installation and
	// upgrade: Skip or Run. Defaults to Skip.
	// +optional
	Tests TestPolicy `json:"tests,omitempty"`

	// adoption says what is done with a release of the name that is there already and
	// was not installed by an add-on: Never leaves it alone and says so; Always takes it
	// over with the next revision. Defaults to Never.
	// +optional
	Adoption AdoptionPolicy `json:"adoption,omitempty"`
}

// ValuesReferenceKind is a kind of object that holds values.
// +kubebuilder:validation:Enum=Secret;ConfigMap
type ValuesReferenceKind string

// The kinds of objects that hold values.
const (
	SecretValues    ValuesReferenceKind = "Secret"
	ConfigMapValues ValuesReferenceKind = "ConfigMap"
)

// Presence says whether something that is referred to must be there.
// +kubebuilder:validation:Enum=Required;Optional
type Presence string

// Whether something must be there.
const (
	PresenceRequired Presence = "Required"
	PresenceOptional Presence = "Optional"
)

// ValuesReference refers to a Secret or ConfigMap with values of a chart.
type ValuesReference struct {
	// kind is the kind of the object: Secret or ConfigMap.
	// +required
	Kind ValuesReferenceKind `json:"kind,omitempty"`

	// name is the name of the object, in the namespace of the add-on.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// key is the key whose content is values, as YAML. Defaults to values.yaml.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`

	// presence is Optional where the object or its key may be missing. Defaults to
	// Required.
	// +optional
	Presence Presence `json:"presence,omitempty"`
}

// AddonReference refers to an add-on of the same namespace.
type AddonReference struct {
	// name is the name of the TalosClusterAddon.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// FailureSpec says what is done when an action has failed.
// +kubebuilder:validation:MinProperties=1
type FailureSpec struct {
	// onFailure is what is done before an action is tried again: Retry does nothing,
	// Rollback rolls a failed upgrade back, Uninstall also uninstalls a failed first
	// installation. Defaults to Retry.
	// +optional
	OnFailure FailurePolicy `json:"onFailure,omitempty"`

	// retries is how often an action is tried again, with growing intervals, before the
	// release is given up: then nothing is done until the add-on, its values or chart
	// change, or the annotation addons.cluster.x-k8s.io/force does. Defaults to 3.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Retries *int32 `json:"retries,omitempty"`
}

// DriftSpec says what is done about objects of a release that were changed.
// +kubebuilder:validation:MinProperties=1
type DriftSpec struct {
	// mode is Ignore, Warn or Correct. With Warn drift is a condition and an event; with
	// Correct the objects are changed back as well. Fields that the chart does not state
	// are not drift. Defaults to Ignore.
	// +optional
	Mode DriftMode `json:"mode,omitempty"`

	// intervalSeconds is after how many seconds it is looked for again. Defaults to 600.
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	IntervalSeconds *int32 `json:"intervalSeconds,omitempty"`

	// ignore are fields of objects that others may change. By default there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Ignore []DriftIgnoreRule `json:"ignore,omitempty"`
}

// DriftIgnoreRule names fields of objects that others may change.
type DriftIgnoreRule struct {
	// kind is the kind of the objects. By default objects of all kinds are meant.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind,omitempty"`

	// name is the name of the objects. By default objects of all names are meant.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`

	// paths are JSON pointers (RFC 6901) to the fields: /spec/replicas. What is below
	// them is ignored, too. An empty pointer ignores the whole object. An index in a list
	// is that in the chart: in the cluster, an element with a name is the one of that
	// name, and any other one that of the same index.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule="self == '' || self.startsWith('/')",message="must be a JSON pointer, which begins with /"
	Paths []string `json:"paths,omitempty"`
}

// RolloutSpec bounds how many clusters are changed at a time.
// +kubebuilder:validation:MinProperties=1
type RolloutSpec struct {
	// maxConcurrent is how many clusters are changed at a time. By default there is no
	// bound.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrent *int32 `json:"maxConcurrent,omitempty"`

	// maxFailures is in how many clusters a change may fail before it is brought to no
	// further one. By default there is no bound.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxFailures *int32 `json:"maxFailures,omitempty"`
}
