package controllers

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestAFreeHostSaysWhatItIs(t *testing.T) {
	tests := map[string]struct {
		change func(*world, *bareMetal)
		state  infrav1.HostState
		reason string
	}{
		"in maintenance mode":            {state: infrav1.HostAvailable, reason: infrav1.HostAvailableReason},
		"silent":                         {change: func(_ *world, b *bareMetal) { b.SetSilent(true) }, state: infrav1.HostUnknown, reason: infrav1.HostUnreachableReason},
		"configured by somebody else":    {change: func(_ *world, b *bareMetal) { b.boot(false, []byte("theirs")) }, state: infrav1.HostError, reason: infrav1.HostForeignReason},
		"without anything to know it by": {change: anonymous, state: infrav1.HostError, reason: infrav1.HostIdentityReason},
		"another one than named": {
			change: func(w *world, _ *bareMetal) {
				change(w, w.host("h1"), func(h *infrav1.TalosHost) { h.Spec.Identity.MACAddresses = []string{"b0:26:28:00:00:99"} })
			},
			state: infrav1.HostError, reason: infrav1.HostIdentityReason,
		},
		"named twice": {
			change: func(w *world, _ *bareMetal) {
				NewWithT(w.t).Expect(w.client.Create(w.t.Context(), newHost("h0", "10.0.0.1"))).To(Succeed())
			},
			state: infrav1.HostError, reason: infrav1.HostIdentityReason,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, newHost("h1", "10.0.0.1"))
			metal := w.addMachine("10.0.0.1")
			if tt.change != nil {
				tt.change(w, metal)
			}
			w.settle(w.manager())
			host := w.host("h1")
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

func anonymous(_ *world, b *bareMetal) {
	b.Update(func(s *talosfake.State) {
		s.Hardware.SystemUUID = "00000000-0000-0000-0000-000000000000"
		s.Hardware.Links = []talosclient.Link{{Name: "eno1", HardwareAddress: "00:00:00:00:00:00"}}
	})
}

func TestTheAddressesOfAHostAreTriedInOrder(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.9", func(h *infrav1.TalosHost) {
		h.Spec.Network = infrav1.HostNetwork{Interface: "eno1", Addresses: []string{"10.0.0.1/24"}}
	}))
	w.addMachine("10.0.0.1")
	w.settle(w.manager())
	g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostAvailable))
	g.Expect(w.host("h1").Status.Address).To(Equal("10.0.0.1"))
	g.Expect(w.host("h1").Spec.Addresses).To(Equal([]string{"10.0.0.9"}))
}

func TestAForeignMachineIsWipedWhenTheUserSaysSo(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy = infrav1.AdoptionWipeForeign
		h.Spec.AdoptionSecretRef.Name = "theirs"
	}))
	metal := w.addMachine("10.0.0.1")
	metal.boot(false, bundle(t).TalosCA())
	m := w.manager()
	w.settle(m)
	g.Expect(conditions.Get(w.host("h1"), infrav1.AvailableCondition).Message).To(ContainSubstring("Secret theirs holds no talosconfig"))

	creds, err := bundle(t).ClientCredentials(secrets.RoleAdmin, testTime, 24*time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "theirs"}, Data: map[string][]byte{"talosconfig": talosconfig},
	})).To(Succeed())
	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	expectFree(w, "h1")
	g.Expect(w.exists(&corev1.Secret{}, "theirs")).To(BeTrue(), "it is the user's")
}

func TestAFreeHostObjectIsDeletedAtOnce(t *testing.T) {
	w := newWorld(t, newHost("h1", "10.0.0.1"))
	w.addMachine("10.0.0.1")
	m := w.manager()
	w.settle(m)
	w.remove(w.host("h1"))
	w.settle(m)
	NewWithT(t).Expect(w.exists(&infrav1.TalosHost{}, "h1")).To(BeFalse())
}

