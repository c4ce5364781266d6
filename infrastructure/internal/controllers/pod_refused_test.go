package controllers

import (
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
)

// expectRefused lets the API server refuse something, and expects that it is told and
// asked for again.
func expectRefused(t *testing.T, kind, refusal string, words ...string) {
	t.Helper()
	g := NewWithT(t)
	w := newPodWorld(t, newPodControlPlane(t, "a", onVolume)...)
	w.yard.refuse = func(object client.Object) error {
		if fmt.Sprintf("%T", object) == kind {
			return forbidden(object, refusal)
		}
		return nil
	}
	m := w.manager()
	w.live(m, 5*time.Minute)
	w.expectTold("a", infrav1.AllocatedCondition, infrav1.PodRefusedReason, append(words, refusal)...)
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention PodRefused: ")))
	w.yard.refuse = nil
	w.live(m, time.Minute)
	expectRuns(w, "a")
	g.Expect(w.yard.created["a"]).To(HaveLen(1))
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
			w := newPodWorld(t, newPodControlPlane(t, "a", onVolume)...)
			label := func(level string) {
				namespace := &corev1.Namespace{}
				g.Expect(w.client.Get(t.Context(), client.ObjectKey{Name: testNamespace}, namespace)).To(Succeed())
				change(w, namespace, func(n *corev1.Namespace) {
					n.Labels = map[string]string{"pod-security.kubernetes.io/enforce": level}
					if level == "" {
						n.Labels = nil
					}
				})
			}
			label(level)
			m := w.manager()
			w.live(m, 5*time.Minute)
			w.expectTold("a", infrav1.AllocatedCondition, infrav1.PodsNotAllowedReason, "an administrator", "pod-security.kubernetes.io/enforce: privileged")
			g.Expect(w.yard.created).To(BeEmpty())
			g.Expect(w.leftOf("a")).To(Equal([]string{"*v1alpha1.TalosMachine"}), "nothing is made for the Pod either")
			g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention PodsNotAllowed: ")))
			label("privileged")
			w.live(m, time.Minute)
			expectRuns(w, "a")

			// A machine that is there goes on without it, but none is made.
			label(level)
			w.live(m, time.Minute)
			expectRuns(w, "a")
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

func TestNamesThatOthersHave(t *testing.T) {
	for kind, object := range map[string]client.Object{
		"Pod": &corev1.Pod{}, "Service": &corev1.Service{}, "PersistentVolumeClaim": &corev1.PersistentVolumeClaim{}, "Secret": &corev1.Secret{},
	} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			object.SetNamespace(testNamespace)
			object.SetName("a" + map[string]string{"Service": "-etcd", "PersistentVolumeClaim": "-data", "Secret": "-userdata"}[kind])
			object.SetUID("theirs")
			w := newPodWorld(t, append(newPodControlPlane(t, "a", onVolume), object)...)
			m := w.manager()
			w.live(m, 5*time.Minute)
			condition := infrav1.AllocatedCondition
			if kind == "Secret" {
				condition = infrav1.ConfigurationAppliedCondition
			}
			w.expectTold("a", condition, infrav1.NameConflictReason, kind+" "+object.GetName(), "nothing is done to it")
			found, _ := object.DeepCopyObject().(client.Object)
			g.Expect(get(w, found, object.GetName()).GetUID()).To(Equal(types.UID("theirs")))

			g.Expect(w.client.Delete(t.Context(), found)).To(Succeed())
			w.live(m, 2*time.Minute)
			expectRuns(w, "a")
		})
		t.Run(kind+" is left alone by a deletion", func(t *testing.T) {
			g := NewWithT(t)
			left, _ := object.DeepCopyObject().(client.Object)
			left.SetResourceVersion("")
			left.SetFinalizers(nil)
			w := newPodWorld(t, append(newPodControlPlane(t, "a", onVolume), left)...)
			m := w.manager()
			w.settle(m)
			w.remove(w.machine("a"))
			w.settle(m)
			g.Expect(w.leftOf("a")).To(Equal([]string{fmt.Sprintf("%T", object)}))
		})
	}
}

// TestTheServiceOfEtcdIsDeletedByHand: it comes back with the address that the other
// members know, and the machine is followed meanwhile.
func TestTheServiceOfEtcdIsDeletedByHand(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, newPodControlPlane(t, "a"))
	before := get(w, &corev1.Service{}, "a-etcd")
	w.remove(before)
	w.settle(m)
	after := get(w, &corev1.Service{}, "a-etcd")
	g.Expect(after.UID).NotTo(Equal(before.UID))
	g.Expect(after.Spec.ClusterIP).To(Equal(before.Spec.ClusterIP))
	expectRuns(w, "a")

	w.remove(after)
	taker := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "taker"}, Spec: corev1.ServiceSpec{ClusterIP: before.Spec.ClusterIP}}
	g.Expect(w.client.Create(t.Context(), taker)).To(Succeed())
	w.settle(m)
	w.expectTold("a", infrav1.AllocatedCondition, infrav1.PodRefusedReason, "Service a-etcd")
	g.Expect(conditions.IsTrue(w.machine("a"), infrav1.RunningCondition)).To(BeTrue())
	w.remove(taker)
	w.live(m, time.Minute)
	expectRuns(w, "a")
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
			w, m := inPod(t, newPodControlPlane(t, "a"))
			before := get(w, &corev1.Service{}, "a-etcd")
			change(w, get(w, &corev1.Service{}, "a-etcd"), spoil)
			w.settle(m)
			after := get(w, &corev1.Service{}, "a-etcd")
			g.Expect(after.UID).To(Equal(before.UID))
			g.Expect(after.Labels).To(Equal(before.Labels))
			g.Expect(after.Spec).To(Equal(before.Spec))
			expectRuns(w, "a")
		})
	}
}

