package controllers

import (
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestAMachineComesUpInAPod(t *testing.T) {
	t.Run("a worker", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := inPod(t, newPodMachine(t, "a", filtered))
		machine, pod := w.machine("a"), get(w, &corev1.Pod{}, "a")
		g.Expect(machine.Spec.ProviderID).To(MatchRegexp(`^talos://[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`))
		g.Expect(machine.Status.FailureDomain).To(Equal("z1"))
		g.Expect(machine.Status.TalosVersion).To(Equal("v1.13.9"))
		g.Expect(machine.Annotations).To(HaveKey(infrav1.BlockMoveAnnotation), "what runs in a Pod stays where it is")
		g.Expect(conditions.GetReason(machine, infrav1.IdentityVerifiedCondition)).To(Equal(infrav1.ManagedPodReason))
		g.Expect(pod.Finalizers).To(ContainElement(infrav1.TalosPodFinalizer))
		g.Expect(w.userDataOf("a")).To(And(ContainSubstring("provider-id: "+machine.Spec.ProviderID), Not(ContainSubstring("systemReserved"))))
		g.Expect(w.leftOf("a")).To(ConsistOf("*v1.Pod", "*v1.Secret", "*v1alpha1.TalosMachine"))
		for _, made := range []client.Object{pod, get(w, &corev1.Secret{}, "a-userdata")} {
			g.Expect(made.GetLabels()).To(HaveKeyWithValue(clusterv1.WatchLabel, "ours"), "else nobody is woken by it")
			g.Expect(made.GetLabels()).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, testCluster))
		}
		g.Expect(w.recorded()).To(ContainElements(HavePrefix("Normal PodCreated "), HavePrefix("Normal Provisioned ")))
	})
	t.Run("a control plane machine on a volume", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := inPod(t, newPodControlPlane(t, "a", onVolume))
		service := get(w, &corev1.Service{}, "a-etcd")
		g.Expect(w.machine("a").Spec.Pod.EtcdAddress).To(Equal(service.Spec.ClusterIP))
		endpoint := get(w, &corev1.Service{}, testCluster+"-control-plane")
		g.Expect(w.userDataOf("a")).To(And(ContainSubstring(service.Spec.ClusterIP+"/32"), ContainSubstring(endpoint.Spec.ClusterIP), ContainSubstring("one-control-plane.fleet.svc.example.local")))
		g.Expect(w.leftOf("a")).To(HaveLen(5))
	})
	t.Run("with limits, of which the node inside promises no more", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := inPod(t, newPodMachine(t, "a", limited))
		g.Expect(w.userDataOf("a")).To(MatchRegexp(`systemReserved:\n\s+cpu: "6"\n\s+ephemeral-storage: .*\n\s+memory: 12Gi`), w.userDataOf("a"))
	})
	t.Run("with a configuration that fits the environment gzipped only", func(t *testing.T) {
		g := NewWithT(t)
		objects := newPodMachine(t, "a")
		lengthen(objects, strings.Repeat("long ", 60_000))
		w, m := inPod(t, objects)
		g.Expect(w.userDataOf("a")).To(And(ContainSubstring("provider-id: "+w.machine("a").Spec.ProviderID), ContainSubstring("long long")))
		g.Expect(w.yard.machine("a").Applied()).To(BeEmpty(), "who is in maintenance mode takes the configuration of anybody")
		w.yard.crash("a")
		w.settle(m)
		expectRuns(w, "a")
	})
}

// lengthen adds a file to the configuration of a machine.
func lengthen(objects []client.Object, content string) {
	secret, _ := objects[2].(*corev1.Secret)
	secret.Data["value"] = append(secret.Data["value"], []byte("---\napiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables:\n  LONG: "+content+"\n")...)
}

