package container_test

import (
	"bytes"
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
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAMachineComesUpInAPod(t *testing.T) {
	t.Run("a worker", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := harness.InPod(t, harness.NewPodMachine(t, "a", harness.Filtered))
		machine, pod := w.Machine("a"), harness.Get(w, &corev1.Pod{}, "a")
		g.Expect(machine.Spec.ProviderID).To(MatchRegexp(`^talos://[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`))
		g.Expect(machine.Status.FailureDomain).To(Equal("z1"))
		g.Expect(machine.Status.TalosVersion).To(Equal("v1.13.9"))
		g.Expect(machine.Annotations).To(HaveKey(infrav1.BlockMoveAnnotation), "what runs in a Pod stays where it is")
		g.Expect(conditions.GetReason(machine, infrav1.IdentityVerifiedCondition)).To(Equal(infrav1.ManagedPodReason))
		g.Expect(pod.Finalizers).To(ContainElement(infrav1.TalosPodFinalizer))
		g.Expect(w.UserDataOf("a")).To(And(ContainSubstring("provider-id: "+machine.Spec.ProviderID), Not(ContainSubstring("systemReserved"))))
		g.Expect(w.LeftOf("a")).To(ConsistOf("*v1.Pod", "*v1.Secret", "*v1alpha1.TalosMachine"))
		for _, made := range []client.Object{pod, harness.Get(w, &corev1.Secret{}, "a-userdata")} {
			g.Expect(made.GetLabels()).To(HaveKeyWithValue(clusterv1.WatchLabel, "ours"), "else nobody is woken by it")
			g.Expect(made.GetLabels()).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, harness.TestCluster))
		}
		g.Expect(w.Recorded()).To(ContainElements(HavePrefix("Normal PodCreated "), HavePrefix("Normal Provisioned ")))
	})
	t.Run("a control plane machine on a volume", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
		service := harness.Get(w, &corev1.Service{}, "a-etcd")
		g.Expect(w.Machine("a").Spec.Pod.EtcdAddress).To(Equal(service.Spec.ClusterIP))
		endpoint := harness.Get(w, &corev1.Service{}, harness.TestCluster+"-control-plane")
		g.Expect(w.UserDataOf("a")).To(And(ContainSubstring(service.Spec.ClusterIP+"/32"), ContainSubstring(endpoint.Spec.ClusterIP), ContainSubstring("one-control-plane.fleet.svc.example.local")))
		g.Expect(w.LeftOf("a")).To(HaveLen(5))
	})
	t.Run("with limits, of which the node inside promises no more", func(t *testing.T) {
		g := NewWithT(t)
		w, _ := harness.InPod(t, harness.NewPodMachine(t, "a", harness.Limited))
		g.Expect(w.UserDataOf("a")).To(MatchRegexp(`systemReserved:\n\s+cpu: "6"\n\s+ephemeral-storage: .*\n\s+memory: 12Gi`), w.UserDataOf("a"))
	})
	t.Run("with a configuration that fits the environment gzipped only", func(t *testing.T) {
		g := NewWithT(t)
		objects := harness.NewPodMachine(t, "a")
		lengthen(objects, strings.Repeat("long ", 60_000))
		w, m := harness.InPod(t, objects)
		g.Expect(w.UserDataOf("a")).To(And(ContainSubstring("provider-id: "+w.Machine("a").Spec.ProviderID), ContainSubstring("long long")))
		g.Expect(w.PodRuntime.Machine("a").Applied()).To(BeEmpty(), "who is in maintenance mode takes the configuration of anybody")
		w.PodRuntime.Crash("a")
		w.Settle(m)
		harness.ExpectRuns(w, "a")
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
	objects := harness.NewPodMachine(t, "a")
	random := make([]byte, 100_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	lengthen(objects, base64.StdEncoding.EncodeToString(random))
	w := harness.NewWithPods(t, objects...)
	w.Settle(w.Manager())
	w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.OverlayFailedReason, "gzipped", "no more than", "ClusterResourceSet")
	g.Expect(w.PodRuntime.Created["a"]).To(BeEmpty())
	g.Expect(w.Exists(&corev1.Secret{}, "a-userdata")).To(BeFalse())
}

// TestBadInputNetworksOfTheClusterHoldThePeerAddress: Talos never gives such an address
// to etcd. No Pod is made whose etcd would wait for ever.
func TestBadInputNetworksOfTheClusterHoldThePeerAddress(t *testing.T) {
	const theirs = "172.20.0.0/16"
	for name, one := range map[string]struct {
		network string
		changes []func(*infrav1.TalosMachine)
	}{
		"the network of services":                    {network: "10.96.0.0/12"},
		"the network of pods":                        {network: "10.244.0.0/16"},
		"the network of services, a Pod with limits": {network: "10.96.0.0/12", changes: []func(*infrav1.TalosMachine){harness.Limited}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", one.changes...)...)
			replace := func(network, by string) {
				harness.Change(w, harness.Get(w, &corev1.Secret{}, "a"), func(s *corev1.Secret) {
					g.Expect(string(s.Data["value"])).To(ContainSubstring(network))
					s.Data["value"] = bytes.ReplaceAll(s.Data["value"], []byte(network), []byte(by))
				})
			}
			replace(one.network, theirs)
			m := w.Manager()
			w.Settle(m)
			peer := harness.Get(w, &corev1.Service{}, "a-etcd").Spec.ClusterIP
			for _, kind := range []string{infrav1.AllocatedCondition, infrav1.ConfigurationAppliedCondition, infrav1.ReadyCondition} {
				w.ExpectTold("a", kind, infrav1.OverlayFailedReason,
					"the etcd address "+peer+" lies in "+theirs, "choose pod and service networks unlike those of the management cluster")
			}
			g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention OverlayFailed: ")))
			g.Expect(w.PodRuntime.Created).To(BeEmpty())
			g.Expect(w.Exists(&corev1.Secret{}, "a-userdata")).To(BeFalse())
			g.Expect(w.Machine("a").Spec.Pod.SystemReserved).To(BeEmpty(), "there is no node to compute it for")

			replace(theirs, one.network)
			w.Settle(m)
			harness.ExpectRuns(w, "a")
			g.Expect(w.Machine("a").Spec.Pod.EtcdAddress).To(Equal(peer))
		})
	}
}

