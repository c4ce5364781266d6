package controllers_test

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAFreeHostSaysWhatItIs(t *testing.T) {
	tests := map[string]struct {
		change func(*harness.Environment, *harness.BareMetal)
		state  infrav1.HostState
		reason string
	}{
		"in maintenance mode":            {state: infrav1.HostAvailable, reason: infrav1.HostAvailableReason},
		"silent":                         {change: func(_ *harness.Environment, b *harness.BareMetal) { b.SetSilent(true) }, state: infrav1.HostUnknown, reason: infrav1.HostUnreachableReason},
		"configured by somebody else":    {change: func(_ *harness.Environment, b *harness.BareMetal) { b.Boot(false, []byte("theirs")) }, state: infrav1.HostError, reason: infrav1.HostForeignReason},
		"without anything to know it by": {change: anonymous, state: infrav1.HostError, reason: infrav1.HostIdentityReason},
		"another one than named": {
			change: func(w *harness.Environment, _ *harness.BareMetal) {
				harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.Identity.MACAddresses = []string{"b0:26:28:00:00:99"} })
			},
			state: infrav1.HostError, reason: infrav1.HostIdentityReason,
		},
		"named twice": {
			change: func(w *harness.Environment, _ *harness.BareMetal) {
				NewWithT(w.T).Expect(w.Client.Create(w.T.Context(), harness.NewHost("h0", "10.0.0.1"))).To(Succeed())
			},
			state: infrav1.HostError, reason: infrav1.HostIdentityReason,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, harness.NewHost("h1", "10.0.0.1"))
			metal := w.AddMachine("10.0.0.1")
			if tt.change != nil {
				tt.change(w, metal)
			}
			w.Settle(w.Manager())
			host := w.Host("h1")
			g.Expect(host.Status.State).To(Equal(tt.state))
			g.Expect(conditions.Get(host, infrav1.AvailableCondition).Reason).To(Equal(tt.reason))
			g.Expect(metal.Resets()).To(BeEmpty())
			for _, kind := range []string{
				infrav1.AvailableCondition, infrav1.ReachableCondition, infrav1.IdentityVerifiedCondition, infrav1.ConsumerPresentCondition,
				infrav1.ReleasedCondition, infrav1.DeletingCondition, clusterv1.PausedCondition,
			} {
				g.Expect(conditions.Get(host, kind)).NotTo(BeNil(), kind)
			}
		})
	}
}

func anonymous(_ *harness.Environment, b *harness.BareMetal) {
	b.Update(func(s *talosfake.State) {
		s.Hardware.SystemUUID = "00000000-0000-0000-0000-000000000000"
		s.Hardware.Links = []talosclient.Link{{Name: "eno1", HardwareAddress: "00:00:00:00:00:00"}}
	})
}

func TestTheAddressesOfAHostAreTriedInOrder(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.9", func(h *infrav1.TalosHost) {
		h.Spec.Network = infrav1.HostNetwork{Interface: "eno1", Addresses: []string{"10.0.0.1/24"}}
	}))
	w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostAvailable))
	g.Expect(w.Host("h1").Status.Address).To(Equal("10.0.0.1"))
	g.Expect(w.Host("h1").Spec.Addresses).To(Equal([]string{"10.0.0.9"}))
}

func TestAForeignMachineIsWipedWhenTheUserSaysSo(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy = infrav1.AdoptionWipeForeign
		h.Spec.AdoptionSecretRef.Name = "theirs"
	}))
	metal := w.AddMachine("10.0.0.1")
	metal.Boot(false, harness.Bundle(t).TalosCA())
	m := w.Manager()
	w.Settle(m)
	g.Expect(conditions.Get(w.Host("h1"), infrav1.AvailableCondition).Message).To(ContainSubstring("Secret theirs holds no talosconfig"))

	creds, err := harness.Bundle(t).ClientCredentials(secrets.RoleAdmin, harness.TestTime, 24*time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: "theirs"}, Data: map[string][]byte{"talosconfig": talosconfig},
	})).To(Succeed())
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "h1")
	g.Expect(w.Exists(&corev1.Secret{}, "theirs")).To(BeTrue(), "it is the user's")
}

