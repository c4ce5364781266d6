package metal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

var errTest = errors.New("the connection was reset")

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

func TestTheHandoverWaitsForABundleThatCanBeRead(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	bundle := func(content []byte) {
		harness.Change(w, harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster)), func(s *corev1.Secret) { s.Data[secrets.BundleKey] = content })
	}
	bundle([]byte("?"))
	m := w.Manager()
	w.Settle(m)
	for _, kind := range []string{infrav1.ConfigurationAppliedCondition, infrav1.ReadyCondition} {
		w.ExpectTold("a", kind, infrav1.WaitingForCredentialsReason, secrets.BundleName(harness.TestCluster), "restore")
	}
	g.Expect(metal.Applied()).To(BeEmpty())

	bundle(harness.NewBundleSecret(t).Data[secrets.BundleKey])
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
}

// TestTheHandoverTellsThatNoCertificateCanBeStored: a machine that has its host does not
// wait for one, though the condition said so before.
func TestTheHandoverTellsThatNoCertificateCanBeStored(t *testing.T) {
	for name, words := range map[string]string{"exceeded quota: secrets": "exceeded quota: secrets", "": "see the log of the manager"} {
		t.Run(words, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, harness.NewMachine(t, "a")...)
			m := w.Manager()
			w.Settle(m)
			w.ExpectTold("a", infrav1.ConfigurationAppliedCondition, infrav1.WaitingForHostReason, "Waiting for a host")

			g.Expect(w.Client.Create(t.Context(), harness.NewHost("h1", "10.0.0.1"))).To(Succeed())
			metal := w.AddMachine("10.0.0.1")
			w.PodRuntime.Refuse = func(object client.Object) error {
				switch {
				case object.GetName() != credentials.AdminName("h1"):
					return nil
				case name == "":
					return errTest
				}
				return harness.Forbidden(object, name)
			}
			isExpected := func(err error) bool { return errors.Is(err, errTest) || apierrors.IsForbidden(err) }
			for range harness.Rounds {
				w.RoundWith(m, isExpected)
			}
			for _, kind := range []string{infrav1.ConfigurationAppliedCondition, infrav1.ReadyCondition} {
				w.ExpectTold("a", kind, infrav1.WaitingForCredentialsReason, "Secret h1-talos-admin cannot be written", "it is tried again", words)
			}
			g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.AllocatedCondition)).To(BeTrue())
			g.Expect(metal.Applied()).To(BeEmpty())
			before := w.Machine("a").ResourceVersion
			w.RoundWith(m, isExpected)
			g.Expect(w.Machine("a").ResourceVersion).To(Equal(before), "what does not change is not written")

			w.PodRuntime.Refuse = nil
			w.Settle(m)
			g.Expect(metal.Applied()).To(HaveLen(1))
		})
	}
}

// TestAMachineThatHasItsHostWaitsForNone: also where nothing could be found out about its
// configuration.
func TestAMachineThatHasItsHostWaitsForNone(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewMachine(t, "a")...)
	w.Settle(w.Manager())
	g.Expect(w.Client.Create(t.Context(), harness.NewHost("h1", "10.0.0.1"))).To(Succeed())
	w.AddMachine("10.0.0.1")
	w.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.UpdateOption) error {
			if host, isHost := object.(*infrav1.TalosHost); isHost && host.Spec.Handover.ProviderID != "" {
				return errTest
			}
			return c.Update(ctx, object, opts...)
		},
	})
	m := w.Manager()
	for range harness.Rounds {
		w.RoundWith(m, func(err error) bool { return errors.Is(err, errTest) })
	}
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.AllocatedCondition)).To(BeTrue())
	for _, kind := range []string{infrav1.ConfigurationAppliedCondition, infrav1.ReadyCondition} {
		w.ExpectTold("a", kind, infrav1.ApplyingConfigurationReason, "not handed over yet", "the log of the manager")
	}
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
