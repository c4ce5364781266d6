package containers

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/podhost"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// expectTold waits for a condition of the TalosMachine of a Machine: its reason, and
// words of the cause and of the way out.
func expectTold(t *testing.T, machine *clusterv1.Machine, kind, reason string, words ...string) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		condition := told(talosMachine(t.Context(), g, machine), kind)
		g.Expect(condition).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", reason)))
		for _, word := range words {
			g.Expect(condition.Message).To(ContainSubstring(word))
		}
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}

// TestBadInputPodsThatCannotRun: each in a set of workers of its own, beside a
// control plane that runs. The condition names the cause and the way out, and once
// it is mended all goes on by itself.
func TestBadInputPodsThatCannotRun(t *testing.T) {
	t.Parallel()
	const name = "cannot"
	g, ctx := NewWithT(t), t.Context()
	create(t, name, 1, 0)
	awaitCluster(t, name, 1, 0)

	t.Run("rows", func(t *testing.T) {
		t.Run("image that cannot be pulled", func(t *testing.T) {
			t.Parallel()
			const image = "registry.example.com/talos:none"
			addWorkers(t, name, "-unpulled", container("-unpulled", image, "talos", "image"))
			worker := only(t, name, name+"-unpulled")
			expectTold(t, worker, infrav1.RunningCondition, infrav1.ImageUnavailableReason, image, "failed to resolve reference", "new template")
			world.Pods.SetImage(image, podhost.Image{Release: talossim.DefaultTalosVersion})
			awaitRunning(t, worker)
		})
		t.Run("image that is no Talos", func(t *testing.T) {
			t.Parallel()
			const image = "registry.example.com/pause:3.10"
			world.Pods.SetImage(image, podhost.Image{})
			addWorkers(t, name, "-stranger", container("-stranger", image, "talos", "image"))
			expectTold(t, only(t, name, name+"-stranger"), infrav1.RunningCondition, infrav1.NotTalosReason, image, "new template")
			mendTemplate(t, name, "-stranger")
		})
		t.Run("image of another release", func(t *testing.T) {
			t.Parallel()
			const image = "registry.example.com/talos:v1.13.9"
			world.Pods.SetImage(image, podhost.Image{Release: "v1.13.5"})
			addWorkers(t, name, "-older", container("-older", image, "talos", "image"))
			expectTold(t, only(t, name, name+"-older"), infrav1.RunningCondition, infrav1.WrongReleaseReason, image, "v1.13.5", talossim.DefaultTalosVersion, "new template")
			mendTemplate(t, name, "-older")
		})
		t.Run("image whose Talos ends at once", func(t *testing.T) {
			t.Parallel()
			const image = "registry.example.com/talos:broken"
			world.Pods.SetImage(image, podhost.Image{Release: "broken"})
			addWorkers(t, name, "-ending", container("-ending", image, "talos", "image"))
			worker := only(t, name, name+"-ending")
			expectTold(t, worker, infrav1.RunningCondition, infrav1.ContainerRestartingReason, "CrashLoopBackOff", "exit code 1")
			world.Pods.SetImage(image, podhost.Image{Release: talossim.DefaultTalosVersion})
			awaitRunning(t, worker)
		})
		t.Run("no node fits", func(t *testing.T) {
			t.Parallel()
			addWorkers(t, name, "-nowhere", container("-nowhere", map[string]any{"disk": "fast"}, "nodeSelector"))
			worker := only(t, name, name+"-nowhere")
			expectTold(t, worker, infrav1.AllocatedCondition, infrav1.PodNotScheduledReason, "nodes are available", "node affinity/selector")
			node := &corev1.Node{}
			g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Name: "node-2"}, node)).To(Succeed())
			before := node.DeepCopy()
			node.Labels["disk"] = "fast"
			g.Expect(world.Client.Patch(t.Context(), node, client.MergeFrom(before))).To(Succeed())
			awaitRunning(t, worker, HaveField("Spec.NodeName", "node-2"))
		})
		t.Run("storage class missing", func(t *testing.T) {
			t.Parallel()
			addWorkers(t, name, "-stored", onVolumes("-stored"), container("-stored", "fast", "storage", "volumeClaim", "storageClassName"))
			worker := only(t, name, name+"-stored")
			expectTold(t, worker, infrav1.AllocatedCondition, infrav1.VolumeNotBoundReason, "StorageClass fast", "create it")
			g.Expect(world.Pods.AddStorageClass(t.Context(), "fast", storagev1.VolumeBindingWaitForFirstConsumer, false)).To(Succeed())
			pod := awaitRunning(t, worker)
			claim := &corev1.PersistentVolumeClaim{}
			g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: worker.Spec.InfrastructureRef.Name + infrav1.DataClaimSuffix}, claim)).To(Succeed())
			// Its volume was made for the node of the Pod, and not before.
			g.Expect(claim.Annotations).To(HaveKeyWithValue("volume.kubernetes.io/selected-node", pod.Spec.NodeName))
		})
	})

	t.Run("quota used up", func(t *testing.T) {
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "pods"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")},
		}}
		g.Expect(world.Client.Create(ctx, quota)).To(Succeed())
		g.Eventually(func(g Gomega) {
			g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(quota), quota)).To(Succeed())
			g.Expect(quota.Status.Used).NotTo(BeEmpty())
		}).WithTimeout(timeout).Should(Succeed())
		addWorkers(t, name, "-quota")
		worker := only(t, name, name+"-quota")
		expectTold(t, worker, infrav1.AllocatedCondition, infrav1.PodRefusedReason, "exceeded quota", "quota left")
		g.Expect(world.Client.Delete(ctx, quota)).To(Succeed())
		awaitRunning(t, worker)
	})
	t.Run("namespace that forbids privileged Pods", func(t *testing.T) {
		label := func(level string) {
			namespace := &corev1.Namespace{}
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Name: name}, namespace)).To(Succeed())
			before := namespace.DeepCopy()
			namespace.Labels["pod-security.kubernetes.io/enforce"] = level
			g.Expect(world.Client.Patch(ctx, namespace, client.MergeFrom(before))).To(Succeed())
		}
		label("baseline")
		addWorkers(t, name, "-forbidden")
		worker := only(t, name, name+"-forbidden")
		expectTold(t, worker, infrav1.AllocatedCondition, infrav1.PodsNotAllowedReason, "an administrator", "pod-security.kubernetes.io/enforce: privileged")
		label("privileged")
		awaitRunning(t, worker)
	})
	expectNoOffence(t, name, 0)
	deleteCluster(t, name)
}

