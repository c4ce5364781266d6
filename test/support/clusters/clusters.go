// Package clusters makes Clusters of Cluster API in tests, as they are when they are up.
package clusters

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Create makes a Cluster that is up.
func Create(ctx context.Context, management client.Client, namespace, name string) error {
	made := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	made.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}
	if err := management.Create(ctx, made); err != nil {
		return fmt.Errorf("making Cluster %s: %w", name, err)
	}
	made.Status.Initialization.InfrastructureProvisioned, made.Status.Initialization.ControlPlaneInitialized = ptr.To(true), ptr.To(true)

	return management.Status().Update(ctx, made)
}

// Connect makes a Cluster that is up, with a kubeconfig.
func Connect(ctx context.Context, management client.Client, namespace, name string, kubeconfig []byte) error {
	if err := management.Create(ctx, Kubeconfig(namespace, name, kubeconfig)); err != nil {
		return fmt.Errorf("making the kubeconfig of Cluster %s: %w", name, err)
	}

	return Create(ctx, management, namespace, name)
}

// Kubeconfig is the Secret with the kubeconfig of a Cluster.
func Kubeconfig(namespace, name string, kubeconfig []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-kubeconfig", Labels: map[string]string{clusterv1.ClusterNameLabel: name}},
		Type:       clusterv1.ClusterSecretType, Data: map[string][]byte{"value": kubeconfig},
	}
}
