package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// collector gives upstream's framework the logs of our machines.
type collector struct{}

var _ framework.ClusterLogCollector = collector{}

// CollectMachineLog implements framework.ClusterLogCollector: the console of a
// machine in a Pod. Those in Docker are collected at the end.
func (collector) CollectMachineLog(ctx context.Context, _ client.Client, machine *clusterv1.Machine, dir string) error {
	return collectPod(ctx, machine.Namespace, machine.Spec.InfrastructureRef.Name, dir)
}

// CollectMachinePoolLog implements framework.ClusterLogCollector; we have none.
func (collector) CollectMachinePoolLog(context.Context, client.Client, *clusterv1.MachinePool, string) error {
	return nil
}

// CollectInfrastructureLogs implements framework.ClusterLogCollector: what else is
// in the cluster's namespace.
func (collector) CollectInfrastructureLogs(ctx context.Context, reader client.Client, cluster *clusterv1.Cluster, dir string) error {
	events := &corev1.EventList{}
	if err := reader.List(ctx, events, client.InNamespace(cluster.Namespace)); err != nil {
		return fmt.Errorf("listing events: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the logs: %w", err)
	}
	file, err := os.Create(filepath.Join(dir, "events.txt"))
	if err != nil {
		return fmt.Errorf("keeping events: %w", err)
	}
	defer func() { _ = file.Close() }()
	for i := range events.Items {
		event := &events.Items[i]
		fmt.Fprintf(file, "%s %s/%s %s: %s\n", event.LastTimestamp.UTC().Format("15:04:05"), event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Reason, event.Message)
	}
	return nil
}

// collectPod keeps the console of a machine in a Pod, and that of its life before.
// A machine without a Pod has none.
func collectPod(ctx context.Context, namespace, name, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of the logs: %w", err)
	}
	for suffix, previous := range map[string]bool{".log": false, "-before.log": true} {
		stream, err := world.proxy.GetClientSet().CoreV1().Pods(namespace).GetLogs(name, &corev1.PodLogOptions{Previous: previous}).Stream(ctx)
		if apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading the console of %s: %w", name, err)
		}
		content, err := io.ReadAll(stream)
		_ = stream.Close()
		if err != nil {
			return fmt.Errorf("reading the console of %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+suffix), content, 0o600); err != nil {
			return fmt.Errorf("keeping the console of %s: %w", name, err)
		}
	}
	return nil
}
