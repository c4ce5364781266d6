package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Architecture is a processor architecture, by the name that Kubernetes gives it.
// +kubebuilder:validation:Enum=amd64;arm64;s390x;ppc64le
type Architecture string

const (
	// ArchitectureAmd64 is x86 with 64 bits.
	ArchitectureAmd64 Architecture = "amd64"
	// ArchitectureArm64 is ARM with 64 bits.
	ArchitectureArm64 Architecture = "arm64"
	// ArchitectureS390x is IBM Z.
	ArchitectureS390x Architecture = "s390x"
	// ArchitecturePpc64le is POWER, little endian.
	ArchitecturePpc64le Architecture = "ppc64le"
)

// OperatingSystemLinux is the operating system of every Node that runs Talos.
const OperatingSystemLinux = "linux"

// TalosMachineTemplateStatus is what a Node made from the template will be like, so
// that an autoscaler can tell while there is none. It is part of the Cluster API
// contract for autoscaling from zero.
// +kubebuilder:validation:MinProperties=1
type TalosMachineTemplateStatus struct {
	// conditions are the observations of the template's present state. The known
	// type is Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// capacity is the CPU, memory and ephemeral storage of such a Node. For a
	// container they are the limits, else the requests, of its resources, and the
	// size of its volume; for metal they are the least that any TalosHost has that
	// hostSelector selects. What is not known is left out.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// nodeInfo is the platform of such a Node. It is known once one of the hosts, or
	// of the nodes of the management cluster, is on which it could be made.
	// +optional
	NodeInfo TemplateNodeInfo `json:"nodeInfo,omitempty,omitzero"`
}

// TemplateNodeInfo is the platform of a Node that is made from a template.
// +kubebuilder:validation:MinProperties=1
type TemplateNodeInfo struct {
	// architecture is the processor architecture, when all hosts or nodes have the
	// same: amd64, arm64, s390x or ppc64le.
	// +optional
	Architecture Architecture `json:"architecture,omitempty"`

	// operatingSystem is the operating system, which is linux.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// GetConditions returns the conditions of the template.
func (in *TalosMachineTemplate) GetConditions() []metav1.Condition {
	return in.Status.Conditions
}

// SetConditions replaces the conditions of the template.
func (in *TalosMachineTemplate) SetConditions(conditions []metav1.Condition) {
	in.Status.Conditions = conditions
}