// TestTheManagerDiesAnywhereWithPods kills the manager at each of its effects, one
// after the other, and expects the next one to go on, with one Pod.
func TestTheManagerDiesAnywhereWithPods(t *testing.T) {
	for name, objects := range map[string]func(*testing.T) []client.Object{
		"a worker": func(t *testing.T) []client.Object { t.Helper(); return harness.NewPodMachine(t, "a", harness.Limited) },
		"a control plane machine on a volume": func(t *testing.T) []client.Object {
			t.Helper()
			return harness.NewPodControlPlane(t, "a", harness.OnVolume)
		},
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
	w := harness.NewWithPods(t, objects...)
	w.Life.DieAt(killAt)
	runs := func() bool {
		machine, pod := w.Machine("a"), &corev1.Pod{}
		return machine.Spec.Pod.Progress == infrav1.PodRan && conditions.IsTrue(machine, infrav1.ReadyCondition) &&
			w.Exists(pod, "a") && string(pod.UID) == machine.Spec.Pod.UID && pod.DeletionTimestamp.IsZero()
	}
	died := w.LiveUntil(runs)
	providerID, etcd := w.Machine("a").Spec.ProviderID, w.Machine("a").Spec.Pod.EtcdAddress
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))

	wanted := 1
	if w.Machine("a").Spec.Container.Storage.Type == infrav1.ContainerStorageVolumeClaim {
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		died = w.LiveUntil(func() bool { return len(w.PodRuntime.Created["a"]) > wanted && runs() }) || died
		wanted++
		g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(wanted))
	}
	w.Wish("a", "")
	died = w.LiveUntil(func() bool { return len(w.PodRuntime.Created["a"]) > wanted && runs() }) || died
	wanted++
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(wanted), "one Pod, and no more")
	g.Expect(w.Machine("a").Annotations).NotTo(HaveKey(infrav1.ReprovisionAnnotation))
	g.Expect(w.Machine("a").Spec.ProviderID).To(Equal(providerID))
	g.Expect(w.Machine("a").Spec.Pod.EtcdAddress).To(Equal(etcd))

	w.Remove(w.Machine("a"))
	died = w.LiveUntil(func() bool { return len(w.LeftOf("a")) == 0 }) || died
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(wanted))
	g.Expect(w.PodRuntime.Running()).To(BeEmpty())
	g.Expect(died).To(Equal(killAt > 0))

	return w.Life.Effects()
}

