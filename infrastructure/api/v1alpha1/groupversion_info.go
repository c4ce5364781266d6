// Package v1alpha1 contains the API types of the Talos infrastructure provider.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.x-k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the API group and version of the kinds in this package.
	GroupVersion = schema.GroupVersion{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

// Kinds of this package.
const (
	// TalosClusterKind is the kind of TalosCluster.
	TalosClusterKind = "TalosCluster"
	// TalosClusterTemplateKind is the kind of TalosClusterTemplate.
	TalosClusterTemplateKind = "TalosClusterTemplate"
	// TalosMachineKind is the kind of TalosMachine.
	TalosMachineKind = "TalosMachine"
	// TalosMachineTemplateKind is the kind of TalosMachineTemplate.
	TalosMachineTemplateKind = "TalosMachineTemplate"
	// TalosHostKind is the kind of TalosHost.
	TalosHostKind = "TalosHost"
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&TalosCluster{}, &TalosClusterList{},
		&TalosClusterTemplate{}, &TalosClusterTemplateList{},
		&TalosMachine{}, &TalosMachineList{},
		&TalosMachineTemplate{}, &TalosMachineTemplateList{},
		&TalosHost{}, &TalosHostList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}
