package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// allowPrivileged is the label of a namespace whose Pods may be privileged: those
// of machines are.
const allowPrivileged = "pod-security.kubernetes.io/enforce"

// generatePods makes the manifests of a cluster in Pods: nothing but a name and
// versions is needed.
func (s *Scenario) generatePods(ctx context.Context) ([]byte, error) {
	if err := s.createNamespace(ctx, map[string]string{allowPrivileged: "privileged"}); err != nil {
		return nil, err
	}
	return s.generate(ctx, "container", map[string]string{})
}

// expectPods wants a Pod for each machine, of its name and running, and no other.
func (s *Scenario) expectPods(ctx context.Context, machines []clusterv1.Machine) error {
	pods := &corev1.PodList{}
	if err := s.client.List(ctx, pods, client.InNamespace(s.Cluster), client.MatchingLabels{clusterv1.ClusterNameLabel: s.Cluster}); err != nil {
		return err
	}
	var running []string
	for i := range pods.Items {
		if pods.Items[i].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("Pod %s is %s", pods.Items[i].Name, pods.Items[i].Status.Phase) //nolint:staticcheck // a kind's name
		}
		running = append(running, pods.Items[i].Name)
	}
	var wanted []string
	for i := range machines {
		wanted = append(wanted, machines[i].Spec.InfrastructureRef.Name)
	}
	slices.Sort(running)
	slices.Sort(wanted)
	if !slices.Equal(running, wanted) {
		return fmt.Errorf("there are Pods %s for machines %s", strings.Join(running, ", "), strings.Join(wanted, ", "))
	}
	return nil
}

// awaitNothingLeft waits until what was made for the cluster in the namespace is
// gone.
func (s *Scenario) awaitNothingLeft(ctx context.Context) (string, error) {
	return "nothing left", s.poll(ctx, func(ctx context.Context) error { return ExpectNothingLeft(ctx, s.client, s.Cluster) })
}

// ExpectNothingLeft fails while a namespace has Pods, Services, Secrets, volume
// claims or budgets, and names them.
func ExpectNothingLeft(ctx context.Context, reader client.Reader, namespace string) error {
	var left []string
	for kind, list := range map[string]client.ObjectList{
		"Pod": &corev1.PodList{}, "Service": &corev1.ServiceList{}, "Secret": &corev1.SecretList{},
		"PersistentVolumeClaim": &corev1.PersistentVolumeClaimList{}, "PodDisruptionBudget": &policyv1.PodDisruptionBudgetList{},
	} {
		if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("listing what is left: %w", err)
		}
		items, err := apimeta.ExtractList(list)
		if err != nil {
			return fmt.Errorf("listing what is left: %w", err)
		}
		for _, item := range items {
			object, err := apimeta.Accessor(item)
			if err != nil {
				return fmt.Errorf("listing what is left: %w", err)
			}
			left = append(left, kind+" "+object.GetName())
		}
	}
	if len(left) == 0 {
		return nil
	}
	slices.Sort(left)
	return errors.New("left: " + strings.Join(left, ", "))
}
