package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const testTemplate = "workers"

// newTemplate is a template of the test cluster.
func newTemplate(spec infrav1.TalosMachineSpec, changes ...func(*infrav1.TalosMachineTemplate)) *infrav1.TalosMachineTemplate {
	template := &infrav1.TalosMachineTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: testNamespace, Name: testTemplate,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: testCluster, UID: "cluster-uid"}},
	}}
	template.Spec.Template.Spec = spec
	for _, change := range changes {
		change(template)
	}

	return template
}

func ofLargeHosts() infrav1.TalosMachineSpec {
	return infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"size": "large"}}}}
}

func inContainers() infrav1.TalosMachineSpec {
	return infrav1.TalosMachineSpec{Container: &infrav1.TalosMachineContainerSpec{
		Talos: infrav1.TalosReleaseSpec{Version: "v1.13.9"},
		Resources: infrav1.ContainerResources{Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("2000m"), corev1.ResourceMemory: resource.MustParse("2Gi"),
		}},
	}}
}

func large(cpus int32) func(*infrav1.TalosHost) {
	return func(h *infrav1.TalosHost) {
		h.Labels = map[string]string{"size": "large"}
		h.Status.Hardware = infrav1.HostHardware{Architecture: "amd64", CPUs: &cpus, MemoryBytes: ptr.To(int64(16 << 30))}
	}
}

// platformNode is a node of the management cluster with a processor architecture.
func platformNode(name, architecture string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: architecture}},
	}
}

// templatePass is a reconciliation over the template, and what it says after that.
func (w *world) templatePass() *infrav1.TalosMachineTemplate {
	w.t.Helper()
	r := &MachineTemplateReconciler{Client: w.life.Client(w.client), APIReader: w.client}
	_, err := r.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: testNamespace, Name: testTemplate}})
	NewWithT(w.t).Expect(err).NotTo(HaveOccurred())

	return get(w, &infrav1.TalosMachineTemplate{}, testTemplate)
}

func TestATemplateOfMetalTellsTheLeastOfItsHosts(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newTemplate(ofLargeHosts()), newHost("small", "10.0.0.3"))
	g.Expect(w.templatePass().Status.Capacity).To(BeEmpty(), "no host is selected")
	for name, cpus := range map[string]int32{"h1": 8, "h2": 4} {
		g.Expect(w.client.Create(t.Context(), newHost(name, "10.0.0.1", large(cpus)))).To(Succeed())
		host := w.host(name)
		before := host.DeepCopy()
		large(cpus)(host)
		g.Expect(w.client.Status().Patch(t.Context(), host, client.MergeFrom(before))).To(Succeed())
	}
	status := w.templatePass().Status
	g.Expect(status.Capacity.Cpu().Value()).To(BeEquivalentTo(4))
	g.Expect(status.Capacity.Memory().Value()).To(BeEquivalentTo(16 << 30))
	g.Expect(status.NodeInfo).To(Equal(infrav1.TemplateNodeInfo{Architecture: "amd64", OperatingSystem: "linux"}))

	writes := w.life.Effects()
	w.templatePass()
	g.Expect(w.life.Effects()).To(Equal(writes), "nothing is written while nothing changes")

	w.remove(w.host("h1"))
	w.remove(w.host("h2"))
	status = w.templatePass().Status
	g.Expect(status.Capacity).To(BeEmpty())
	g.Expect(status.NodeInfo).To(BeZero())
}

func TestATemplateOfPodsTellsItsResources(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newTemplate(inContainers(), func(template *infrav1.TalosMachineTemplate) {
		template.OwnerReferences = nil // As that of a ClusterClass.
	}))
	status := w.templatePass().Status
	g.Expect(status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
	g.Expect(status.Capacity.Memory().Value()).To(BeEquivalentTo(2 << 30))
	g.Expect(status.NodeInfo).To(BeZero(), "there is no node")

	g.Expect(w.client.Create(t.Context(), platformNode("a", "arm64"))).To(Succeed())
	g.Expect(w.templatePass().Status.NodeInfo).To(Equal(infrav1.TemplateNodeInfo{Architecture: "arm64", OperatingSystem: "linux"}))
	g.Expect(w.client.Create(t.Context(), platformNode("b", "amd64"))).To(Succeed())
	g.Expect(w.templatePass().Status.NodeInfo).To(Equal(infrav1.TemplateNodeInfo{OperatingSystem: "linux"}))
	writes := w.life.Effects()
	w.templatePass()
	g.Expect(w.life.Effects()).To(Equal(writes), "nothing is written while nothing changes")
}

func TestAPausedTemplateIsLeftAlone(t *testing.T) {
	for name, pause := range map[string]func(*world){
		"by its Cluster": func(w *world) {
			change(w, get(w, &clusterv1.Cluster{}, testCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		},
		"by itself": func(w *world) {
			change(w, get(w, &infrav1.TalosMachineTemplate{}, testTemplate), func(template *infrav1.TalosMachineTemplate) {
				template.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, w := NewWithT(t), newWorld(t, newTemplate(inContainers()))
			pause(w)
			paused := w.templatePass()
			g.Expect(paused.Status.Capacity).To(BeEmpty())
			g.Expect(conditions.IsTrue(paused, clusterv1.PausedCondition)).To(BeTrue())
		})
	}
}

func TestWhatWakesTemplates(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newTemplate(ofLargeHosts()), newTemplate(inContainers(), func(template *infrav1.TalosMachineTemplate) {
		template.Name, template.OwnerReferences = "pods", nil
		template.Labels = map[string]string{clusterv1.WatchLabel: "ours"}
	}))
	request := func(name string) ctrl.Request {
		return ctrl.Request{NamespacedName: client.ObjectKey{Namespace: testNamespace, Name: name}}
	}
	r := &MachineTemplateReconciler{Client: w.life.Client(w.client), APIReader: w.client}
	g.Expect(r.hostToTemplates(t.Context(), newHost("h", "10.0.0.1"))).To(ConsistOf(request(testTemplate)))
	g.Expect(r.nodeToTemplates(t.Context(), platformNode("a", "amd64"))).To(ConsistOf(request("pods")))
	g.Expect(r.clusterToTemplates(t.Context(), newCluster())).To(ConsistOf(request(testTemplate)))
	r.WatchFilterValue = "theirs"
	g.Expect(r.nodeToTemplates(t.Context(), platformNode("a", "amd64"))).To(BeEmpty())
	r.WatchFilterValue = "ours"
	g.Expect(r.nodeToTemplates(t.Context(), platformNode("a", "amd64"))).To(ConsistOf(request("pods")))

	g.Expect(isOtherHardware(newHost("h", "10.0.0.1"), newHost("h", "10.0.0.2"))).To(BeFalse(), "its address does not matter")
	g.Expect(isOtherHardware(newHost("h", "10.0.0.1"), newHost("h", "10.0.0.1", large(4)))).To(BeTrue())
	beating := platformNode("a", "amd64")
	beating.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Unix(1, 0)}}
	g.Expect(isOtherNode(platformNode("a", "amd64"), beating)).To(BeFalse(), "its heartbeats do not matter")
	g.Expect(isOtherNode(platformNode("a", "amd64"), platformNode("a", "arm64"))).To(BeTrue())
}
