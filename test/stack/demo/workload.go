package demo

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Workload is the image of what runs in the cluster. Fleets that run workloads
// have it on their nodes.
const Workload = "registry.k8s.io/pause:3.10.1"

// runWorkload runs a Deployment in the cluster, as its user would.
func (s *Scenario) runWorkload(ctx context.Context) (string, error) {
	if !s.Fleet.RunsWorkloads() {
		return "not applicable", nil
	}
	workload, err := s.workloadClient(ctx)
	if err != nil {
		return "", err
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(1)),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "demo"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "demo"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: Workload, ImagePullPolicy: corev1.PullIfNotPresent}}},
			},
		},
	}
	if err := client.IgnoreAlreadyExists(workload.Create(ctx, deployment)); err != nil {
		return "", fmt.Errorf("creating a Deployment in the cluster: %w", err)
	}
	return "Deployment runs", s.poll(ctx, func(ctx context.Context) error {
		if err := workload.Get(ctx, client.ObjectKeyFromObject(deployment), deployment); err != nil {
			return err
		}
		if deployment.Status.AvailableReplicas < 1 {
			return errors.New("the Deployment has no available replica")
		}
		return nil
	})
}

// workloadClient is a client of the cluster with the rights of its administrator.
func (s *Scenario) workloadClient(ctx context.Context) (client.Client, error) {
	kubeconfig := &corev1.Secret{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.Cluster, Name: s.Cluster + "-kubeconfig"}, kubeconfig); err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig.Data["value"])
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	workload, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("making a client of the cluster: %w", err)
	}
	return workload, nil
}
