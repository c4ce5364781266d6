package controllers

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// newPodWorld is a management cluster with one node, and a Cluster whose control
// plane runs in Pods.
func newPodWorld(t *testing.T, objects ...client.Object) *world {
	t.Helper()
	g := NewWithT(t)
	w := newWorld(t, append(objects,
		newHostingNode("node-1", "z1"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}},
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.20.0.0/16"}}},
	)...)
	g.Expect(w.client.Delete(t.Context(), newTalosCluster())).To(Succeed())
	made := newTalosCluster()
	made.UID = "talos-cluster-uid"
	made.Spec = infrav1.TalosClusterSpec{Container: &infrav1.TalosClusterContainerSpec{}}
	g.Expect(w.client.Create(t.Context(), made)).To(Succeed())
	w.yard.deleted = nil

	return w
}

func newHostingNode(name, zone string) *corev1.Node {
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

// newPodMachine is a worker Machine that runs as a Pod.
func newPodMachine(t *testing.T, name string, changes ...func(*infrav1.TalosMachine)) []client.Object {
	t.Helper()

	return newMachine(t, name, append([]func(*infrav1.TalosMachine){func(m *infrav1.TalosMachine) {
		m.Spec.Metal, m.Spec.Container = nil, &infrav1.TalosMachineContainerSpec{Talos: infrav1.TalosReleaseSpec{Version: "v1.13.9"}}
	}}, changes...)...)
}

// newPodControlPlane is a control plane Machine that runs as a Pod.
func newPodControlPlane(t *testing.T, name string, changes ...func(*infrav1.TalosMachine)) []client.Object {
	t.Helper()
	objects := newPodMachine(t, name, changes...)
	configuration, err := configgen.Render(configgen.Input{
		Role: configgen.RoleControlPlane, Contract: "v1.13", ClusterName: testCluster, Endpoint: "https://10.0.0.100:6443", Hostname: name,
		KubernetesVersion: "v1.36.3", Secrets: bundle(t).Machinery(),
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		object.SetLabels(map[string]string{clusterv1.ClusterNameLabel: testCluster, clusterv1.MachineControlPlaneLabel: ""})
		if secret, isSecret := object.(*corev1.Secret); isSecret {
			secret.Data["value"] = configuration
		}
	}

	return objects
}

func onVolume(m *infrav1.TalosMachine) {
	m.Spec.Container.Storage = infrav1.ContainerStorage{
		Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{Size: resource.MustParse("20Gi")},
	}
}

func ofClass(m *infrav1.TalosMachine) {
	onVolume(m)
	m.Spec.Container.Storage.VolumeClaim.StorageClassName = "fast"
}

func limited(m *infrav1.TalosMachine) {
	m.Spec.Container.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi")}
}

func filtered(m *infrav1.TalosMachine) {
	m.Labels = map[string]string{clusterv1.ClusterNameLabel: testCluster, clusterv1.WatchLabel: "ours"}
}

// inPod is a world in which TalosMachine "a" runs in a Pod.
func inPod(t *testing.T, objects []client.Object) (*world, *manager) {
	t.Helper()
	w := newPodWorld(t, objects...)
	m := w.manager()
	w.settle(m)
	expectRuns(w, "a")

	return w, m
}

// expectRuns reports whether a machine runs in its Pod.
func expectRuns(w *world, name string) {
	w.t.Helper()
	g := NewWithT(w.t)
	machine := w.machine(name)
	g.Expect(machine.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(conditions.Get(machine, infrav1.ReadyCondition)).To(And(HaveField("Message", BeEmpty()), HaveField("Status", metav1.ConditionTrue)))
	pod := get(w, &corev1.Pod{}, name)
	g.Expect(machine.Spec.Pod.Progress).To(Equal(infrav1.PodRan))
	g.Expect(machine.Spec.Pod.UID).To(Equal(string(pod.UID)))
	g.Expect(machine.Status.Addresses).To(ContainElement(HaveField("Address", pod.Status.PodIP)))
	g.Expect(w.yard.running()).To(ContainElement(name))
}

// told is a condition of a TalosMachine.
func (w *world) told(name, kind string) *metav1.Condition {
	w.t.Helper()

	return conditions.Get(w.machine(name), kind)
}

// expectTold reports whether a condition is false, for that reason and with these words.
func (w *world) expectTold(name, kind, reason string, words ...string) {
	w.t.Helper()
	g := NewWithT(w.t)
	found := w.told(name, kind)
	g.Expect(found.Reason).To(Equal(reason), found.Message)
	g.Expect(found.Status).NotTo(Equal(metav1.ConditionTrue))
	for _, word := range words {
		g.Expect(found.Message).To(ContainSubstring(word))
	}
	g.Expect(conditions.IsTrue(w.machine(name), infrav1.ReadyCondition)).To(BeFalse())
}

// userDataOf is the configuration in the Secret of a machine, as Talos reads it.
func (w *world) userDataOf(name string) string {
	w.t.Helper()
	g := NewWithT(w.t)
	zipped, err := base64.StdEncoding.DecodeString(string(get(w, &corev1.Secret{}, name+infrav1.UserDataSecretSuffix).Data[infrav1.UserDataKey]))
	g.Expect(err).NotTo(HaveOccurred())
	reader, err := gzip.NewReader(bytes.NewReader(zipped))
	g.Expect(err).NotTo(HaveOccurred())
	text, err := io.ReadAll(reader)
	g.Expect(err).NotTo(HaveOccurred())

	return string(text)
}
