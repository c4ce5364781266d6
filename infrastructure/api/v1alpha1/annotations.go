package v1alpha1

const (
	// TalosClusterFinalizer keeps a TalosCluster until its TalosMachines are
	// gone.
	TalosClusterFinalizer = "infrastructure.cluster.x-k8s.io/taloscluster"

	// TalosMachineFinalizer keeps a TalosMachine until its host is released, or
	// was silent for the time that the release policy allows, or until its Pod and
	// the data of that are gone.
	TalosMachineFinalizer = "infrastructure.cluster.x-k8s.io/talosmachine"

	// TalosHostFinalizer keeps a TalosHost until the machine behind it is wiped.
	// The Secret with the admin client certificate of the host carries it too.
	TalosHostFinalizer = "infrastructure.cluster.x-k8s.io/taloshost"

	// HostRetryAnnotation is put on a TalosHost by a person: it ends the quarantine
	// of the host, lets a release that has failed be tried again at once (on a
	// machine in maintenance mode it has the partitions wiped that are left, and
	// says that a system disk that is missing needs no wipe), and lets a free host
	// stand for the machine that answers now although another one answered before.
	// Its value does not matter; the provider removes it.
	HostRetryAnnotation = "infrastructure.cluster.x-k8s.io/talos-host-retry"

	// ReprovisionAnnotation is put on a TalosMachine by a person, or by a restore:
	// its machine is wiped, and then gets the same configuration again, with the
	// same provider ID. The provider removes it once the machine runs again.
	// Taking it away before the wipe was asked for takes the wish back; after
	// that it goes on. It belongs on single TalosMachines: what a template sets
	// comes back.
	ReprovisionAnnotation = "infrastructure.cluster.x-k8s.io/talos-machine-reprovision"

	// ReprovisionDespiteOthers is the value of ReprovisionAnnotation that a person
	// chooses when the cluster has no quorum left to lose: the machine does not
	// wait for others of its Cluster that are being re-provisioned, nor for a
	// majority of etcd without it. With any other value it does.
	ReprovisionDespiteOthers = "despite-others"

	// MoveHierarchyLabel is put on a CRD: it makes clusterctl move all objects of that
	// kind and what they own.
	MoveHierarchyLabel = "clusterctl.cluster.x-k8s.io/move-hierarchy"

	// MoveLabel makes clusterctl move an object.
	MoveLabel = "clusterctl.cluster.x-k8s.io/move"

	// BlockMoveAnnotation makes clusterctl wait before it moves. It is on a
	// TalosHost during the hand-over, and during the release as long as a
	// TalosMachine waits for it, and on a TalosMachine in a Pod, which cannot be
	// moved.
	BlockMoveAnnotation = "clusterctl.cluster.x-k8s.io/block-move"

	// DeleteForMoveAnnotation is what clusterctl puts on the source objects of
	// a move before it deletes them. It never starts a release.
	DeleteForMoveAnnotation = "clusterctl.cluster.x-k8s.io/delete-for-move"

	// AdminSecretSuffix ends the name of the Secret with the admin client
	// certificate of a host.
	AdminSecretSuffix = "-talos-admin"

	// AdminSecretKey is the key of that Secret: a talosconfig.
	AdminSecretKey = "talosconfig"

	// ProviderIDPrefix begins the provider IDs that the provider mints.
	ProviderIDPrefix = "talos://"
)

const (
	// TalosPodFinalizer keeps the Pod of a machine until the provider has seen that
	// it ended, so that none goes unseen.
	TalosPodFinalizer = "infrastructure.cluster.x-k8s.io/talospod"

	// PodSecurityLabel is the label of Kubernetes itself that must be on a namespace,
	// with the value PodSecurityPrivileged, before a machine is made in a Pod there: who
	// may set it lets privileged Pods in.
	PodSecurityLabel = "pod-security.kubernetes.io/enforce"

	// PodSecurityPrivileged is the value of PodSecurityLabel that is wanted.
	PodSecurityPrivileged = "privileged"

	// EtcdServiceSuffix ends the name of the Service that gives etcd of a control
	// plane machine in a Pod its lasting address.
	EtcdServiceSuffix = "-etcd"

	// UserDataSecretSuffix ends the name of the Secret with the configuration that a
	// Pod starts with.
	UserDataSecretSuffix = "-userdata"

	// UserDataKey is the key of that Secret: the configuration, gzipped, as base64 text.
	UserDataKey = "userdata"

	// DataClaimSuffix ends the name of the volume claim of a machine in a Pod.
	DataClaimSuffix = "-data"

	// EndpointServiceSuffix ends the name of the Service that a TalosCluster makes
	// for its control plane, after the name of the TalosCluster.
	EndpointServiceSuffix = "-control-plane"

	// ControlPlaneBudgetSuffix ends the name of the PodDisruptionBudget of the control
	// plane, after the name of the TalosCluster.
	ControlPlaneBudgetSuffix = "-control-plane"

	// MachineLabel is on the Pod of a TalosMachine, and is its name.
	MachineLabel = "infrastructure.cluster.x-k8s.io/talosmachine"

	// NetworkOverlapAllowedAnnotation is put on a TalosCluster by a person who knows
	// that a network of the cluster that overlaps one of the management cluster does
	// no harm. Its value does not matter.
	NetworkOverlapAllowedAnnotation = "infrastructure.cluster.x-k8s.io/talos-allow-network-overlap"

	// GoneMachinesAnnotation is the record on a TalosCluster of the control plane
	// machines in Pods of which nothing is left: their provider IDs (see
	// GoneMachines). It is written before the TalosMachine goes, and only while the
	// cluster is not known to be initialized: by it the control plane provider knows
	// that etcd may be bootstrapped on another machine. It belongs to the provider.
	GoneMachinesAnnotation = "infrastructure.cluster.x-k8s.io/talos-gone"

	// MaxGoneMachines is how many provider IDs GoneMachinesAnnotation holds at most.
	MaxGoneMachines = 32
)