// mendTemplate does what a condition asks for: a new template with the official
// image, which replaces the Machine.
func mendTemplate(t *testing.T, name, ending string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	old := &infrav1.TalosMachineTemplate{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + ending}, old)).To(Succeed())
	mended := &infrav1.TalosMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name + ending + "-2"}, Spec: *old.Spec.DeepCopy()}
	mended.Spec.Template.Spec.Container.Talos.Image = ""
	g.Expect(world.Client.Create(ctx, mended)).To(Succeed())
	kubectl(t, name, "patch", "machinedeployment", name+ending, "--type=merge", "--patch",
		`{"spec":{"template":{"spec":{"infrastructureRef":{"name":"`+mended.Name+`"}}}}}`)
	g.Eventually(func(g Gomega) {
		machines := machinesOf(ctx, g, name, ofDeployment(name+ending))
		g.Expect(machines).To(HaveLen(1))
		g.Expect(machines[0].Spec.InfrastructureRef.Name).NotTo(BeEmpty())
		found := talosMachine(ctx, g, &machines[0])
		g.Expect(found.Spec.Container.Talos.Image).To(BeEmpty())
		g.Expect(told(found, infrav1.RunningCondition)).To(HaveField("Status", metav1.ConditionTrue))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
}

// TestBadInputUnionOfMetalAndContainer: exactly one is set, and what a machine is
// made of does not change.
func TestBadInputUnionOfMetalAndContainer(t *testing.T) {
	t.Parallel()
	const name = "union"
	g, ctx := NewWithT(t), t.Context()
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	machine := func(change func(*infrav1.TalosMachineSpec)) *infrav1.TalosMachine {
		made := &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "machine"}}
		made.Spec.Container = &infrav1.TalosMachineContainerSpec{Talos: infrav1.TalosReleaseSpec{Version: talossim.DefaultTalosVersion}}
		change(&made.Spec)
		return made
	}
	metal := func(spec *infrav1.TalosMachineSpec) { spec.Metal = &infrav1.TalosMachineMetalSpec{} }
	const exactlyOne = "exactly one of metal and container must be set"
	g.Expect(world.Client.Create(ctx, machine(metal))).To(MatchError(ContainSubstring(exactlyOne)))
	g.Expect(world.Client.Create(ctx, machine(func(spec *infrav1.TalosMachineSpec) { spec.Container, spec.ProviderID = nil, "talos://neither" }))).To(MatchError(ContainSubstring(exactlyOne)))

	g.Expect(world.Client.Create(ctx, machine(func(*infrav1.TalosMachineSpec) {}))).To(Succeed())
	for what, change := range map[string]func(*infrav1.TalosMachineSpec){
		"to metal":    func(spec *infrav1.TalosMachineSpec) { spec.Container = nil; metal(spec) },
		"the release": func(spec *infrav1.TalosMachineSpec) { spec.Container.Talos.Version = "v1.13.8" },
		"the image":   func(spec *infrav1.TalosMachineSpec) { spec.Container.Talos.Image = "registry.example.com/talos" },
		"the runtime": func(spec *infrav1.TalosMachineSpec) { spec.Container.RuntimeClassName = "other" },
		"the nodes":   func(spec *infrav1.TalosMachineSpec) { spec.Container.NodeSelector = map[string]string{"a": "b"} },
		"the storage": func(spec *infrav1.TalosMachineSpec) {
			spec.Container.Storage = infrav1.ContainerStorage{Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{Size: resource.MustParse("1Gi")}}
		},
	} {
		g.Eventually(func() error {
			found := &infrav1.TalosMachine{}
			if err := world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: "machine"}, found); err != nil {
				return err
			}
			change(&found.Spec)
			return world.Client.Update(ctx, found)
		}).WithTimeout(timeout).Should(MatchError(ContainSubstring("a machine is made once")), what)
	}
	g.Expect(world.Client.Delete(ctx, machine(func(*infrav1.TalosMachineSpec) {}))).To(Succeed())
}