// TestBadInputConfigurationTooLongForAPod: no Pod is made that would wait for its
// configuration in maintenance mode.
func TestBadInputConfigurationTooLongForAPod(t *testing.T) {
	g := NewWithT(t)
	objects := newPodMachine(t, "a")
	random := make([]byte, 100_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	lengthen(objects, base64.StdEncoding.EncodeToString(random))
	w := newPodWorld(t, objects...)
	w.settle(w.manager())
	w.expectTold("a", infrav1.AllocatedCondition, infrav1.OverlayFailedReason, "gzipped", "no more than", "ClusterResourceSet")
	g.Expect(w.yard.created["a"]).To(BeEmpty())
	g.Expect(w.exists(&corev1.Secret{}, "a-userdata")).To(BeFalse())
}

// TestTheManagerDiesAnywhereWithPods kills the manager at each of its effects, one
// after the other, and expects the next one to go on, with one Pod.
func TestTheManagerDiesAnywhereWithPods(t *testing.T) {
	for name, objects := range map[string]func(*testing.T) []client.Object{
		"a worker":                            func(t *testing.T) []client.Object { t.Helper(); return newPodMachine(t, "a", limited) },
		"a control plane machine on a volume": func(t *testing.T) []client.Object { t.Helper(); return newPodControlPlane(t, "a", onVolume) },
	} {
		t.Run(name, func(t *testing.T) {
			effects := comeAndGo(t, objects(t), 0)
			NewWithT(t).Expect(effects).To(BeNumerically(">", 15))
			for killAt := 1; killAt <= effects; killAt++ {
				t.Run(fmt.Sprintf("at effect %d", killAt), func(t *testing.T) {
					t.Parallel()
					comeAndGo(t, objects(t), killAt)
				})
			}
		})
	}
}

// comeAndGo runs a machine in a Pod, replaces its Pod where it has a volume, makes it
// again (D15), and deletes it; it tells how many effects that took.
func comeAndGo(t *testing.T, objects []client.Object, killAt int) int {
	t.Helper()
	g := NewWithT(t)
	w := newPodWorld(t, objects...)
	w.life.DieAt(killAt)
	runs := func() bool {
		machine, pod := w.machine("a"), &corev1.Pod{}
		return machine.Spec.Pod.Progress == infrav1.PodRan && conditions.IsTrue(machine, infrav1.ReadyCondition) &&
			w.exists(pod, "a") && string(pod.UID) == machine.Spec.Pod.UID && pod.DeletionTimestamp.IsZero()
	}
	died := w.liveUntil(runs)
	providerID, etcd := w.machine("a").Spec.ProviderID, w.machine("a").Spec.Pod.EtcdAddress
	g.Expect(w.yard.created["a"]).To(HaveLen(1))

	wanted := 1
	if w.machine("a").Spec.Container.Storage.Type == infrav1.ContainerStorageVolumeClaim {
		w.remove(get(w, &corev1.Pod{}, "a"))
		died = w.liveUntil(func() bool { return len(w.yard.created["a"]) > wanted && runs() }) || died
		wanted++
		g.Expect(w.yard.created["a"]).To(HaveLen(wanted))
	}
	w.wish("a", "")
	died = w.liveUntil(func() bool { return len(w.yard.created["a"]) > wanted && runs() }) || died
	wanted++
	g.Expect(w.yard.created["a"]).To(HaveLen(wanted), "one Pod, and no more")
	g.Expect(w.machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	g.Expect(w.machine("a").Spec.ProviderID).To(Equal(providerID))
	g.Expect(w.machine("a").Spec.Pod.EtcdAddress).To(Equal(etcd))

	w.remove(w.machine("a"))
	died = w.liveUntil(func() bool { return len(w.leftOf("a")) == 0 }) || died
	g.Expect(w.yard.created["a"]).To(HaveLen(wanted))
	g.Expect(w.yard.running()).To(BeEmpty())
	g.Expect(died).To(Equal(killAt > 0))

	return w.life.Effects()
}

// TestTwoManagersMakeOnePod lets two managers work at once, each with what it read
// before the other one wrote.
func TestTwoManagersMakeOnePod(t *testing.T) {
	g := NewWithT(t)
	w := newPodWorld(t, newPodMachine(t, "a")...)
	one, two := w.manager(), w.manager()
	isConflict := func(err error) bool {
		return strings.Contains(err.Error(), "changed") || strings.Contains(err.Error(), "exists")
	}
	for range rounds {
		w.roundWith(one, isConflict)
		w.roundWith(two, isConflict)
	}
	expectRuns(w, "a")
	g.Expect(w.yard.created["a"]).To(HaveLen(1))
}

// TestAnOldRecordMakesNoPod: what the cache tells of a machine that was lost since.
func TestAnOldRecordMakesNoPod(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, newPodMachine(t, "a"))
	old := w.machine("a").DeepCopy()
	old.Spec.Pod = infrav1.TalosMachinePod{Progress: infrav1.PodCreating}
	w.vanish("a")
	m.machines.Client = behind[*infrav1.TalosMachine]{Client: w.life.Client(w.client), old: old}
	_, err := m.machines.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.yard.created["a"]).To(HaveLen(1))
	g.Expect(w.exists(&corev1.Pod{}, "a")).To(BeFalse())
}

