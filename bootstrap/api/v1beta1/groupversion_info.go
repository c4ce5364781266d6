// Package v1beta1 contains the API of the bootstrap provider: TalosConfig and
// TalosConfigTemplate.
// +kubebuilder:object:generate=true
// +groupName=bootstrap.cluster.x-k8s.io
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the objects of this package.
	GroupVersion = schema.GroupVersion{Group: "bootstrap.cluster.x-k8s.io", Version: "v1beta1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the types of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme

	objectTypes = []runtime.Object{
		&TalosConfig{}, &TalosConfigList{},
		&TalosConfigTemplate{}, &TalosConfigTemplateList{},
	}
)

// TalosConfigKind is the kind of a TalosConfig.
const TalosConfigKind = "TalosConfig"

// TalosConfigTemplateKind is the kind of a TalosConfigTemplate.
const TalosConfigTemplateKind = "TalosConfigTemplate"

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, objectTypes...)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
