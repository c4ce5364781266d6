package controllers

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
)

// scope is what one reconcile knows about one TalosConfig.
type scope struct {
	cluster      *clusterv1.Cluster
	machine      *clusterv1.Machine
	config       *bootstrapv1.TalosConfig
	controlPlane bool

	// bundle is nil while there is none that may be used.
	bundle *secrets.Bundle
	// stored reports whether the bootstrap data Secret is there.
	stored bool
	// waits reports whether the configuration waits for somebody else.
	waits bool
	// networkProblem says in words what of the network of the Cluster is other than
	// it began with; empty when nothing is.
	networkProblem string
	// renewAfter is when the client configuration, or a bundle that is missed, is to
	// be looked at again.
	renewAfter time.Duration

	// certificates, dataSecret and clientConfig are what the conditions say. A
	// finding without status was not made.
	certificates, dataSecret, clientConfig condition.Finding
}

func objectMeta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// clusterSecretMeta is the metadata of a Secret that belongs to the Cluster.
func clusterSecretMeta(s *scope, name string) metav1.ObjectMeta {
	meta := objectMeta(s.cluster.Namespace, name)
	meta.Labels = map[string]string{clusterv1.ClusterNameLabel: s.cluster.Name}
	meta.Annotations = map[string]string{bootstrapv1.GeneratedAnnotation: ""}
	meta.OwnerReferences = []metav1.OwnerReference{clusterOwner(s)}

	return meta
}

func clusterOwner(s *scope) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: clusterv1.GroupVersion.String(), Kind: clusterv1.ClusterKind, Name: s.cluster.Name, UID: s.cluster.UID,
	}
}
