// Package builders makes the objects that unit tests of all providers start from. What a
// test is about, it changes afterwards.
package builders

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// KubernetesVersion is that of the Machines that are made here.
const KubernetesVersion = "v1.36.3"

// Scheme knows the kinds that are added.
func Scheme(t *testing.T, add ...func(*runtime.Scheme) error) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, kinds := range add {
		NewWithT(t).Expect(kinds(scheme)).To(Succeed())
	}

	return scheme
}

// Cluster is a Cluster whose infrastructure is provisioned.
func Cluster(namespace, name string) *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: uid("cluster", name)},
		Status:     clusterv1.ClusterStatus{Initialization: clusterv1.ClusterInitializationStatus{InfrastructureProvisioned: ptr.To(true)}},
	}
}

// Machine is a Machine of a Cluster.
func Machine(cluster *clusterv1.Cluster, name string) *clusterv1.Machine {
	return &clusterv1.Machine{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name, UID: uid("machine", name), Labels: Labels(cluster)},
		Spec:       clusterv1.MachineSpec{ClusterName: cluster.Name, Version: KubernetesVersion},
	}
}

// Labels are those of the objects of a Cluster.
func Labels(cluster *clusterv1.Cluster) map[string]string {
	return map[string]string{clusterv1.ClusterNameLabel: cluster.Name}
}

// OwnedByCluster is the owner reference to a Cluster.
func OwnedByCluster(cluster *clusterv1.Cluster) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name, UID: cluster.UID}}
}

// OwnedByMachine is the owner reference to a Machine.
func OwnedByMachine(machine *clusterv1.Machine) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: machine.Name, UID: machine.UID}}
}

// KubeProxy is a manifest as Talos renders it, with the types of its numbers.
func KubeProxy(version string) map[string]any {
	labels := map[string]any{"k8s-app": "kube-proxy"}

	return map[string]any{
		"apiVersion": "apps/v1", "kind": "DaemonSet",
		"metadata": map[string]any{"namespace": "kube-system", "name": "kube-proxy", "creationTimestamp": nil},
		"spec": map[string]any{
			"selector":             map[string]any{"matchLabels": labels},
			"revisionHistoryLimit": 3.0,
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "kube-proxy", "image": "registry.k8s.io/kube-proxy:" + version}}},
			},
		},
		"status": map[string]any{},
	}
}

func uid(kind, name string) types.UID { return types.UID(kind + "-" + name + "-uid") }
