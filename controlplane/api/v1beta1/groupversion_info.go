// Package v1beta1 contains the API types of the Talos control plane provider.
//
// +kubebuilder:object:generate=true
// +groupName=controlplane.cluster.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the API group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: "v1beta1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

const (
	// TalosControlPlaneKind is the kind of TalosControlPlane.
	TalosControlPlaneKind = "TalosControlPlane"

	// TalosControlPlaneTemplateKind is the kind of TalosControlPlaneTemplate.
	TalosControlPlaneTemplateKind = "TalosControlPlaneTemplate"
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&TalosControlPlane{}, &TalosControlPlaneList{},
		&TalosControlPlaneTemplate{}, &TalosControlPlaneTemplateList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}
