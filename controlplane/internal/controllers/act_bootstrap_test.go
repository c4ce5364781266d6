package controllers

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// TestKilledBetweenAnyTwoSteps lets the manager die at each of its writes (to
// the management cluster, and to Talos before and after the bootstrap), once per
// run, and starts a new one: everything is there once, and etcd was bootstrapped
// once.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	killed := true
	for at := 1; killed; at++ {
		g := NewWithT(t)
		w := newWorld(t)
		w.life.DieAt(at)
		r := w.manager()
		for pass := 0; pass < 12 && !w.life.IsOver(); pass++ {
			err := w.reconcile(r)
			if w.life.IsOver() {
				break
			}
			g.Expect(err).NotTo(HaveOccurred())
			w.others()
		}
		killed = w.life.IsOver()

		w.life.Restart()
		w.settle(w.manager())

		g.Expect(w.machines()).To(HaveLen(1), "killed at write %d", at)
		g.Expect(w.infraMachines()).To(HaveLen(1), "killed at write %d", at)
		g.Expect(w.talosConfigs()).To(HaveLen(1), "killed at write %d", at)
		g.Expect(w.bootstraps()).To(Equal(1), "killed at write %d", at)
		g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue(), "killed at write %d", at)
		g.Expect(at).To(BeNumerically("<", 100))
	}
}

func TestBootstrapIsNotRepeatedWhenTheStatusIsLost(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())

	w.loseStatus()
	w.settle(w.manager())

	g.Expect(w.bootstraps()).To(Equal(1))
	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.controlPlane().Status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
}

func TestBootstrapIsNotRepeatedWhenStatusAndDataAreLost(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())

	w.loseStatus()
	w.prober.set(health.APIServerSilent)
	w.wipeEtcd()
	w.settle(w.manager())

	g.Expect(w.bootstraps()).To(Equal(1))
	condition := conditions.Get(w.controlPlane(), controlplanev1.InitializedCondition)
	g.Expect(condition.Reason).To(Equal(controlplanev1.EtcdDataLostReason))
	g.Expect(condition.Message).To(ContainSubstring(controlplanev1.BootstrapOverrideAnnotation))
}

func TestBootstrapIsRepeatedWhenAPersonGivesTheDataUp(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())
	w.prober.set(health.APIServerSilent)
	w.wipeEtcd()
	w.settle(w.manager())
	g.Expect(w.bootstraps()).To(Equal(1))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.AvailableCondition)).To(ContainSubstring(controlplanev1.BootstrapOverrideAnnotation))

	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations[controlplanev1.BootstrapOverrideAnnotation] = w.machines()[0].Name
	})
	w.settle(w.manager())

	g.Expect(w.bootstraps()).To(Equal(2))
	g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.BootstrapOverrideAnnotation))
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
}

func TestBootstrapWaitsWhileItIsNotKnownWhetherThereIsData(t *testing.T) {
	for name, fault := range map[string]func(*world, *talosfake.Machine){
		"the node is silent":                         func(_ *world, m *talosfake.Machine) { m.SetSilent(true) },
		"the data directory cannot be listed":        func(_ *world, m *talosfake.Machine) { m.Fail("EtcdDataExists", errors.New("denied")) },
		"the services cannot be listed":              func(_ *world, m *talosfake.Machine) { m.Fail("Services", errors.New("denied")) },
		"the etcd service is not loaded":             func(_ *world, m *talosfake.Machine) { m.Update(func(s *talosfake.State) { s.Services = nil }) },
		"the host name is another one":               func(_ *world, m *talosfake.Machine) { m.Update(func(s *talosfake.State) { s.Hostname = "other" }) },
		"the host name cannot be read":               func(_ *world, m *talosfake.Machine) { m.Fail("Hostname", errors.New("denied")) },
		"somebody untrusted answers at the endpoint": func(w *world, _ *talosfake.Machine) { w.prober.set(health.APIServerUntrusted) },
		"an API server answers at the endpoint":      func(w *world, _ *talosfake.Machine) { w.prober.set(health.APIServerNotReady) },
		"the endpoint could not be asked":            func(w *world, _ *talosfake.Machine) { w.prober.set(health.APIServerUnknown) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t)
			r := w.manager()
			for len(w.talos) == 0 {
				g.Expect(w.reconcile(r)).To(Succeed())
				w.others()
			}
			machine := w.talos[w.machines()[0].Name]
			healthy := machine.Snapshot()
			fault(w, machine)

			w.settle(r)
			g.Expect(w.bootstraps()).To(BeZero())
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.BootstrapIntentAnnotation))

			machine.SetSilent(false)
			for _, method := range []string{"EtcdDataExists", "Services", "Hostname"} {
				machine.Fail(method, nil)
			}
			machine.Update(func(s *talosfake.State) { *s = healthy })
			w.prober.set(health.APIServerSilent)
			w.settle(r)
			g.Expect(w.bootstraps()).To(Equal(1))
		})
	}
}

func TestBootstrapIsTriedAgainWhenTheCallFails(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	for len(w.talos) == 0 {
		g.Expect(w.reconcile(r)).To(Succeed())
		w.others()
	}
	machine := w.talos[w.machines()[0].Name]
	machine.Fail("Bootstrap", fmt.Errorf("%w: time is not in sync yet", talosclient.ErrBootstrapRefused))
	for range 4 {
		_ = w.reconcile(r)
	}
	g.Expect(w.reconcile(r)).To(MatchError(ContainSubstring("time is not in sync yet")))
	g.Expect(w.controlPlane().Annotations).To(HaveKey(controlplanev1.BootstrapIntentAnnotation))
	for _, conditionType := range []string{controlplanev1.InitializedCondition, controlplanev1.AvailableCondition} {
		g.Expect(conditions.GetMessage(w.controlPlane(), conditionType)).To(HaveSuffix("; it failed: bootstrap refused: time is not in sync yet"))
	}

	machine.Fail("Bootstrap", nil)
	w.settle(r)

	g.Expect(w.bootstraps()).To(Equal(1))
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
}