// TestTwoManagersMakeOnePod lets two managers work at once, each with what it read
// before the other one wrote.
func TestTwoManagersMakeOnePod(t *testing.T) {
	g := NewWithT(t)
	w := harness.NewWithPods(t, harness.NewPodMachine(t, "a")...)
	one, two := w.Manager(), w.Manager()
	isConflict := func(err error) bool {
		return strings.Contains(err.Error(), "changed") || strings.Contains(err.Error(), "exists")
	}
	for range harness.Rounds {
		w.RoundWith(one, isConflict)
		w.RoundWith(two, isConflict)
	}
	harness.ExpectRuns(w, "a")
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
}

// TestAnOldRecordMakesNoPod: what the cache tells of a machine that was lost since.
func TestAnOldRecordMakesNoPod(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
	old := w.Machine("a").DeepCopy()
	old.Spec.Pod = infrav1.TalosMachinePod{Progress: infrav1.PodCreating}
	w.Vanish("a")
	m.Machines.Client = harness.Behind[*infrav1.TalosMachine]{Client: w.Life.Client(w.Client), Old: old}
	_, err := m.Machines.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(old)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
	g.Expect(w.Exists(&corev1.Pod{}, "a")).To(BeFalse())
}

// waysToGo are how a Pod can go, and what a machine without a volume is then told to
// have lost.
var waysToGo = map[string]struct {
	leave func(*harness.Environment)
	says  string
}{
	"it is deleted": {func(w *harness.Environment) { w.Remove(harness.Get(w, &corev1.Pod{}, "a")) }, "The Pod was deleted"},
	"it is evicted": {func(w *harness.Environment) { w.PodRuntime.Evict("a") }, "has ended (Evicted: The node was low on resource: memory)"},
	"its node is gone": {func(w *harness.Environment) {
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		NewWithT(w.T).Expect(w.Client.Delete(w.T.Context(), harness.NewHostingNode("node-1", ""))).To(Succeed())
		NewWithT(w.T).Expect(w.Client.Create(w.T.Context(), harness.NewHostingNode("node-2", "z2"))).To(Succeed())
	}, "The Pod was deleted"},
	"a person strips it of its finalizers": {func(w *harness.Environment) { w.Vanish("a") }, "The Pod was deleted"},
}

// TestBadInputPodGone is about machines without a volume.
func TestBadInputPodGone(t *testing.T) {
	for name, way := range waysToGo {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
			way.leave(w)
			w.Settle(m)
			w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodLostReason, way.says, "MachineHealthCheck")
			w.ExpectTold("a", infrav1.RunningCondition, infrav1.PodLostReason)
			g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1), "it is never made again")
			g.Expect(w.LeftOf("a")).To(ConsistOf("*v1alpha1.TalosMachine"), "the configuration stays no longer than the Pod")
			g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
			g.Expect(slices.DeleteFunc(w.Recorded(), func(event string) bool { return !strings.HasPrefix(event, "Warning PodLost ") })).To(HaveLen(1))

			w.Remove(w.Machine("a"))
			w.Settle(m)
			g.Expect(w.LeftOf("a")).To(BeEmpty())
		})
	}
}