// vanish strips a Pod of all finalizers, and deletes it: nobody sees it go.
func (w *world) vanish(name string) {
	w.t.Helper()
	pod := get(w, &corev1.Pod{}, name)
	w.yard.end(pod)
	before := pod.DeepCopy()
	pod.Finalizers = nil
	NewWithT(w.t).Expect(w.client.Patch(w.t.Context(), pod, client.MergeFrom(before))).To(Succeed())
	NewWithT(w.t).Expect(client.IgnoreNotFound(w.client.Delete(w.t.Context(), pod))).To(Succeed())
}

// waysToGo are how a Pod can go, and what a machine without a volume is then told to
// have lost.
var waysToGo = map[string]struct {
	leave func(*world)
	says  string
}{
	"it is deleted": {func(w *world) { w.remove(get(w, &corev1.Pod{}, "a")) }, "The Pod was deleted"},
	"it is evicted": {func(w *world) { w.yard.evict("a") }, "has ended (Evicted: The node was low on resource: memory)"},
	"its node is gone": {func(w *world) {
		w.remove(get(w, &corev1.Pod{}, "a"))
		NewWithT(w.t).Expect(w.client.Delete(w.t.Context(), newHostingNode("node-1", ""))).To(Succeed())
		NewWithT(w.t).Expect(w.client.Create(w.t.Context(), newHostingNode("node-2", "z2"))).To(Succeed())
	}, "The Pod was deleted"},
	"a person strips it of its finalizers": {func(w *world) { w.vanish("a") }, "The Pod was deleted"},
}

// TestBadInputPodGone is about machines without a volume.
func TestBadInputPodGone(t *testing.T) {
	for name, way := range waysToGo {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := inPod(t, newPodMachine(t, "a"))
			way.leave(w)
			w.settle(m)
			w.expectTold("a", infrav1.AllocatedCondition, infrav1.PodLostReason, way.says, "MachineHealthCheck")
			w.expectTold("a", infrav1.RunningCondition, infrav1.PodLostReason)
			g.Expect(w.yard.created["a"]).To(HaveLen(1), "it is never made again")
			g.Expect(w.leftOf("a")).To(ConsistOf("*v1alpha1.TalosMachine"), "the configuration stays no longer than the Pod")
			g.Expect(w.machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
			g.Expect(slices.DeleteFunc(w.recorded(), func(event string) bool { return !strings.HasPrefix(event, "Warning PodLost ") })).To(HaveLen(1))

			w.remove(w.machine("a"))
			w.settle(m)
			g.Expect(w.leftOf("a")).To(BeEmpty())
		})
	}
}

