package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// ContainerStorageType tells where a machine in a Pod keeps its data.
// +kubebuilder:validation:Enum=Ephemeral;VolumeClaim
type ContainerStorageType string

const (
	// ContainerStorageEphemeral keeps the data in an emptyDir: with the Pod the
	// machine is lost.
	ContainerStorageEphemeral ContainerStorageType = "Ephemeral"
	// ContainerStorageVolumeClaim keeps the data in a persistent volume: a Pod
	// that is gone is made again as the same machine.
	ContainerStorageVolumeClaim ContainerStorageType = "VolumeClaim"
)

// PodProgress tells how far a machine in a Pod has come.
// +kubebuilder:validation:Enum=Creating;Created;Ran;Lost;Reprovisioning
type PodProgress string

const (
	// PodCreating says that the Pod may exist: it is about to be created.
	PodCreating PodProgress = "Creating"
	// PodCreated says that the Pod was created.
	PodCreated PodProgress = "Created"
	// PodRan says that the machine has run with its configuration.
	PodRan PodProgress = "Ran"
	// PodLost says that the Pod is gone, and the data of the machine with it. It is made
	// again only where the machine is re-provisioned.
	PodLost PodProgress = "Lost"
	// PodReprovisioning says that the Pod and its data are being deleted, to be
	// made again with the same configuration.
	PodReprovisioning PodProgress = "Reprovisioning"
)

// TalosMachineContainerSpec says what the Pod of a machine is like.
// +kubebuilder:validation:XValidation:rule="has(self.talos.version) && size(self.talos.version) > 0",message="talos.version must be set, for example v1.13.9: it names the image to run"
type TalosMachineContainerSpec struct {
	// talos is the Talos release to run. Its version is required; its image is the
	// Talos image, by default the official one of that version
	// (ghcr.io/siderolabs/talos).
	// +required
	Talos TalosReleaseSpec `json:"talos,omitempty,omitzero"`

	// resources are the requests and limits of the Pod. The node inside promises
	// its own Pods no more than the limits. By default there are none, and the
	// node inside promises all that the hosting node has.
	// +optional
	Resources ContainerResources `json:"resources,omitempty,omitzero"`

	// storage is where the machine keeps its data. By default it is ephemeral: a
	// machine whose Pod is gone is lost, and its Machine has to be replaced.
	// +optional
	Storage ContainerStorage `json:"storage,omitempty,omitzero"`

	// nodeSelector selects the nodes on which the Pod may run, by their labels.
	// By default all may.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations let the Pod run on nodes with these taints. By default there are
	// none but those that Kubernetes adds.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// affinity says near and far from what the Pod runs. The failure domain of the
	// Machine is added to each of its required terms for nodes. By default there
	// is none.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// topologySpreadConstraints spread Pods. By default those of the control plane
	// of a cluster are spread over nodes where that can be.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// podMetadata holds further labels and annotations of the Pod. By default there
	// are none. Those of the provider go before them.
	// +optional
	PodMetadata clusterv1.ObjectMeta `json:"podMetadata,omitempty,omitzero"`

	// imagePullSecrets name Secrets of the same namespace with which the image is
	// pulled. By default there are none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []ContainerSecretReference `json:"imagePullSecrets,omitempty"`

	// runtimeClassName names the RuntimeClass of the Pod. By default the container
	// runtime of the node takes its own default.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	RuntimeClassName string `json:"runtimeClassName,omitempty"`
}

// ContainerSecretReference names a Secret of the same namespace.
type ContainerSecretReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// ContainerResources are what a Pod asks for, and the most that it gets.
// +kubebuilder:validation:MinProperties=1
type ContainerResources struct {
	// requests are what the Pod is scheduled by, as quantities of resources such as
	// cpu and memory. By default they are the limits.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits are the most that the Pod gets, and what the node inside promises to
	// its own Pods, although Talos, kubelet and etcd in it need a part of that. By
	// default there are none.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// ContainerStorage is where a machine in a Pod keeps its data.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="(has(self.type) && self.type == 'VolumeClaim') == has(self.volumeClaim)",message="volumeClaim must be set exactly when type is VolumeClaim"
type ContainerStorage struct {
	// type is Ephemeral, which keeps the data in an emptyDir, or VolumeClaim, which
	// keeps it in a persistent volume. Defaults to Ephemeral.
	// +optional
	Type ContainerStorageType `json:"type,omitempty"`

	// volumeClaim is the claim for the volume, which is deleted with the machine. It
	// must be set exactly when type is VolumeClaim.
	// +optional
	VolumeClaim ContainerVolumeClaim `json:"volumeClaim,omitempty,omitzero"`
}

// ContainerVolumeClaim is a claim for the volume of one machine. It is deleted
// with the machine.
type ContainerVolumeClaim struct {
	// storageClassName names the StorageClass of the volume. By default it is the
	// default one of the management cluster.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName string `json:"storageClassName,omitempty"`

	// size is how large the volume is, as a quantity of bytes, for example 20Gi.
	// +required
	Size resource.Quantity `json:"size,omitempty,omitzero"`
}

// TalosMachinePod is what must not be forgotten of the Pod of a machine. It is
// written by the provider alone.
type TalosMachinePod struct {
	// progress tells how far the machine has come.
	// +required
	Progress PodProgress `json:"progress,omitempty"`

	// uid is the UID of the Pod.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`

	// etcdAddress is the address at which etcd of a control plane machine is
	// reached for life, whatever address the Pod has: the cluster IP of its
	// Service.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	EtcdAddress string `json:"etcdAddress,omitempty"`

	// systemReserved is what the Node inside keeps back of its CPU and memory because of
	// the limits, for example "cpu=6,memory=12Gi", or "none". It was computed for the
	// node of the management cluster on which the machine was first run. By default
	// there are no limits, and it is not set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	SystemReserved string `json:"systemReserved,omitempty"`
}
