package controllers_test

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
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

// newTemplate is a template of the test cluster.
func newTemplate(spec infrav1.TalosMachineSpec, changes ...func(*infrav1.TalosMachineTemplate)) *infrav1.TalosMachineTemplate {
	template := &infrav1.TalosMachineTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: harness.TestNamespace, Name: harness.TestTemplate,
		OwnerReferences: builders.OwnedByCluster(harness.NewCluster()),
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

func TestATemplateOfMetalTellsTheLeastOfItsHosts(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, newTemplate(ofLargeHosts()), harness.NewHost("small", "10.0.0.3"))
	g.Expect(w.ReconcileTemplate().Status.Capacity).To(BeEmpty(), "no host is selected")
	for name, cpus := range map[string]int32{"h1": 8, "h2": 4} {
		g.Expect(w.Client.Create(t.Context(), harness.NewHost(name, "10.0.0.1", large(cpus)))).To(Succeed())
		host := w.Host(name)
		before := host.DeepCopy()
		large(cpus)(host)
		g.Expect(w.Client.Status().Patch(t.Context(), host, client.MergeFrom(before))).To(Succeed())
	}
	status := w.ReconcileTemplate().Status
	g.Expect(status.Capacity.Cpu().Value()).To(BeEquivalentTo(4))
	g.Expect(status.Capacity.Memory().Value()).To(BeEquivalentTo(16 << 30))
	g.Expect(status.NodeInfo).To(Equal(infrav1.TemplateNodeInfo{Architecture: "amd64", OperatingSystem: "linux"}))

	writes := w.Life.Effects()
	w.ReconcileTemplate()
	g.Expect(w.Life.Effects()).To(Equal(writes), "nothing is written while nothing changes")

	w.Remove(w.Host("h1"))
	w.Remove(w.Host("h2"))
	status = w.ReconcileTemplate().Status
	g.Expect(status.Capacity).To(BeEmpty())
	g.Expect(status.NodeInfo).To(BeZero())
}

func TestATemplateOfPodsTellsItsResources(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, newTemplate(inContainers(), func(template *infrav1.TalosMachineTemplate) {
		template.OwnerReferences = nil // As that of a ClusterClass.
	}))
	status := w.ReconcileTemplate().Status
	g.Expect(status.Capacity.Cpu().Value()).To(BeEquivalentTo(2))
	g.Expect(status.Capacity.Memory().Value()).To(BeEquivalentTo(2 << 30))
	g.Expect(status.NodeInfo).To(BeZero(), "there is no node")

	g.Expect(w.Client.Create(t.Context(), platformNode("a", "arm64"))).To(Succeed())
	g.Expect(w.ReconcileTemplate().Status.NodeInfo).To(Equal(infrav1.TemplateNodeInfo{Architecture: "arm64", OperatingSystem: "linux"}))
	g.Expect(w.Client.Create(t.Context(), platformNode("b", "amd64"))).To(Succeed())
	g.Expect(w.ReconcileTemplate().Status.NodeInfo).To(Equal(infrav1.TemplateNodeInfo{OperatingSystem: "linux"}))
	writes := w.Life.Effects()
	w.ReconcileTemplate()
	g.Expect(w.Life.Effects()).To(Equal(writes), "nothing is written while nothing changes")
}

func TestAPausedTemplateIsLeftAlone(t *testing.T) {
	for name, pause := range map[string]func(*harness.Environment){
		"by its Cluster": func(w *harness.Environment) {
			harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
		},
		"by itself": func(w *harness.Environment) {
			harness.Change(w, harness.Get(w, &infrav1.TalosMachineTemplate{}, harness.TestTemplate), func(template *infrav1.TalosMachineTemplate) {
				template.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, w := NewWithT(t), harness.New(t, newTemplate(inContainers()))
			pause(w)
			paused := w.ReconcileTemplate()
			g.Expect(paused.Status.Capacity).To(BeEmpty())
			g.Expect(conditions.IsTrue(paused, clusterv1.PausedCondition)).To(BeTrue())
		})
	}
}

func TestWhatWakesTemplates(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, newTemplate(ofLargeHosts()), newTemplate(inContainers(), func(template *infrav1.TalosMachineTemplate) {
		template.Name, template.OwnerReferences = "pods", nil
		template.Labels = map[string]string{clusterv1.WatchLabel: "ours"}
	}))
	request := func(name string) ctrl.Request {
		return ctrl.Request{NamespacedName: client.ObjectKey{Namespace: harness.TestNamespace, Name: name}}
	}
	r := &controllers.MachineTemplateReconciler{Client: w.Life.Client(w.Client), APIReader: w.Client}
	g.Expect(r.HostToTemplates(t.Context(), harness.NewHost("h", "10.0.0.1"))).To(ConsistOf(request(harness.TestTemplate)))
	g.Expect(r.NodeToTemplates(t.Context(), platformNode("a", "amd64"))).To(ConsistOf(request("pods")))
	g.Expect(r.ClusterToTemplates(t.Context(), harness.NewCluster())).To(ConsistOf(request(harness.TestTemplate)))
	r.WatchFilterValue = "theirs"
	g.Expect(r.NodeToTemplates(t.Context(), platformNode("a", "amd64"))).To(BeEmpty())
	r.WatchFilterValue = "ours"
	g.Expect(r.NodeToTemplates(t.Context(), platformNode("a", "amd64"))).To(ConsistOf(request("pods")))

	g.Expect(controllers.IsOtherHardware(harness.NewHost("h", "10.0.0.1"), harness.NewHost("h", "10.0.0.2"))).To(BeFalse(), "its address does not matter")
	g.Expect(controllers.IsOtherHardware(harness.NewHost("h", "10.0.0.1"), harness.NewHost("h", "10.0.0.1", large(4)))).To(BeTrue())
	beating := platformNode("a", "amd64")
	beating.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Unix(1, 0)}}
	g.Expect(controllers.IsOtherNode(platformNode("a", "amd64"), beating)).To(BeFalse(), "its heartbeats do not matter")
	g.Expect(controllers.IsOtherNode(platformNode("a", "amd64"), platformNode("a", "arm64"))).To(BeTrue())
}