func TestAPausedHostIsNotLookedAt(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	}))
	w.addMachine("10.0.0.1")
	w.settle(w.manager())
	g.Expect(w.host("h1").Status.State).To(BeEmpty())
	g.Expect(conditions.IsTrue(w.host("h1"), clusterv1.PausedCondition)).To(BeTrue())
	g.Expect(w.host("h1").Finalizers).To(BeEmpty())
}

func TestTalosCluster(t *testing.T) {
	inDomain := func(domain string) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) { h.Spec.FailureDomain = domain }
	}
	t.Run("is provisioned with its endpoint, and knows the failure domains", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, newHost("h1", "10.0.0.1", inDomain("b")), newHost("h2", "10.0.0.2", inDomain("a")), newHost("h3", "10.0.0.3", inDomain("b")))
		w.addMachine("10.0.0.2")
		w.settle(w.manager())
		cluster := get(w, &infrav1.TalosCluster{}, testCluster)
		g.Expect(cluster.Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
		g.Expect(cluster.Status.FailureDomains).To(Equal([]clusterv1.FailureDomain{
			{Name: "a", ControlPlane: ptr.To(true), Attributes: map[string]string{infrav1.FreeHostsAttribute: infrav1.FreeHostsSome}},
			{Name: "b", ControlPlane: ptr.To(true), Attributes: map[string]string{infrav1.FreeHostsAttribute: infrav1.FreeHostsNone}},
		}))
		g.Expect(conditions.IsTrue(cluster, infrav1.ReadyCondition)).To(BeTrue())
	})
	t.Run("waits for an endpoint, here or on the Cluster", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t)
		change(w, get(w, &infrav1.TalosCluster{}, testCluster), func(c *infrav1.TalosCluster) { c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{} })
		m := w.manager()
		w.settle(m)
		cluster := get(w, &infrav1.TalosCluster{}, testCluster)
		g.Expect(cluster.Status.Initialization.Provisioned).To(BeNil())
		g.Expect(conditions.Get(cluster, infrav1.ReadyCondition).Reason).To(Equal(infrav1.WaitingForControlPlaneEndpointReason))

		change(w, get(w, &clusterv1.Cluster{}, testCluster), func(c *clusterv1.Cluster) {
			c.Spec.ControlPlaneEndpoint = clusterv1.APIEndpoint{Host: "lb.example.com", Port: 443}
		})
		w.settle(m)
		g.Expect(get(w, &infrav1.TalosCluster{}, testCluster).Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	})
	t.Run("stays until its TalosMachines are gone", func(t *testing.T) {
		g := NewWithT(t)
		w, m, _ := provisioned(t)
		w.remove(get(w, &infrav1.TalosCluster{}, testCluster))
		w.settle(m)
		cluster := get(w, &infrav1.TalosCluster{}, testCluster)
		g.Expect(conditions.Get(cluster, infrav1.DeletingCondition).Message).To(Equal("Waiting for TalosMachines to be gone: a"))
		w.remove(w.machine("a"))
		w.settle(m)
		g.Expect(w.exists(&infrav1.TalosCluster{}, testCluster)).To(BeFalse())
	})
	t.Run("is left alone when somebody else manages it, or when it is paused", func(t *testing.T) {
		for annotation, finding := range map[string]bool{clusterv1.ManagedByAnnotation: false, clusterv1.PausedAnnotation: true} {
			g := NewWithT(t)
			w := newWorld(t)
			change(w, get(w, &infrav1.TalosCluster{}, testCluster), func(c *infrav1.TalosCluster) {
				metav1.SetMetaDataAnnotation(&c.ObjectMeta, annotation, "")
			})
			w.settle(w.manager())
			cluster := get(w, &infrav1.TalosCluster{}, testCluster)
			g.Expect(cluster.Finalizers).To(BeEmpty())
			g.Expect(conditions.Has(cluster, clusterv1.PausedCondition)).To(Equal(finding))
			g.Expect(cluster.Status.Initialization.Provisioned).To(BeNil())
		}
	})
}