func TestBootstrapIsNotDoneOnAnotherMachineThanTheRecordedOne(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations = map[string]string{
			controlplanev1.BootstrapIntentAnnotation: `{"kind":"Machine","namespace":"fleet","name":"gone","providerID":"talos://gone"}`,
			controlplanev1.BundleDigestAnnotation:    "",
		}
	})
	w.createSecrets()

	w.settle(r)

	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.bootstraps()).To(BeZero())
	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.InitializedCondition)).To(Equal(controlplanev1.BootstrapIntentStaleReason))

	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations[controlplanev1.BootstrapOverrideAnnotation] = w.machines()[0].Name
	})
	w.settle(r)
	g.Expect(w.bootstraps()).To(Equal(1))
}

func TestIntentThatCannotBeReadStopsTheBootstrap(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Annotations = map[string]string{controlplanev1.BootstrapIntentAnnotation: "{"}
	})
	w.createSecrets()

	w.settle(w.manager())

	g.Expect(w.bootstraps()).To(BeZero())
}

func TestLostBundleIsAConditionAndNothingIsMade(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	bundle := w.secret(testCluster + "-talos")
	g.Expect(w.client.Delete(t.Context(), bundle)).To(Succeed())

	w.settle(r)

	condition := conditions.Get(w.controlPlane(), controlplanev1.CertificatesAvailableCondition)
	g.Expect(condition.Status).To(BeEquivalentTo("False"))
	g.Expect(condition.Reason).To(Equal(controlplanev1.CertificatesNotAvailableReason))
	g.Expect(condition.Message).To(ContainSubstring(testCluster + "-talos"))
	g.Expect(conditions.IsFalse(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
	g.Expect(w.machines()).To(HaveLen(1))
}

func TestChangedBundleIsNotUsed(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	bundle := w.secret(testCluster + "-talos")
	otherBundle(t, bundle)
	g.Expect(w.client.Update(t.Context(), bundle)).To(Succeed())

	w.settle(r)

	g.Expect(conditions.GetReason(w.controlPlane(), controlplanev1.CertificatesAvailableCondition)).To(Equal(controlplanev1.CertificatesChangedReason))
}

func TestInvalidBundleIsACondition(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	bundle := w.secret(testCluster + "-talos")
	bundle.Data = map[string][]byte{"bundle": []byte("secret: {")}
	g.Expect(w.client.Update(t.Context(), bundle)).To(Succeed())

	w.settle(r)

	condition := conditions.Get(w.controlPlane(), controlplanev1.CertificatesAvailableCondition)
	g.Expect(condition.Status).To(BeEquivalentTo("False"))
	g.Expect(condition.Message).To(ContainSubstring("holds no valid secrets bundle"))
}

func TestShortSilenceKeepsWhatIsKnown(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	w.talos[w.machines()[0].Name].SetSilent(true)

	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.IsTrue(w.machines()[0], controlplanev1.MachineEtcdMemberHealthyCondition)).To(BeTrue())

	w.clock.SetTime(testTime.Add(remoteGracePeriod))
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.IsUnknown(w.machines()[0], controlplanev1.MachineEtcdMemberHealthyCondition)).To(BeTrue())
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeFalse())
	g.Expect(w.bootstraps()).To(Equal(1))
}

func TestUnhealthyOnlyMachineIsNotReplaced(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	r := w.manager()
	w.settle(r)
	machine := w.machines()[0]
	for _, conditionType := range []string{clusterv1.MachineHealthCheckSucceededCondition, clusterv1.MachineOwnerRemediatedCondition} {
		conditions.Set(machine, newFalse(conditionType))
	}
	g.Expect(w.client.Status().Update(t.Context(), machine)).To(Succeed())

	w.settle(r)

	g.Expect(w.machines()[0].DeletionTimestamp.IsZero()).To(BeTrue())
	g.Expect(conditions.GetReason(w.machines()[0], clusterv1.MachineOwnerRemediatedCondition)).To(Equal(controlplanev1.MachineCannotBeRemediatedReason))
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.RemediatingCondition)).To(BeTrue())
}

// wipeEtcd takes the data of etcd from all machines.
func (w *world) wipeEtcd() {
	for name, machine := range w.talos {
		fresh := newTalosMachine(name, w.prober).Snapshot()
		machine.Update(func(state *talosfake.State) { *state = fresh })
	}
}

func (w *world) secret(name string) *corev1.Secret {
	w.t.Helper()
	secret := &corev1.Secret{}
	NewWithT(w.t).Expect(w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, secret)).To(Succeed())

	return secret
}

// TestALostIntentIsRecordedWithItsUse: while the API server is away, what is recorded
// anew still says that the cluster was in use, which the status alone may lose next.
func TestALostIntentIsRecordedWithItsUse(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t)
	w.settle(w.manager())
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		delete(controlPlane.Annotations, controlplanev1.BootstrapIntentAnnotation)
	})
	w.prober.set(health.APIServerSilent)
	w.settle(w.manager())

	intent := bootstrapIntent(w.controlPlane())
	g.Expect(intent).NotTo(BeNil())
	g.Expect(intent.Bootstrapped).To(BeTrue())
	g.Expect(intent.Initialized).To(BeTrue())
}