func TestAMachineOnAVolumeOutlivesItsPod(t *testing.T) {
	for name, way := range waysToGo {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
			before, claim := w.Machine("a"), harness.Get(w, &corev1.PersistentVolumeClaim{}, "a-data")
			way.leave(w)
			w.Settle(m)
			harness.ExpectRuns(w, "a")
			g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(2))
			g.Expect(w.Machine("a").Spec.ProviderID).To(Equal(before.Spec.ProviderID))
			g.Expect(w.Machine("a").Spec.Pod.EtcdAddress).To(Equal(before.Spec.Pod.EtcdAddress))
			g.Expect(harness.Get(w, &corev1.PersistentVolumeClaim{}, "a-data").UID).To(Equal(claim.UID))
			g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Normal PodReplaced ")))
		})
	}
	t.Run("its kubelet does not tell that it has ended", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a", harness.OnVolume))
		w.PodRuntime.Stuck = true
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Settle(m)
		w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodReplacingReason, "once its containers have ended", "node node-1 has to confirm")
		w.SetReady("node-1", corev1.ConditionUnknown)
		w.Live(m, time.Minute)
		w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.NodeNotReadyReason, "node-1", "delete the Node", corev1.TaintNodeOutOfService)
		g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention NodeNotReady: ")))
		g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1), "two Pods on one volume")
		g.Expect(harness.Get(w, &corev1.Pod{}, "a").Finalizers).To(ContainElement(infrav1.TalosPodFinalizer))
		w.PodRuntime.Stuck = false
		w.Settle(m)
		harness.ExpectRuns(w, "a")
	})
	t.Run("on a node of another size", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a", harness.OnVolume, harness.Limited))
		g.Expect(w.Machine("a").Spec.Pod.SystemReserved).To(Equal("cpu=6,memory=12Gi"))
		larger := harness.NewHostingNode("node-2", "z1")
		larger.Status.Capacity[corev1.ResourceCPU] = resource.MustParse("16")
		g.Expect(w.Client.Delete(t.Context(), harness.NewHostingNode("node-1", ""))).To(Succeed())
		g.Expect(w.Client.Create(t.Context(), larger)).To(Succeed())
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Settle(m)
		running := w.Told("a", infrav1.RunningCondition)
		g.Expect(running.Status).To(Equal(metav1.ConditionTrue))
		g.Expect(running.Message).To(And(HavePrefix("The systemReserved"), ContainSubstring("cpu=6,memory=12Gi"), ContainSubstring("for node-2 it would be cpu=14,memory=12Gi"), ContainSubstring("Cordon this node and delete the Pod")))
		g.Expect(w.Machine("a").Spec.Pod.SystemReserved).To(Equal("cpu=6,memory=12Gi"), "the configuration is on the volume")
		w.Wish("a", "")
		w.Settle(m)
		harness.ExpectRuns(w, "a")
		g.Expect(w.Machine("a").Spec.Pod.SystemReserved).To(Equal("cpu=14,memory=12Gi"), "it was configured anew")
	})
	t.Run("but not its volume", func(t *testing.T) {
		g := NewWithT(t)
		w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a", harness.OnVolume))
		w.PodRuntime.Stuck = true
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Remove(harness.Get(w, &corev1.PersistentVolumeClaim{}, "a-data"))
		w.PodRuntime.Stuck = false
		w.Settle(m)
		w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodLostReason, "The volume claim of the machine is gone")
		g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1), "etcd would join anew under the old name")
		g.Expect(w.Exists(&corev1.PersistentVolumeClaim{}, "a-data")).To(BeFalse())
	})
	t.Run("and its configuration", func(t *testing.T) {
		w, m := harness.InPod(t, harness.NewPodMachine(t, "a", harness.OnVolume))
		w.Remove(harness.Get(w, &corev1.Secret{}, "a"))
		w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
		w.Settle(m)
		harness.ExpectRuns(w, "a")
	})
}

// TestAMachineThatDoesNotAnswer says what is known of the reason.
func TestAMachineThatDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a")...)
	w.PodRuntime.Release = "none"
	m := w.Manager()
	w.Settle(m)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.BootingReason, "has just started")
	g.Expect(w.Recorded()).NotTo(ContainElement(ContainSubstring(infrav1.EventAttention)), "every machine needs a while")
	w.SetReady("node-1", corev1.ConditionFalse)
	w.Live(m, time.Minute)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.NodeNotReadyReason, "node-1 is not ready")
	w.SetReady("node-1", corev1.ConditionTrue)
	w.Live(m, 2*time.Minute)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.NotTalosReason)
}

// TestTheLabelsOfAPodAreMended: its Services would not find it, or one that is not its
// own would.
func TestTheLabelsOfAPodAreMended(t *testing.T) {
	for name, tt := range map[string]struct {
		objects []client.Object
		spoil   func(map[string]string)
	}{
		"one of a control plane is taken away": {harness.NewPodControlPlane(t, "a"), func(l map[string]string) { delete(l, clusterv1.MachineControlPlaneLabel) }},
		"that of its machine is taken away":    {harness.NewPodMachine(t, "a"), func(l map[string]string) { delete(l, infrav1.MachineLabel) }},
		"a worker is called a control plane":   {harness.NewPodMachine(t, "a"), func(l map[string]string) { l[clusterv1.MachineControlPlaneLabel] = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := harness.InPod(t, tt.objects)
			before := harness.Get(w, &corev1.Pod{}, "a").Labels
			harness.Change(w, harness.Get(w, &corev1.Pod{}, "a"), func(p *corev1.Pod) { tt.spoil(p.Labels); p.Labels["theirs"] = "stays" })
			w.Settle(m)
			after := harness.Get(w, &corev1.Pod{}, "a").Labels
			g.Expect(after).To(HaveKeyWithValue("theirs", "stays"))
			delete(after, "theirs")
			g.Expect(after).To(Equal(before))
			harness.ExpectRuns(w, "a")
		})
	}
}

