package container_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// expectRefused lets the API server refuse something, and expects that it is told and
// asked for again.
func expectRefused(t *testing.T, kind, refusal string, words ...string) {
	t.Helper()
	expectNotTaken(t, kind, func(_ *harness.PodRuntime, object client.Object) error { return harness.Forbidden(object, refusal) }, append(words, refusal)...)
}

// expectNotTaken lets the API server give an answer, and expects that it is told, the same
// each time, and asked again.
func expectNotTaken(t *testing.T, kind string, answer func(*harness.PodRuntime, client.Object) error, words ...string) {
	t.Helper()
	g := NewWithT(t)
	w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", harness.OnVolume)...)
	w.PodRuntime.Refuse = func(object client.Object) error {
		// The Service of the control plane is none of the machine.
		if fmt.Sprintf("%T", object) == kind && object.GetName() != harness.MadeService {
			return answer(w.PodRuntime, object)
		}
		return nil
	}
	m := w.Manager()
	w.Live(m, 5*time.Minute)
	w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodRefusedReason, words...)
	before := w.Machine("a").ResourceVersion
	w.Live(m, 5*time.Minute)
	g.Expect(w.Machine("a").ResourceVersion).To(Equal(before), "what does not change is not written")
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention PodRefused: ")))
	w.PodRuntime.Refuse = nil
	w.Live(m, time.Minute)
	harness.ExpectRuns(w, "a")
	g.Expect(w.PodRuntime.Created["a"]).To(HaveLen(1))
}

func TestBadInputPrivilegedPodsForbidden(t *testing.T) {
	expectRefused(t, "*v1.Pod", `violates PodSecurity "restricted:latest": privileged`, "pod-security.kubernetes.io/enforce: privileged")
}

// TestBadInputNamespaceThatDoesNotAskForPrivilegedPods: the label is an administrator's to
// give. Where the API server forbids nothing, whoever may make TalosMachines would be root
// on the nodes of the management cluster.
func TestBadInputNamespaceThatDoesNotAskForPrivilegedPods(t *testing.T) {
	for name, level := range map[string]string{"no label": "", "baseline": "baseline", "another case": "Privileged"} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", harness.OnVolume)...)
			w.Enforce(level)
			m := w.Manager()
			w.Live(m, 5*time.Minute)
			w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodsNotAllowedReason, "an administrator", "pod-security.kubernetes.io/enforce: privileged")
			g.Expect(w.PodRuntime.Created).To(BeEmpty())
			g.Expect(w.LeftOf("a")).To(Equal([]string{"*v1alpha1.TalosMachine"}), "nothing is made for the Pod either")
			g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention PodsNotAllowed: ")))
			w.Enforce("privileged")
			w.Live(m, time.Minute)
			harness.ExpectRuns(w, "a")

			// A machine that is there goes on without it, but none is made.
			w.Enforce(level)
			w.Live(m, time.Minute)
			harness.ExpectRuns(w, "a")
		})
	}
}

func TestBadInputQuotaUsedUp(t *testing.T) {
	t.Run("of Pods", func(t *testing.T) { expectRefused(t, "*v1.Pod", "exceeded quota: pods=1", "quota left") })
	t.Run("of storage", func(t *testing.T) {
		expectRefused(t, "*v1.PersistentVolumeClaim", "exceeded quota: storage", "PersistentVolumeClaim a-data")
	})
	t.Run("of Secrets", func(t *testing.T) { expectRefused(t, "*v1.Secret", "exceeded quota: secrets", "Secret a-userdata") })
}

func TestAWebhookThatDoesNotAnswer(t *testing.T) {
	for kind, name := range map[string]string{"*v1.Pod": "Pod a", "*v1.Service": "Service a-etcd", "*v1.PersistentVolumeClaim": "PersistentVolumeClaim a-data", "*v1.Secret": "Secret a-userdata"} {
		t.Run(name, func(t *testing.T) {
			unanswered := func(y *harness.PodRuntime, _ client.Object) error { return y.Unanswered() }
			expectNotTaken(t, kind, unanswered, name, "it is tried again", "policy.example.com")
		})
	}
}

