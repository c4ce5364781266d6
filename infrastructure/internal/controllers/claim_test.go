package controllers

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
)

func TestTwoMachinesWantOneHost(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(append(newMachine(t, "a"), newMachine(t, "b")...), newHost("h1", "10.0.0.1"))...)
	metals := []*bareMetal{w.addMachine("10.0.0.1"), w.addMachine("10.0.0.2")}
	m := w.manager()
	w.settle(m)

	winner, loser := w.machine("a"), w.machine("b")
	if loser.Spec.HostRef.Name != "" {
		winner, loser = loser, winner
	}
	g.Expect(winner.Spec.HostRef.Name).To(Equal("h1"))
	g.Expect(loser.Spec.HostRef).To(BeZero())
	waiting := conditions.Get(loser, infrav1.AllocatedCondition)
	g.Expect(waiting.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(waiting.Message).To(Equal("No TalosHost of 1 can be claimed: 1 claimed"))
	g.Expect(conditions.Get(loser, infrav1.ReadyCondition).Reason).To(Equal(infrav1.NoHostFitsReason))

	g.Expect(w.client.Create(t.Context(), newHost("h2", "10.0.0.2"))).To(Succeed())
	w.settle(m)
	g.Expect(w.machine(loser.Name).Spec.HostRef.Name).To(Equal("h2"))
	g.Expect(w.machine("a").Spec.ProviderID).NotTo(Equal(w.machine("b").Spec.ProviderID))
	g.Expect(metals[0].Applied()).To(HaveLen(1))
	g.Expect(metals[1].Applied()).To(HaveLen(1))
	g.Expect(m.counts.Claims(testNamespace, metrics.ClaimClaimed)).To(Equal(2))
}

func TestAHostThatIsTakenInTheLastMomentIsNotTakenAgain(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	m := w.manager()
	w.beforeUpdate = func(object client.Object) {
		g.Expect(object.GetName()).To(Equal("h1"), "the first update is the claim")
		other := w.host("h1")
		other.Spec.ConsumerRef = infrav1.ConsumerReference{Kind: infrav1.TalosMachineKind, Namespace: testNamespace, Name: "z", ProviderID: "talos://z"}
		g.Expect(w.client.Update(t.Context(), other)).To(Succeed())
	}
	w.settle(m)
	g.Expect(w.host("h1").Spec.ConsumerRef.Name).To(Equal("z"))
	g.Expect(w.machine("a").Spec.HostRef).To(BeZero())
	g.Expect(conditions.Get(w.machine("a"), infrav1.AllocatedCondition).Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(m.counts.Claims(testNamespace, metrics.ClaimConflict)).To(Equal(1))
	g.Expect(m.counts.Claims(testNamespace, metrics.ClaimClaimed)).To(BeZero())
}

func TestNothingIsClaimedBeforeItsTime(t *testing.T) {
	tests := map[string]struct {
		change func(*world)
		reason string
	}{
		"the infrastructure of the cluster is not there": {
			change: func(w *world) {
				cluster := newCluster()
				g := NewWithT(w.t)
				g.Expect(w.client.Get(w.t.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
				cluster.Status.Initialization.InfrastructureProvisioned = nil
				g.Expect(w.client.Status().Update(w.t.Context(), cluster)).To(Succeed())
			},
			reason: infrav1.WaitingForClusterInfrastructureReason,
		},
		"there is no machine configuration": {
			change: func(w *world) { w.remove(get(w, &corev1.Secret{}, "a")) },
			reason: infrav1.WaitingForBootstrapDataReason,
		},
		"the Machine had another TalosMachine, which is gone": {
			change: func(w *world) {
				change(w, get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Spec.ProviderID = "talos://before" })
			},
			reason: infrav1.HostLostReason,
		},
		"the host has disks, and none is named": {
			change: func(w *world) {
				change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.Install = infrav1.HostInstall{} })
			},
			reason: infrav1.NoHostFitsReason,
		},
		"the maintenance certificate is another one than demanded": {
			change: func(w *world) {
				change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-0" })
			},
			reason: infrav1.NoHostFitsReason,
		},
		"the host is unschedulable": {
			change: func(w *world) {
				change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.Unschedulable = ptr.To(true) })
			},
			reason: infrav1.NoHostFitsReason,
		},
		"another machine answers": {
			change: func(w *world) {
				change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
			},
			reason: infrav1.NoHostFitsReason,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
			metal := w.addMachine("10.0.0.1")
			tt.change(w)
			w.settle(w.manager())
			g.Expect(conditions.Get(w.machine("a"), infrav1.AllocatedCondition).Reason).To(Equal(tt.reason))
			g.Expect(w.host("h1").Spec.ConsumerRef).To(BeZero())
			g.Expect(metal.Applied()).To(BeEmpty())
		})
	}
}