// TestBadInputControlPlaneOfTheOtherKind: a control plane in Pods needs the Service
// of its cluster, and one on metal an endpoint of the user's.
func TestBadInputControlPlaneOfTheOtherKind(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]change{
		"metal-in-pods": set(infrav1.TalosMachineTemplateKind, "-control-plane", map[string]any{"metal": map[string]any{}}, "spec", "template", "spec"),
		"pods-on-metal": set(infrav1.TalosClusterKind, "", map[string]any{
			"controlPlaneEndpoint": map[string]any{"host": "lb.example.com", "port": int64(6443)},
		}, "spec"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			create(t, name, 1, 0, change)
			g.Eventually(func(g Gomega) {
				g.Expect(controlPlaneOf(ctx, g, name).Status.Conditions).To(ContainElement(And(
					HaveField("Reason", controlplanev1.InfrastructureMismatchReason), HaveField("Message", ContainSubstring("name a template with")))))
				g.Expect(machinesOf(ctx, g, name)).To(BeEmpty())
			}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
			deleteCluster(t, name)
		})
	}
}

// TestBadInputNetworksOfTheManagementCluster: a cluster whose networks are those of
// the management cluster waits until somebody says that it does no harm.
func TestBadInputNetworksOfTheManagementCluster(t *testing.T) {
	t.Parallel()
	for which, network := range map[string]string{"services": "10.96.128.0/18", "pods": world.Pods.PodNetworks()[1]} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			name := "overlap-" + which
			g, ctx := NewWithT(t), t.Context()
			create(t, name, 1, 0, set("Cluster", "", []any{network}, "spec", "clusterNetwork", which, "cidrBlocks"))
			key, found := client.ObjectKey{Namespace: name, Name: name}, &infrav1.TalosCluster{}
			g.Eventually(func(g Gomega) {
				g.Expect(world.Client.Get(ctx, key, found)).To(Succeed())
				g.Expect(told(found, infrav1.ReadyCondition)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Reason", infrav1.NetworkOverlapReason),
					HaveField("Message", And(ContainSubstring(network), ContainSubstring(infrav1.NetworkOverlapAllowedAnnotation)))))
			}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
			g.Expect(found.Spec.ControlPlaneEndpoint.Host).To(BeEmpty())
			kubectl(t, name, "annotate", "taloscluster", name, infrav1.NetworkOverlapAllowedAnnotation+"=known")
			g.Eventually(func(g Gomega) {
				g.Expect(world.Client.Get(ctx, key, found)).To(Succeed())
				g.Expect(found.Status.Initialization.Provisioned).To(Equal(ptr.To(true)))
				g.Expect(told(found, infrav1.ReadyCondition)).To(HaveField("Status", metav1.ConditionTrue))
			}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())
			deleteCluster(t, name)
		})
	}
}