func TestAMachineOnAVolumeOutlivesItsPod(t *testing.T) {
	for name, way := range waysToGo {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := inPod(t, newPodControlPlane(t, "a", onVolume))
			before, claim := w.machine("a"), get(w, &corev1.PersistentVolumeClaim{}, "a-data")
			way.leave(w)
			w.settle(m)
			expectRuns(w, "a")
			g.Expect(w.yard.created["a"]).To(HaveLen(2))
			g.Expect(w.machine("a").Spec.ProviderID).To(Equal(before.Spec.ProviderID))
			g.Expect(w.machine("a").Spec.Pod.EtcdAddress).To(Equal(before.Spec.Pod.EtcdAddress))
			g.Expect(get(w, &corev1.PersistentVolumeClaim{}, "a-data").UID).To(Equal(claim.UID))
			g.Expect(w.recorded()).To(ContainElement(HavePrefix("Normal PodReplaced ")))
		})
	}
	t.Run("its kubelet does not tell that it has ended", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodMachine(t, "a", onVolume))
		w.yard.stuck = true
		w.remove(get(w, &corev1.Pod{}, "a"))
		w.settle(m)
		w.expectTold("a", infrav1.AllocatedCondition, infrav1.PodReplacingReason, "once its containers have ended", "node node-1 has to confirm")
		w.setReady("node-1", corev1.ConditionUnknown)
		w.live(m, time.Minute)
		w.expectTold("a", infrav1.AllocatedCondition, infrav1.NodeNotReadyReason, "node-1", "delete the Node", corev1.TaintNodeOutOfService)
		g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention NodeNotReady: ")))
		g.Expect(w.yard.created["a"]).To(HaveLen(1), "two Pods on one volume")
		g.Expect(get(w, &corev1.Pod{}, "a").Finalizers).To(ContainElement(infrav1.TalosPodFinalizer))
		w.yard.stuck = false
		w.settle(m)
		expectRuns(w, "a")
	})
	t.Run("on a node of another size", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodMachine(t, "a", onVolume, limited))
		g.Expect(w.machine("a").Spec.Pod.SystemReserved).To(Equal("cpu=6,memory=12Gi"))
		larger := newHostingNode("node-2", "z1")
		larger.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("16")
		g.Expect(w.client.Delete(t.Context(), newHostingNode("node-1", ""))).To(Succeed())
		g.Expect(w.client.Create(t.Context(), larger)).To(Succeed())
		w.remove(get(w, &corev1.Pod{}, "a"))
		w.settle(m)
		running := w.told("a", infrav1.RunningCondition)
		g.Expect(running.Status).To(Equal(metav1.ConditionTrue))
		g.Expect(running.Message).To(And(HavePrefix("The systemReserved"), ContainSubstring("cpu=6,memory=12Gi"), ContainSubstring("for node-2 it would be cpu=14,memory=12Gi"), ContainSubstring("Cordon this node and delete the Pod")))
		g.Expect(w.machine("a").Spec.Pod.SystemReserved).To(Equal("cpu=6,memory=12Gi"), "the configuration is on the volume")
		w.wish("a", "")
		w.settle(m)
		expectRuns(w, "a")
		g.Expect(w.machine("a").Spec.Pod.SystemReserved).To(Equal("cpu=14,memory=12Gi"), "it was configured anew")
	})
	t.Run("but not its volume", func(t *testing.T) {
		g := NewWithT(t)
		w, m := inPod(t, newPodControlPlane(t, "a", onVolume))
		w.yard.stuck = true
		w.remove(get(w, &corev1.Pod{}, "a"))
		w.remove(get(w, &corev1.PersistentVolumeClaim{}, "a-data"))
		w.yard.stuck = false
		w.settle(m)
		w.expectTold("a", infrav1.AllocatedCondition, infrav1.PodLostReason, "The volume claim of the machine is gone")
		g.Expect(w.yard.created["a"]).To(HaveLen(1), "etcd would join anew under the old name")
		g.Expect(w.exists(&corev1.PersistentVolumeClaim{}, "a-data")).To(BeFalse())
	})
	t.Run("and its configuration", func(t *testing.T) {
		w, m := inPod(t, newPodMachine(t, "a", onVolume))
		w.remove(get(w, &corev1.Secret{}, "a"))
		w.remove(get(w, &corev1.Pod{}, "a"))
		w.settle(m)
		expectRuns(w, "a")
	})
}

// TestAMachineThatDoesNotAnswer says what is known of the reason.
func TestAMachineThatDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	w := newPodWorld(t, newPodControlPlane(t, "a")...)
	w.yard.release = "none"
	m := w.manager()
	w.settle(m)
	w.expectTold("a", infrav1.RunningCondition, infrav1.BootingReason, "has just started")
	g.Expect(w.recorded()).NotTo(ContainElement(ContainSubstring(infrav1.EventAttention)), "every machine needs a while")
	w.setReady("node-1", corev1.ConditionFalse)
	w.live(m, time.Minute)
	w.expectTold("a", infrav1.RunningCondition, infrav1.NodeNotReadyReason, "node-1 is not ready")
	w.setReady("node-1", corev1.ConditionTrue)
	w.live(m, 2*time.Minute)
	w.expectTold("a", infrav1.RunningCondition, infrav1.NotTalosReason)
}

// setReady sets condition Ready of a node.
func (w *world) setReady(name string, status corev1.ConditionStatus) {
	w.t.Helper()
	node := &corev1.Node{}
	g := NewWithT(w.t)
	g.Expect(w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, node)).To(Succeed())
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	g.Expect(w.client.Status().Update(w.t.Context(), node)).To(Succeed())
}

// TestTheLabelsOfAPodAreMended: its Services would not find it, or one that is not its
// own would.
func TestTheLabelsOfAPodAreMended(t *testing.T) {
	for name, tt := range map[string]struct {
		objects []client.Object
		spoil   func(map[string]string)
	}{
		"one of a control plane is taken away": {newPodControlPlane(t, "a"), func(l map[string]string) { delete(l, clusterv1.MachineControlPlaneLabel) }},
		"that of its machine is taken away":    {newPodMachine(t, "a"), func(l map[string]string) { delete(l, infrav1.MachineLabel) }},
		"a worker is called a control plane":   {newPodMachine(t, "a"), func(l map[string]string) { l[clusterv1.MachineControlPlaneLabel] = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := inPod(t, tt.objects)
			before := get(w, &corev1.Pod{}, "a").Labels
			change(w, get(w, &corev1.Pod{}, "a"), func(p *corev1.Pod) { tt.spoil(p.Labels); p.Labels["theirs"] = "stays" })
			w.settle(m)
			after := get(w, &corev1.Pod{}, "a").Labels
			g.Expect(after).To(HaveKeyWithValue("theirs", "stays"))
			delete(after, "theirs")
			g.Expect(after).To(Equal(before))
			expectRuns(w, "a")
		})
	}
}