func TestAProviderIDOfTheHostIsTaken(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.ProviderID = "cloud://zone/7" }))...)
	metal := w.addMachine("10.0.0.1")
	w.settle(w.manager())
	g.Expect(w.machine("a").Spec.ProviderID).To(Equal("cloud://zone/7"))
	g.Expect(string(metal.Applied()[0])).To(ContainSubstring("provider-id: cloud://zone/7"))
}

func TestTheHandoverWaitsForTheSecretsOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	stored := get(w, &corev1.Secret{}, secrets.BundleName(testCluster))
	w.remove(stored)
	m := w.manager()
	w.settle(m)
	g.Expect(conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.WaitingForCredentialsReason))
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(w.host("h1").Spec.Handover).To(BeZero())

	g.Expect(w.client.Create(t.Context(), newBundleSecret(t))).To(Succeed())
	w.settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
}

func TestAConfigurationThatTalosRefuses(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	accept := metal.OnApply
	metal.OnApply = func(*talosfake.Machine, []byte) error {
		return fmt.Errorf("%w: no such disk", talosclient.ErrInvalidConfiguration)
	}
	m := w.manager()
	w.settle(m)
	condition := conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition)
	g.Expect(condition.Reason).To(Equal(infrav1.ConfigurationRefusedReason))
	g.Expect(condition.Message).To(ContainSubstring("no such disk"))
	before := w.host("h1").ResourceVersion
	w.settle(m)
	g.Expect(w.host("h1").ResourceVersion).To(Equal(before), "a refusal does not wake the controller by its own writes")

	metal.OnApply = accept
	w.settle(m)
	g.Expect(w.machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

func TestAMachineThatTakesItsConfigurationSlowlyIsNotAskedAgain(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	metal.OnApply = func(*talosfake.Machine, []byte) error { return nil }
	m := w.manager()
	for len(metal.Applied()) == 0 {
		w.round(m)
	}
	w.round(m)
	w.round(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(conditions.IsTrue(w.machine("a"), infrav1.ConfigurationAppliedCondition)).To(BeTrue())
	g.Expect(w.machine("a").Status.Initialization.Provisioned).To(BeNil())

	w.settle(m)
	g.Expect(len(metal.Applied())).To(BeNumerically(">", 1), "the call may have been lost inside the machine")
	metal.boot(false, bundle(t).TalosCA())
	w.settle(m)
	g.Expect(w.machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

func TestACallThatIsLostIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	metal.Fail("ApplyConfiguration", errors.New("connection reset"))
	m := w.manager()
	w.settle(m)
	g.Expect(conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.ApplyingConfigurationReason))
	g.Expect(w.host("h1").Spec.Handover.Progress).To(Equal(infrav1.HandoverStarted))
	g.Expect(w.host("h1").Annotations).To(HaveKey(infrav1.BlockMoveAnnotation))

	metal.Fail("ApplyConfiguration", nil)
	w.settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

func TestTheDemandedCertificateIsDemandedOfEveryBoot(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" }))...)
	metal := w.addMachine("10.0.0.1")
	metal.Fail("ApplyConfiguration", errors.New("connection reset"))
	m := w.manager()
	w.settle(m)
	g.Expect(conditions.IsTrue(w.machine("a"), infrav1.IdentityVerifiedCondition)).To(BeTrue())

	metal.Fail("ApplyConfiguration", nil)
	metal.boot(true, nil)
	w.settle(m)
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(conditions.Get(w.machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.FingerprintMismatchReason))

	change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-2" })
	w.settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
}
