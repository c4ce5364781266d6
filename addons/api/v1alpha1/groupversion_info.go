// Package v1alpha1 contains the API of the add-on provider: TalosClusterAddon and
// TalosClusterAddonRelease.
// +kubebuilder:object:generate=true
// +groupName=addons.cluster.x-k8s.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of the objects of this package.
	GroupVersion = schema.GroupVersion{Group: "addons.cluster.x-k8s.io", Version: "v1alpha1"}

	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme adds the types of this package to a scheme.
	AddToScheme = schemeBuilder.AddToScheme
)

// Kinds of this package.
const (
	// TalosClusterAddonKind is the kind of a TalosClusterAddon.
	TalosClusterAddonKind = "TalosClusterAddon"
	// TalosClusterAddonReleaseKind is the kind of a TalosClusterAddonRelease.
	TalosClusterAddonReleaseKind = "TalosClusterAddonRelease"
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&TalosClusterAddon{}, &TalosClusterAddonList{},
		&TalosClusterAddonRelease{}, &TalosClusterAddonReleaseList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)

	return nil
}