// TestANamespaceThatCannotBeRead: nobody knows whether it asks for privileged Pods.
func TestANamespaceThatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", harness.OnVolume)...)
	broken := errors.New("the connection was reset")
	mend := w.HideNamespaces(broken)
	m := w.Manager()
	for range harness.Rounds {
		w.RoundWith(m, func(err error) bool { return errors.Is(err, broken) })
	}
	w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodPreparingReason, "Namespace", "cannot be read", "it is tried again")
	g.Expect(w.Recorded()).NotTo(ContainElement(ContainSubstring(infrav1.EventAttention)))
	mend()
	w.Live(m, time.Minute)
	harness.ExpectRuns(w, "a")
}

func TestNamesThatOthersHave(t *testing.T) {
	for kind, object := range map[string]client.Object{
		"Pod": &corev1.Pod{}, "Service": &corev1.Service{}, "PersistentVolumeClaim": &corev1.PersistentVolumeClaim{}, "Secret": &corev1.Secret{},
	} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			object.SetNamespace(harness.TestNamespace)
			object.SetName("a" + map[string]string{"Service": "-etcd", "PersistentVolumeClaim": "-data", "Secret": "-userdata"}[kind])
			object.SetUID("theirs")
			w := harness.NewWithPods(t, append(harness.NewPodControlPlane(t, "a", harness.OnVolume), object)...)
			m := w.Manager()
			w.Live(m, 5*time.Minute)
			condition := infrav1.AllocatedCondition
			if kind == "Secret" {
				condition = infrav1.ConfigurationAppliedCondition
			}
			w.ExpectTold("a", condition, infrav1.NameConflictReason, kind+" "+object.GetName(), "nothing is done to it")
			found, _ := object.DeepCopyObject().(client.Object)
			g.Expect(harness.Get(w, found, object.GetName()).GetUID()).To(Equal(types.UID("theirs")))

			g.Expect(w.Client.Delete(t.Context(), found)).To(Succeed())
			w.Live(m, 2*time.Minute)
			harness.ExpectRuns(w, "a")
		})
		t.Run(kind+" is left alone by a deletion", func(t *testing.T) {
			g := NewWithT(t)
			left, _ := object.DeepCopyObject().(client.Object)
			left.SetResourceVersion("")
			left.SetFinalizers(nil)
			w := harness.NewWithPods(t, append(harness.NewPodControlPlane(t, "a", harness.OnVolume), left)...)
			m := w.Manager()
			w.Settle(m)
			w.Remove(w.Machine("a"))
			w.Settle(m)
			g.Expect(w.LeftOf("a")).To(Equal([]string{fmt.Sprintf("%T", object)}))
		})
	}
}

// TestTheServiceOfEtcdIsDeletedByHand: it comes back with the address that the other
// members know, and the machine is followed meanwhile.
func TestTheServiceOfEtcdIsDeletedByHand(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
	before := harness.Get(w, &corev1.Service{}, "a-etcd")
	w.Remove(before)
	w.Settle(m)
	after := harness.Get(w, &corev1.Service{}, "a-etcd")
	g.Expect(after.UID).NotTo(Equal(before.UID))
	g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	harness.ExpectRuns(w, "a")

	w.Remove(after)
	taker := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: "taker"}, Spec: corev1.ServiceSpec{ClusterIP: before.Spec.ClusterIP}}
	g.Expect(w.Client.Create(t.Context(), taker)).To(Succeed())
	w.Settle(m)
	w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.PodRefusedReason, "Service a-etcd")
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.RunningCondition)).To(BeTrue())
	w.Remove(taker)
	w.Live(m, time.Minute)
	harness.ExpectRuns(w, "a")
}

