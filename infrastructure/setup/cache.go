package setup

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// CacheByObject is what the cache of the manager has to hold of kinds of which a
// management cluster may have very many: what the provider has made. Whatever else
// has one of its names is read live.
func CacheByObject() map[client.Object]cache.ByObject {
	ofMachines := cache.ByObject{Label: having(infrav1.MachineLabel)}
	ofClusters := cache.ByObject{Label: having(clusterv1.ClusterNameLabel)}

	return map[client.Object]cache.ByObject{
		&corev1.Pod{}:                   ofMachines,
		&corev1.PersistentVolumeClaim{}: ofMachines,
		&corev1.Service{}:               ofClusters,
		&policyv1.PodDisruptionBudget{}: ofClusters,
		&corev1.Node{}:                  {Transform: withoutImages},
	}
}

// having selects what has a label.
func having(label string) labels.Selector {
	requirement, err := labels.NewRequirement(label, selection.Exists, nil)
	if err != nil {
		// It is a constant.
		panic(err)
	}

	return labels.NewSelector().Add(*requirement)
}

// withoutImages drops what is long in a Node, and read by nobody.
func withoutImages(in any) (any, error) {
	if node, ok := in.(*corev1.Node); ok {
		node.Status.Images = nil
		node.SetManagedFields(nil)
	}

	return in, nil
}
