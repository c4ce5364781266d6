package harness

import (
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

// testBundle is made once: keys are dear.
var testBundle = sync.OnceValues(func() (*secrets.Bundle, error) {
	return secrets.NewBundle(TestTime, "v1.13", nil)
})

// Bundle has the secrets of the cluster.
func Bundle(t *testing.T) *secrets.Bundle {
	t.Helper()
	made, err := testBundle()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return made
}

// NewBundleSecret is the Secret with them.
func NewBundleSecret(t *testing.T) *corev1.Secret {
	t.Helper()

	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: TestNamespace, Name: secrets.BundleName(TestCluster), Labels: map[string]string{clusterv1.ClusterNameLabel: TestCluster},
		},
		Data: map[string][]byte{secrets.BundleKey: Bundle(t).YAML()},
	}
}

// NewMachine is a worker Machine with its TalosMachine and bootstrap Secret.
func NewMachine(t *testing.T, name string, changes ...func(*infrav1.TalosMachine)) []client.Object {
	t.Helper()
	configuration, err := configgen.Render(configgen.Input{
		Role: configgen.RoleWorker, Contract: "v1.13", ClusterName: TestCluster, Endpoint: "https://10.0.0.100:6443",
		KubernetesVersion: "v1.36.3", Secrets: Bundle(t).Machinery(),
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	machine := builders.Machine(NewCluster(), name)
	machine.Spec.Bootstrap.DataSecretName = ptr.To(name)
	labels := builders.Labels(NewCluster())
	talosMachine := &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: TestNamespace, Name: name, UID: types.UID(name + "-infra-uid"), Labels: labels,
			OwnerReferences: builders.OwnedByMachine(machine),
		},
		Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{}},
	}
	for _, change := range changes {
		change(talosMachine)
	}

	return []client.Object{machine, talosMachine, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: TestNamespace, Name: name, Labels: labels},
		Data:       map[string][]byte{"value": configuration},
	}}
}

// NewHost is a TalosHost at an address.
func NewHost(name, address string, changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
	host := &infrav1.TalosHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: TestNamespace, Name: name, UID: types.UID(name + "-uid")},
		Spec:       infrav1.TalosHostSpec{Addresses: []string{address}, Install: infrav1.HostInstall{Disk: "/dev/vda"}},
	}
	for _, change := range changes {
		change(host)
	}

	return host
}

// NewCluster is the Cluster.
func NewCluster() *clusterv1.Cluster {
	cluster := builders.Cluster(TestNamespace, TestCluster)
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{
		APIGroup: infrav1.GroupVersion.Group, Kind: infrav1.TalosClusterKind, Name: TestCluster,
	}

	return cluster
}

func newTalosCluster() *infrav1.TalosCluster {
	return &infrav1.TalosCluster{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: TestNamespace, Name: TestCluster, Labels: builders.Labels(NewCluster()),
			OwnerReferences: builders.OwnedByCluster(NewCluster()),
		},
		Spec: infrav1.TalosClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "10.0.0.100", Port: 6443}},
	}
}

// MadeService is the name of the Service that the provider makes for a control plane in Pods.
const MadeService = TestCluster + "-control-plane"

// OfType gives the Service of a control plane in Pods a type.
func OfType(kind infrav1.ControlPlaneServiceType) func(*infrav1.TalosCluster) {
	return func(c *infrav1.TalosCluster) { c.Spec.Container.ControlPlaneService.Type = kind }
}

// NewHostingNode is a node of the management cluster, in a zone.
func NewHostingNode(name, zone string) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"172.21.0.0/24"}},
		Status: corev1.NodeStatus{
			Capacity:  corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi")},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
		},
	}
	if zone != "" {
		node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}

	return node
}

// NewPodMachine is a worker Machine that runs as a Pod.
func NewPodMachine(t *testing.T, name string, changes ...func(*infrav1.TalosMachine)) []client.Object {
	t.Helper()

	return NewMachine(t, name, append([]func(*infrav1.TalosMachine){func(m *infrav1.TalosMachine) {
		m.Spec.Metal, m.Spec.Container = nil, &infrav1.TalosMachineContainerSpec{Talos: infrav1.TalosReleaseSpec{Version: "v1.13.9"}}
	}}, changes...)...)
}

// NewPodControlPlane is a control plane Machine that runs as a Pod.
func NewPodControlPlane(t *testing.T, name string, changes ...func(*infrav1.TalosMachine)) []client.Object {
	t.Helper()
	objects := NewPodMachine(t, name, changes...)
	configuration, err := configgen.Render(configgen.Input{
		Role: configgen.RoleControlPlane, Contract: "v1.13", ClusterName: TestCluster, Endpoint: "https://10.0.0.100:6443", Hostname: name,
		KubernetesVersion: "v1.36.3", Secrets: Bundle(t).Machinery(),
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		object.SetLabels(map[string]string{clusterv1.ClusterNameLabel: TestCluster, clusterv1.MachineControlPlaneLabel: ""})
		if secret, isSecret := object.(*corev1.Secret); isSecret {
			secret.Data["value"] = configuration
		}
	}

	return objects
}

// OnVolume gives a machine in a Pod a volume.
func OnVolume(m *infrav1.TalosMachine) {
	m.Spec.Container.Storage = infrav1.ContainerStorage{
		Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{Size: resource.MustParse("20Gi")},
	}
}

// OfClass gives it a volume of a StorageClass.
func OfClass(m *infrav1.TalosMachine) {
	OnVolume(m)
	m.Spec.Container.Storage.VolumeClaim.StorageClassName = "fast"
}

// Limited gives it limits of its resources.
func Limited(m *infrav1.TalosMachine) {
	m.Spec.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}
}

// Filtered gives it the label of a watch filter.
func Filtered(m *infrav1.TalosMachine) {
	m.Labels = map[string]string{clusterv1.ClusterNameLabel: TestCluster, clusterv1.WatchLabel: "ours"}
}

// TestTemplate is the name of a TalosMachineTemplate.
const TestTemplate = "workers"

// adminTalosconfig is a talosconfig with all rights on the machines of the cluster.
func adminTalosconfig(t *testing.T) []byte {
	t.Helper()
	g := NewWithT(t)
	creds, err := Bundle(t).ClientCredentials(secrets.RoleAdmin, TestTime, 24*time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
	g.Expect(err).NotTo(HaveOccurred())

	return talosconfig
}

// AdoptWith has a host adopt what somebody else has configured.
func AdoptWith(secret string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, secret
	}
}

// InFailureDomain puts a host into a failure domain.
func InFailureDomain(name string) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) { h.Spec.FailureDomain = name }
}