// TestAMachineIsFollowedWhileAWebhookDoesNotAnswer: it runs without its Service of etcd,
// and fails without it.
func TestAMachineIsFollowedWhileAWebhookDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
	w.PodRuntime.Refuse = func(object client.Object) error {
		if _, isService := object.(*corev1.Service); isService {
			return w.PodRuntime.Unanswered()
		}
		return nil
	}
	w.Remove(harness.Get(w, &corev1.Service{}, "a-etcd"))
	w.Live(m, time.Minute)
	harness.ExpectRuns(w, "a")
	g.Expect(conditions.Get(w.Machine("a"), infrav1.AllocatedCondition)).To(And(HaveField("Reason", infrav1.PodScheduledReason), HaveField("Message", ContainSubstring("policy.example.com"))))
	w.PodRuntime.Machine("a").SetSilent(true)
	w.Live(m, 5*time.Minute)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.UnreachableReason)
	w.PodRuntime.Refuse = nil
	w.PodRuntime.Machine("a").SetSilent(false)
	w.Live(m, time.Minute)
	harness.ExpectRuns(w, "a")
	g.Expect(conditions.Get(w.Machine("a"), infrav1.AllocatedCondition).Message).To(BeEmpty())
	g.Expect(w.Exists(&corev1.Service{}, "a-etcd")).To(BeTrue())
}

// TestBadInputServiceOfEtcdChangedByHand: it leads to the machine again, at the same
// address.
func TestBadInputServiceOfEtcdChangedByHand(t *testing.T) {
	for name, spoil := range map[string]func(*corev1.Service){
		"it selects others":     func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "theirs"} },
		"it follows readiness":  func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = false },
		"it has other ports":    func(s *corev1.Service) { s.Spec.Ports = []corev1.ServicePort{{Name: "peer", Port: 1}} },
		"it has ports at nodes": func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30000 },
		"it leads to a name": func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, "example.com", ""
		},
		"nobody is woken by it": func(s *corev1.Service) { s.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
			before := harness.Get(w, &corev1.Service{}, "a-etcd")
			harness.Change(w, harness.Get(w, &corev1.Service{}, "a-etcd"), spoil)
			w.Settle(m)
			after := harness.Get(w, &corev1.Service{}, "a-etcd")
			g.Expect(after.UID).To(Equal(before.UID))
			g.Expect(after.Labels).To(Equal(before.Labels))
			g.Expect(after.Spec).To(Equal(before.Spec))
			harness.ExpectRuns(w, "a")
		})
	}
}

// TestTheAddressOfEtcdIsLost: somebody has made its Service anew, with another one.
func TestTheAddressOfEtcdIsLost(t *testing.T) {
	g := NewWithT(t)
	w, m := harness.InPod(t, harness.NewPodControlPlane(t, "a"))
	address := w.Machine("a").Spec.Pod.EtcdAddress
	harness.Change(w, harness.Get(w, &corev1.Service{}, "a-etcd"), func(s *corev1.Service) { s.Spec.ClusterIP = "172.20.9.9" })
	w.Settle(m)
	w.ExpectTold("a", infrav1.AllocatedCondition, infrav1.EtcdAddressLostReason, "172.20.9.9", address, "delete the Service")
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention EtcdAddressLost: ")))
	w.Remove(harness.Get(w, &corev1.Service{}, "a-etcd"))
	w.Settle(m)
	harness.ExpectRuns(w, "a")
	g.Expect(harness.Get(w, &corev1.Service{}, "a-etcd").Spec.ClusterIP).To(Equal(address))
}

// obstacle is what keeps a machine from running, and how that is told.
type obstacle struct {
	spoil         func(*harness.PodRuntime)
	make          func(*infrav1.TalosMachine)
	kind, reason  string
	words         []string
	mendedWithout bool
}