func TestAMachineIsFollowedToItsStaticAddress(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.9", func(h *infrav1.TalosHost) {
		h.Spec.Network = infrav1.HostNetwork{Interface: "eno1", Addresses: []string{"10.0.0.1/24"}}
	}))...)
	metal := w.addMachine("10.0.0.9")
	metal.OnApply = func(machine *talosfake.Machine, _ []byte) error {
		metal.boot(false, bundle(t).TalosCA())
		w.dialer.Add("10.0.0.9", talosfake.NewMachine(talosfake.State{Maintenance: true, Hardware: talosclient.Hardware{SystemUUID: "4c4c4544-0042-3510-8053-b4c04f4d4e77"}}))
		w.dialer.Add("10.0.0.1", machine)
		return nil
	}
	m := w.manager()
	w.settle(m)
	g.Expect(conditions.IsTrue(w.machine("a"), infrav1.ReadyCondition)).To(BeTrue(), "another machine has its old address, and is passed over")
	g.Expect(metal.Applied()).To(HaveLen(1))
	g.Expect(w.host("h1").Spec.Addresses).To(Equal([]string{"10.0.0.9"}), "the user's field is the user's")
	g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
}

func TestAStrangerThatIsAdoptedBlocksAMove(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, "theirs"
	}))
	metal := w.addMachine("10.0.0.1")
	metal.boot(false, bundle(t).TalosCA())
	metal.OnReset = func(*talosfake.Machine, talosclient.ResetOptions) error { return nil }
	creds, err := bundle(t).ClientCredentials(secrets.RoleAdmin, testTime, 24*time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(w.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "theirs"}, Data: map[string][]byte{"talosconfig": talosconfig},
	})).To(Succeed())
	m := w.manager()
	w.settle(m)
	g.Expect(w.host("h1").Annotations).To(HaveKey(infrav1.BlockMoveAnnotation))
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Normal Adopting ")))

	// Another machine at the address, whatever it accepts, is not wiped for it.
	resets := len(metal.Resets())
	metal.Update(func(s *talosfake.State) { s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
	w.wait(time.Hour)
	w.settle(m)
	g.Expect(metal.Resets()).To(HaveLen(resets))
	g.Expect(conditions.Get(w.host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.ReleaseIdentityReason))
}

func TestAResetThatIsNotConfirmedIsToldAgain(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	metal.Fail("Reset", errors.New("connection reset by peer"))
	w.remove(w.machine("a"))
	w.round(m)
	w.round(m)
	w.round(m)
	record := w.host("h1").Spec.Release
	g.Expect(record.ResetAt.IsZero()).To(BeFalse(), "perhaps it was told")
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning ResetFailed ")))
	writes := w.life.Effects()
	w.live(m, 30*time.Second)
	g.Expect(w.life.Effects()-writes).To(BeNumerically("<=", 1), "it is not written down again and again")

	metal.Fail("Reset", nil)
	w.live(m, 3*time.Minute)
	g.Expect(metal.Resets()).To(HaveLen(1))
	expectFree(w, "h1")
}

func TestAQuarantineIsAnEventAndEnds(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(testTime) }))
	w.addMachine("10.0.0.1")
	m := w.manager()
	w.settle(m)
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning Quarantined An unhealthy Machine has given the host back")))
	change(w, w.host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.settle(m)
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Normal QuarantineEnded ")))
	g.Expect(w.host("h1").Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
	g.Expect(conditions.IsTrue(w.host("h1"), infrav1.AvailableCondition)).To(BeTrue())
}

func TestAClaimedHostWhoseStatusIsLostIsConfiguredAllTheSame(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	metal.SetSilent(false)
	stored := get(w, &corev1.Secret{}, secrets.BundleName(testCluster))
	w.remove(stored)
	m := w.manager()
	w.settle(m)
	g.Expect(w.machine("a").Spec.HostRef.Claim).To(Equal(infrav1.HostClaimBound))
	w.loseStatus()
	g.Expect(w.client.Create(t.Context(), newBundleSecret(t))).To(Succeed())
	w.settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1), "the machine tells what its host has forgotten")
	g.Expect(string(metal.Applied()[0])).To(ContainSubstring("installer:v1.13.9"))
}