// TestTheAddressOfEtcdIsLost: somebody has made its Service anew, with another one.
func TestTheAddressOfEtcdIsLost(t *testing.T) {
	g := NewWithT(t)
	w, m := inPod(t, newPodControlPlane(t, "a"))
	address := w.machine("a").Spec.Pod.EtcdAddress
	change(w, get(w, &corev1.Service{}, "a-etcd"), func(s *corev1.Service) { s.Spec.ClusterIP = "172.20.9.9" })
	w.settle(m)
	w.expectTold("a", infrav1.AllocatedCondition, infrav1.EtcdAddressLostReason, "172.20.9.9", address, "delete the Service")
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention EtcdAddressLost: ")))
	w.remove(get(w, &corev1.Service{}, "a-etcd"))
	w.settle(m)
	expectRuns(w, "a")
	g.Expect(get(w, &corev1.Service{}, "a-etcd").Spec.ClusterIP).To(Equal(address))
}

// obstacle is what keeps a machine from running, and how that is told.
type obstacle struct {
	spoil         func(*yard)
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
	w := newPodWorld(t, newPodControlPlane(t, "a", func(m *infrav1.TalosMachine) {
		if by.make != nil {
			by.make(m)
		}
	})...)
	if by.spoil != nil {
		by.spoil(w.yard)
	}
	m := w.manager()
	w.live(m, 10*time.Minute)
	w.expectTold("a", by.kind, by.reason, by.words...)
	g.Expect(ptr.Deref(w.machine("a").Status.Initialization.Provisioned, false)).To(BeFalse())
	writes := w.life.Effects()
	w.live(m, 10*time.Minute)
	g.Expect(w.life.Effects()).To(Equal(writes), "what does not change is not written")
	if by.mendedWithout {
		return
	}
	w.yard.full, w.yard.pull = false, ""
	g.Expect(w.client.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}})).To(Succeed())
	w.live(m, time.Minute)
	w.live(m, time.Minute)
	expectRuns(w, "a")
}

func TestBadInputNoNodeFits(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *yard) { y.full = true },
		kind:  infrav1.AllocatedCondition, reason: infrav1.PodNotScheduledReason, words: []string{"1 Insufficient cpu"},
	})
}

func TestBadInputStorageClassMissing(t *testing.T) {
	t.Run("the one that is named", func(t *testing.T) {
		expectKept(t, obstacle{make: ofClass, kind: infrav1.AllocatedCondition, reason: infrav1.VolumeNotBoundReason, words: []string{"StorageClass fast", "create it"}})
	})
	t.Run("the default one", func(t *testing.T) {
		expectKept(t, obstacle{
			spoil: func(y *yard) { y.full = true }, make: onVolume,
			kind: infrav1.AllocatedCondition, reason: infrav1.VolumeNotBoundReason, words: []string{"no default StorageClass"},
		})
	})
}

func TestBadInputImageThatCannotBePulled(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *yard) { y.pull = "manifest unknown" },
		kind:  infrav1.RunningCondition, reason: infrav1.ImageUnavailableReason, words: []string{"ghcr.io/siderolabs/talos:v1.13.9", "ImagePullBackOff: manifest unknown"},
	})
}

func TestBadInputImageThatIsNoTalos(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *yard) { y.release = "none" }, mendedWithout: true,
		kind: infrav1.RunningCondition, reason: infrav1.NotTalosReason, words: []string{"is ghcr.io/siderolabs/talos:v1.13.9 an image of Talos?"},
	})
}

func TestBadInputImageOfAnotherRelease(t *testing.T) {
	expectKept(t, obstacle{
		spoil: func(y *yard) { y.release = "v1.12.1" }, mendedWithout: true,
		kind: infrav1.RunningCondition, reason: infrav1.WrongReleaseReason, words: []string{"is Talos v1.12.1, but v1.13.9 was asked for"},
	})
}

// TestAWorkerIsNotCalledNoTalosBeforeItsTime: its API is silent until the control
// plane of its cluster answers.
func TestAWorkerIsNotCalledNoTalosBeforeItsTime(t *testing.T) {
	w := newPodWorld(t, newPodMachine(t, "a")...)
	w.yard.release = "none"
	m := w.manager()
	w.live(m, 10*time.Minute)
	w.expectTold("a", infrav1.RunningCondition, infrav1.BootingReason, "before the control plane of the cluster runs")
	NewWithT(t).Expect(w.recorded()).NotTo(ContainElement(ContainSubstring(infrav1.EventAttention)))
	cluster := get(w, &clusterv1.Cluster{}, testCluster)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	NewWithT(t).Expect(w.client.Status().Update(t.Context(), cluster)).To(Succeed())
	w.live(m, 2*time.Minute)
	w.expectTold("a", infrav1.RunningCondition, infrav1.NotTalosReason)
}