func TestAContainerThatEndsIsStartedAgain(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, newPodMachine(t, "a"))
	w.yard.pull = "wait a while"
	w.yard.crash("a")
	w.round(m)
	w.expectTold("a", infrav1.RunningCondition, infrav1.ImageUnavailableReason)
	w.yard.pull = ""
	w.remove(get(w, &corev1.Secret{}, "a-userdata"))
	w.settle(m)
	expectRuns(w, "a")
	g.Expect(w.exists(&corev1.Secret{}, "a-userdata")).To(BeTrue(), "no container starts without it")
	g.Expect(w.yard.created["a"]).To(HaveLen(1))
}

// TestAContainerThatCannotStartWithoutItsConfiguration: it is gone everywhere.
func TestAContainerThatCannotStartWithoutItsConfiguration(t *testing.T) {
	w, m := inPod(t, newPodMachine(t, "a"))
	given := get(w, &corev1.Secret{}, "a")
	w.remove(given)
	w.remove(get(w, &corev1.Secret{}, "a-userdata"))
	w.yard.crash("a")
	w.settle(m)
	w.expectTold("a", infrav1.RunningCondition, infrav1.ContainerNotStartedReason, `secret "a-userdata" not found`)
	w.expectTold("a", infrav1.ConfigurationAppliedCondition, infrav1.WaitingForBootstrapDataReason, "Secret a with the machine configuration is missing")
	given.ResourceVersion = ""
	NewWithT(t).Expect(w.client.Create(t.Context(), given)).To(Succeed())
	w.settle(m)
	expectRuns(w, "a")
}

func TestNothingIsWrittenOnceAllIsWellInPods(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, append(newPodControlPlane(t, "a", onVolume), newPodMachine(t, "b", limited)...))
	lost := newPodMachine(t, "c")
	for _, object := range lost {
		g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
	}
	w.settle(m)
	w.remove(get(w, &corev1.Pod{}, "c"))
	w.live(m, 10*time.Minute)
	expectRuns(w, "b")
	w.expectTold("c", infrav1.AllocatedCondition, infrav1.PodLostReason)

	writes, reads, events := w.life.Effects(), w.reads, len(w.recorded())
	passes := w.live(m, 10*time.Minute)
	g.Expect(w.life.Effects()).To(Equal(writes))
	g.Expect(w.recorded()).To(HaveLen(events))
	g.Expect(w.reads-reads).To(BeNumerically("<=", 2), "one live read, which counts twice: is the Secret of the lost machine gone?")
	g.Expect(passes).To(BeNumerically("<=", 6))
}

func TestAPausedMachineInAPodIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, newPodMachine(t, "a", onVolume))
	change(w, w.machine("a"), func(m *infrav1.TalosMachine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
	w.remove(get(w, &corev1.Pod{}, "a"))
	w.settle(m)
	g.Expect(get(w, &corev1.Pod{}, "a").Finalizers).To(ContainElement(infrav1.TalosPodFinalizer), "it is not even let go")
	change(w, w.machine("a"), func(m *infrav1.TalosMachine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
	w.settle(m)
	expectRuns(w, "a")
}

// TestTheConfigurationOfAPodIsToldToNobody: it holds keys.
func TestTheConfigurationOfAPodIsToldToNobody(t *testing.T) {
	g := NewWithT(t)
	w := newPodWorld(t, newPodControlPlane(t, "a")...)
	change(w, get(w, &corev1.Secret{}, "a"), func(s *corev1.Secret) {
		s.Data["value"] = append(s.Data["value"], []byte("\n---\napiVersion: v1alpha1\nkind: Unheard\nsecret: hunter2\n")...)
	})
	m := w.manager()
	w.settle(m)
	w.expectTold("a", infrav1.AllocatedCondition, infrav1.OverlayFailedReason, "Unheard")
	keys := bundle(t).Machinery()
	for _, condition := range w.machine("a").Status.Conditions {
		g.Expect(condition.Message).NotTo(Or(ContainSubstring("hunter2"), ContainSubstring(keys.TrustdInfo.Token), ContainSubstring(keys.Cluster.Secret)))
	}
	for _, event := range w.recorded() {
		g.Expect(event).NotTo(Or(ContainSubstring("hunter2"), ContainSubstring(keys.TrustdInfo.Token)))
	}
	g.Expect(w.yard.created).To(BeEmpty())
}