func TestAContainerThatEndsIsStartedAgain(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
	w.PodRuntime.Pull = "wait a while"
	w.PodRuntime.Crash("a")
	w.Round(m)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.ImageUnavailableReason)
	w.PodRuntime.Pull = ""
	w.Remove(harness.Get(w, &corev1.Secret{}, "a-userdata"))
	w.Settle(m)
	harness.ExpectRuns(w, "a")
	g.Expect(w.Exists(&corev1.Secret{}, "a-userdata")).To(BeTrue(), "no container starts without it")
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
}

// TestAContainerThatCannotStartWithoutItsConfiguration: it is gone everywhere.
func TestAContainerThatCannotStartWithoutItsConfiguration(t *testing.T) {
	w, m := harness.InPod(t, harness.NewPodMachine(t, "a"))
	given := harness.Get(w, &corev1.Secret{}, "a")
	w.Remove(given)
	w.Remove(harness.Get(w, &corev1.Secret{}, "a-userdata"))
	w.PodRuntime.Crash("a")
	w.Settle(m)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.ContainerNotStartedReason, `secret "a-userdata" not found`)
	w.ExpectTold("a", infrav1.ConfigurationAppliedCondition, infrav1.WaitingForBootstrapDataReason, "Secret a with the machine configuration is missing")
	given.ResourceVersion = ""
	NewWithT(t).Expect(w.Client.Create(t.Context(), given)).To(Succeed())
	w.Settle(m)
	harness.ExpectRuns(w, "a")
}

func TestNothingIsWrittenOnceAllIsWellInPods(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, append(harness.NewPodControlPlane(t, "a", harness.OnVolume), harness.NewPodMachine(t, "b", harness.Limited)...))
	lost := harness.NewPodMachine(t, "c")
	for _, object := range lost {
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	w.Remove(harness.Get(w, &corev1.Pod{}, "c"))
	w.Live(m, 10*time.Minute)
	harness.ExpectRuns(w, "b")
	w.ExpectTold("c", infrav1.AllocatedCondition, infrav1.PodLostReason)

	writes, reads, events := w.Life.Effects(), w.Reads, len(w.Recorded())
	passes := w.Live(m, 10*time.Minute)
	g.Expect(w.Life.Effects()).To(Equal(writes))
	g.Expect(w.Recorded()).To(HaveLen(events))
	g.Expect(w.Reads-reads).To(BeNumerically("<=", 2), "one live read, which counts twice: is the Secret of the lost machine gone?")
	g.Expect(passes).To(BeNumerically("<=", 6))
}

func TestAPausedMachineInAPodIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodMachine(t, "a", harness.OnVolume))
	harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { m.Annotations[clusterv1.PausedAnnotation] = "" })
	w.Remove(harness.Get(w, &corev1.Pod{}, "a"))
	w.Settle(m)
	g.Expect(harness.Get(w, &corev1.Pod{}, "a").Finalizers).To(ContainElement(infrav1.TalosPodFinalizer), "it is not even let go")
	harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { delete(m.Annotations, clusterv1.PausedAnnotation) })
	w.Settle(m)
	harness.ExpectRuns(w, "a")
}

// TestTheConfigurationOfAPodIsToldToNobody: it holds keys.
func TestTheConfigurationOfAPodIsToldToNobody(t *testing.T) {
	g := NewWithT(t)
	w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a")...)
	harness.Change(w, harness.Get(w, &corev1.Secret{}, "a"), func(s *corev1.Secret) {
		s.Data["value"] = append(s.Data["value"], []byte("\n---\napiVersion: v1alpha1\nkind: Unheard\nsecret: hunter2\n")...)
	})
	m := w.Manager()
	w.Settle(m)
	w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.OverlayFailedReason, "Unheard")
	keys := harness.Bundle(t).Machinery()
	for _, condition := range w.Machine("a").Status.Conditions {
		g.Expect(condition.Message).NotTo(Or(ContainSubstring("hunter2"), ContainSubstring(keys.TrustdInfo.Token), ContainSubstring(keys.Cluster.Secret)))
	}
	for _, event := range w.Recorded() {
		g.Expect(event).NotTo(Or(ContainSubstring("hunter2"), ContainSubstring(keys.TrustdInfo.Token)))
	}
	g.Expect(w.PodRuntime.Created).To(BeEmpty())
}