// expectKept expects that an obstacle is told, and that the machine runs once it is
// gone where that can be.
func expectKept(t *testing.T, by obstacle) {
	t.Helper()
	g := NewWithT(t)
	w := harness.NewWithPods(t, harness.NewPodControlPlane(t, "a", func(m *infrav1.TalosMachine) {
		if by.make != nil {
			by.make(m)
		}
	})...)
	if by.spoil != nil {
		by.spoil(w.PodRuntime)
	}
	m := w.Manager()
	w.Live(m, 10*time.Minute)
	w.ExpectTold("a", by.kind, by.reason, by.words...)
	g.Expect(ptr.Deref(w.Machine("a").Status.Initialization.Provisioned, false)).To(BeFalse())
	writes := w.Life.Effects()
	w.Live(m, 10*time.Minute)
	g.Expect(w.Life.Effects()).To(Equal(writes), "what does not change is not written")
	if by.mendedWithout {
		return
	}
	w.PodRuntime.Full, w.PodRuntime.Pull = false, ""
	g.Expect(w.Client.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}})).To(Succeed())
	w.Live(m, time.Minute)
	w.Live(m, time.Minute)
	harness.ExpectRuns(w, "a")
}

func TestBadInputNoNodeFits(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *harness.PodRuntime) { y.Full = true },
		kind:  infrav1.AllocatedCondition, reason: infrav1.PodNotScheduledReason, words: []string{"1 Insufficient cpu"},
	})
}

func TestBadInputStorageClassMissing(t *testing.T) {
	t.Run("the one that is named", func(t *testing.T) {
		expectKept(t, obstacle{make: harness.OfClass, kind: infrav1.AllocatedCondition, reason: infrav1.VolumeNotBoundReason, words: []string{"StorageClass fast", "create it"}})
	})
	t.Run("the default one", func(t *testing.T) {
		expectKept(t, obstacle{
			spoil: func(y *harness.PodRuntime) { y.Full = true }, make: harness.OnVolume,
			kind: infrav1.AllocatedCondition, reason: infrav1.VolumeNotBoundReason, words: []string{"no default StorageClass"},
		})
	})
}

func TestBadInputImageThatCannotBePulled(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *harness.PodRuntime) { y.Pull = "manifest unknown" },
		kind:  infrav1.RunningCondition, reason: infrav1.ImageUnavailableReason, words: []string{"ghcr.io/siderolabs/talos:v1.13.9", "ImagePullBackOff: manifest unknown"},
	})
}

func TestBadInputImageThatIsNoTalos(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *harness.PodRuntime) { y.Release = "none" }, mendedWithout: true,
		kind: infrav1.RunningCondition, reason: infrav1.NotTalosReason, words: []string{"is ghcr.io/siderolabs/talos:v1.13.9 an image of Talos?"},
	})
}

func TestBadInputImageOfAnotherRelease(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *harness.PodRuntime) { y.Release = "v1.12.1" }, mendedWithout: true,
		kind: infrav1.RunningCondition, reason: infrav1.WrongReleaseReason, words: []string{"is Talos v1.12.1, but v1.13.9 was asked for"},
	})
}

// TestAWorkerIsNotCalledNoTalosBeforeItsTime: its API is silent until the control
// plane of its cluster answers.
func TestAWorkerIsNotCalledNoTalosBeforeItsTime(t *testing.T) {
	w := harness.NewWithPods(t, harness.NewPodMachine(t, "a")...)
	w.PodRuntime.Release = "none"
	m := w.Manager()
	w.Live(m, 10*time.Minute)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.BootingReason, "before the control plane of the cluster runs")
	NewWithT(t).Expect(w.Recorded()).NotTo(ContainElement(ContainSubstring(infrav1.EventAttention)))
	cluster := harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	NewWithT(t).Expect(w.Client.Status().Update(t.Context(), cluster)).To(Succeed())
	w.Live(m, 2*time.Minute)
	w.ExpectTold("a", infrav1.RunningCondition, infrav1.NotTalosReason)
}
