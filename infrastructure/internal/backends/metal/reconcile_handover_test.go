package metal_test

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestTheHandoverWaitsForTheSecretsOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	stored := harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster))
	w.Remove(stored)
	m := w.Manager()
	w.Settle(m)
	g.Expect(conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.WaitingForCredentialsReason))
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(w.Host("h1").Spec.Handover).To(BeZero())

	g.Expect(w.Client.Create(t.Context(), harness.NewBundleSecret(t))).To(Succeed())
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
}

func TestAConfigurationThatTalosRefuses(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	accept := metal.OnApply
	metal.OnApply = func(*talosfake.Machine, []byte) error {
		return fmt.Errorf("%w: no such disk", talosclient.ErrInvalidConfiguration)
	}
	m := w.Manager()
	w.Settle(m)
	condition := conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition)
	g.Expect(condition.Reason).To(Equal(infrav1.ConfigurationRefusedReason))
	g.Expect(condition.Message).To(ContainSubstring("no such disk"))
	before := w.Host("h1").ResourceVersion
	w.Settle(m)
	g.Expect(w.Host("h1").ResourceVersion).To(Equal(before), "a refusal does not wake the controller by its own writes")

	metal.OnApply = accept
	w.Settle(m)
	g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

func TestAMachineThatTakesItsConfigurationSlowlyIsNotAskedAgain(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	metal.OnApply = func(*talosfake.Machine, []byte) error { return nil }
	m := w.Manager()
	for len(metal.Applied()) == 0 {
		w.Round(m)
	}
	w.Round(m)
	w.Round(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ConfigurationAppliedCondition)).To(BeTrue())
	g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(BeNil())

	w.Settle(m)
	g.Expect(len(metal.Applied())).To(BeNumerically(">", 1), "the call may have been lost inside the machine")
	metal.Boot(false, harness.Bundle(t).TalosCA())
	w.Settle(m)
	g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

func TestACallThatIsLostIsMadeAgain(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	metal.Fail("ApplyConfiguration", errors.New("connection reset"))
	m := w.Manager()
	w.Settle(m)
	g.Expect(conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.ApplyingConfigurationReason))
	g.Expect(w.Host("h1").Spec.Handover.Progress).To(Equal(infrav1.HandoverStarted))
	g.Expect(w.Host("h1").Annotations).To(HaveKey(infrav1.BlockMoveAnnotation))

	metal.Fail("ApplyConfiguration", nil)
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
}

func TestTheDemandedCertificateIsDemandedOfEveryBoot(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-1" }))...)
	metal := w.AddMachine("10.0.0.1")
	metal.Fail("ApplyConfiguration", errors.New("connection reset"))
	m := w.Manager()
	w.Settle(m)
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.IdentityVerifiedCondition)).To(BeTrue())

	metal.Fail("ApplyConfiguration", nil)
	metal.Boot(true, nil)
	w.Settle(m)
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(conditions.Get(w.Machine("a"), infrav1.ConfigurationAppliedCondition).Reason).To(Equal(infrav1.FingerprintMismatchReason))

	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-2" })
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
}
