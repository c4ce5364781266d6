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

func TestWhatIsRefusedIsAskedForAgain(t *testing.T) {
	refuse := func(kind, words string) func(client.Object) error {
		return func(object client.Object) error {
			if fmt.Sprintf("%T", object) == kind {
				return forbidden(object, words)
			}
			return nil
		}
	}
	for name, tt := range map[string]struct {
		refuse func(client.Object) error
		words  []string
	}{
		"a Pod in a namespace that forbids privileged ones": {refusePods, []string{"violates PodSecurity", "pod-security.kubernetes.io/enforce: privileged"}},
		"a Pod that a quota forbids":                        {refuse("*v1.Pod", "exceeded quota: pods=1"), []string{"exceeded quota: pods=1", "quota left"}},
		"a claim that a quota forbids":                      {refuse("*v1.PersistentVolumeClaim", "exceeded quota: storage"), []string{"PersistentVolumeClaim a-data", "exceeded quota: storage"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newPodWorld(t, newPodControlPlane(t, "a", onVolume)...)
			w.yard.refuse = tt.refuse
			m := w.manager()
			w.live(m, 5*time.Minute)
			w.expectTold("a", infrav1.HostClaimedCondition, infrav1.PodRefusedReason, tt.words...)
			g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NeedsAttention PodRefused: ")))
			w.yard.refuse = nil
			w.live(m, time.Minute)
			expectRuns(w, "a")
			g.Expect(w.yard.created["a"]).To(HaveLen(1))
		})
	}
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
			condition := infrav1.HostClaimedCondition
			if kind == "Secret" {
				condition = infrav1.ConfigurationAppliedCondition
			}
			w.expectTold("a", condition, infrav1.PodNameTakenReason, kind+" "+object.GetName(), "nothing is done to it")
			found, _ := object.DeepCopyObject().(client.Object)
			g.Expect(get(w, found, object.GetName()).GetUID()).To(Equal(types.UID("theirs")))

			w.undying(func() { g.Expect(w.client.Delete(t.Context(), found)).To(Succeed()) })
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
	w.undying(func() { g.Expect(w.client.Create(t.Context(), taker)).To(Succeed()) })
	w.settle(m)
	w.expectTold("a", infrav1.HostClaimedCondition, infrav1.PodRefusedReason, "Service a-etcd")
	g.Expect(conditions.IsTrue(w.machine("a"), infrav1.HostRunningCondition)).To(BeTrue())
	w.remove(taker)
	w.live(m, time.Minute)
	expectRuns(w, "a")
}

func TestWhatKeepsAMachineFromRunning(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil         func(*yard)
		make          func(*infrav1.TalosMachine)
		kind, reason  string
		words         []string
		mendedWithout bool
	}{
		"no node fits": {
			spoil: func(y *yard) { y.full = true },
			kind:  infrav1.HostClaimedCondition, reason: infrav1.PodNotScheduledReason, words: []string{"1 Insufficient cpu"},
		},
		"the storage class is missing": {
			spoil: func(*yard) {}, make: ofClass,
			kind: infrav1.HostClaimedCondition, reason: infrav1.VolumeNotBoundReason, words: []string{"StorageClass fast", "create it"},
		},
		"the image cannot be pulled": {
			spoil: func(y *yard) { y.pull = "manifest unknown" },
			kind:  infrav1.HostRunningCondition, reason: infrav1.ImageUnavailableReason, words: []string{"ghcr.io/siderolabs/talos:v1.13.9", "ImagePullBackOff: manifest unknown"},
		},
		"the image is no Talos": {
			spoil: func(y *yard) { y.release = "none" },
			kind:  infrav1.HostRunningCondition, reason: infrav1.NotTalosReason, words: []string{"is ghcr.io/siderolabs/talos:v1.13.9 an image of Talos?"}, mendedWithout: true,
		},
		"the image is another release": {
			spoil: func(y *yard) { y.release = "v1.12.1" },
			kind:  infrav1.HostRunningCondition, reason: infrav1.WrongReleaseReason, words: []string{"is Talos v1.12.1, but v1.13.9 was asked for"}, mendedWithout: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var changes []func(*infrav1.TalosMachine)
			if tt.make != nil {
				changes = append(changes, tt.make)
			}
			w := newPodWorld(t, newPodControlPlane(t, "a", changes...)...)
			tt.spoil(w.yard)
			m := w.manager()
			w.live(m, 10*time.Minute)
			w.expectTold("a", tt.kind, tt.reason, tt.words...)
			g.Expect(ptr.Deref(w.machine("a").Status.Initialization.Provisioned, false)).To(BeFalse())
			writes := w.writes
			w.live(m, 10*time.Minute)
			if tt.reason != infrav1.NotTalosReason {
				g.Expect(w.writes).To(Equal(writes), "what does not change is not written")
			}
			if tt.mendedWithout {
				return
			}
			w.yard.full, w.yard.pull = false, ""
			w.undying(func() {
				g.Expect(w.client.Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}})).To(Succeed())
			})
			w.live(m, time.Minute)
			w.live(m, time.Minute)
			expectRuns(w, "a")
		})
	}
}

// TestAWorkerIsNotCalledNoTalosBeforeItsTime: its API is silent until the control
// plane of its cluster answers.
func TestAWorkerIsNotCalledNoTalosBeforeItsTime(t *testing.T) {
	w := newPodWorld(t, newPodMachine(t, "a")...)
	w.yard.release = "none"
	m := w.manager()
	w.live(m, 10*time.Minute)
	w.expectTold("a", infrav1.HostRunningCondition, infrav1.HostNotAnsweringReason, "before the control plane of the cluster runs")
	cluster := get(w, &clusterv1.Cluster{}, testCluster)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	w.undying(func() { NewWithT(t).Expect(w.client.Status().Update(t.Context(), cluster)).To(Succeed()) })
	w.live(m, 2*time.Minute)
	w.expectTold("a", infrav1.HostRunningCondition, infrav1.NotTalosReason)
}