func TestAFreeHostObjectIsDeletedAtOnce(t *testing.T) {
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1"))
	w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	w.Remove(w.Host("h1"))
	w.Settle(m)
	NewWithT(t).Expect(w.Exists(&infrav1.TalosHost{}, "h1")).To(BeFalse())
}

func TestAPausedHostIsNotLookedAt(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	}))
	w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	g.Expect(w.Host("h1").Status.State).To(BeEmpty())
	g.Expect(conditions.IsTrue(w.Host("h1"), clusterv1.PausedCondition)).To(BeTrue())
	g.Expect(w.Host("h1").Finalizers).To(BeEmpty())
}

func TestAMachineIsFollowedToItsStaticAddress(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.9", func(h *infrav1.TalosHost) {
		h.Spec.Network = infrav1.HostNetwork{Interface: "eno1", Addresses: []string{"10.0.0.1/24"}}
	}))...)
	metal := w.AddMachine("10.0.0.9")
	metal.OnApply = func(machine *talosfake.Machine, _ []byte) error {
		metal.Boot(false, harness.Bundle(t).TalosCA())
		w.Dialer.Add("10.0.0.9", talosfake.NewMachine(talosfake.State{Maintenance: true, Hardware: talosclient.Hardware{SystemUUID: "4c4c4544-0042-3510-8053-b4c04f4d4e77"}}))
		w.Dialer.Add("10.0.0.1", machine)
		return nil
	}
	m := w.Manager()
	w.Settle(m)
	g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue(), "another machine has its old address, and is passed over")
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.Host("h1").Spec.Addresses).To(Equal([]string{"10.0.0.9"}), "the user's field is the user's")
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
}

func TestAStrangerThatIsAdoptedBlocksAMove(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, "theirs"
	}))
	metal := w.AddMachine("10.0.0.1")
	metal.Boot(false, harness.Bundle(t).TalosCA())
	metal.OnReset = func(*talosfake.Machine, talosclient.ResetOptions) error { return nil }
	creds, err := harness.Bundle(t).ClientCredentials(secrets.RoleAdmin, harness.TestTime, 24*time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: "theirs"}, Data: map[string][]byte{"talosconfig": talosconfig},
	})).To(Succeed())
	m := w.Manager()
	w.Settle(m)
	g.Expect(w.Host("h1").Annotations).To(HaveKey(infrav1.BlockMoveAnnotation))
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Normal Adopting ")))

	// Another machine at the address, whatever it accepts, is not wiped for it.
	resets := len(metal.Resets())
	metal.Update(func(s *talosfake.State) { s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
	w.Wait(time.Hour)
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(resets))
	g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.ReleaseIdentityReason))
}

func TestAResetThatIsNotConfirmedIsToldAgain(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Fail("Reset", errors.New("connection reset by peer"))
	w.Remove(w.Machine("a"))
	w.Round(m)
	w.Round(m)
	w.Round(m)
	record := w.Host("h1").Spec.Release
	g.Expect(record.ResetAt.IsZero()).To(BeFalse(), "perhaps it was told")
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning ResetFailed ")))
	writes := w.Life.Effects()
	w.Live(m, 30*time.Second)
	g.Expect(w.Life.Effects()-writes).To(BeNumerically("<=", 1), "it is not written down again and again")

	metal.Fail("Reset", nil)
	w.Live(m, 3*time.Minute)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "h1")
}

func TestAQuarantineIsAnEventAndEnds(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(harness.TestTime) }))
	w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning Quarantined An unhealthy Machine has given the host back")))
	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.Settle(m)
	g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Normal QuarantineEnded ")))
	g.Expect(w.Host("h1").Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
	g.Expect(conditions.IsTrue(w.Host("h1"), infrav1.AvailableCondition)).To(BeTrue())
}

func TestAClaimedHostWhoseStatusIsLostIsConfiguredAllTheSame(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	metal.SetSilent(false)
	stored := harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster))
	w.Remove(stored)
	m := w.Manager()
	w.Settle(m)
	g.Expect(w.Machine("a").Spec.HostRef.Claim).To(Equal(infrav1.HostClaimBound))
	w.LoseStatus()
	g.Expect(w.Client.Create(t.Context(), harness.NewBundleSecret(t))).To(Succeed())
	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1), "the machine tells what its host has forgotten")
	g.Expect(string(metal.Applied()[0])).To(ContainSubstring("installer:v1.13.9"))
}
