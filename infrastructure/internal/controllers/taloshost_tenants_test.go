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
	"sigs.k8s.io/controller-runtime/pkg/client"

	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestAMachineThatHasRunIsHandedOverToNoOtherHost(t *testing.T) {
	forged := func(h *infrav1.TalosHost) {
		h.Spec.Handover = infrav1.HostHandover{ProviderID: "", Progress: infrav1.HandoverStarted, MaintenanceCertFingerprint: "boot-0"}
	}
	for name, records := range map[string]func(*harness.Environment) func(*infrav1.TalosHost){
		"no record of the hand-over": func(*harness.Environment) func(*infrav1.TalosHost) { return func(*infrav1.TalosHost) {} },
		"a hand-over that was only begun": func(w *harness.Environment) func(*infrav1.TalosHost) {
			providerID := w.Machine("a").Spec.ProviderID
			return func(h *infrav1.TalosHost) {
				forged(h)
				h.Spec.Handover.ProviderID = providerID
			}
		},
		"a machine that is being re-provisioned": func(w *harness.Environment) func(*infrav1.TalosHost) {
			previous := w.Host("h1").Spec.Handover
			return func(h *infrav1.TalosHost) {
				h.Spec.Reprovision = infrav1.HostReprovision{ClusterName: harness.TestCluster, Previous: previous}
				h.Spec.Reprovision.Previous.Identity = infrav1.HostIdentity{}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			thief := w.AddMachine("10.0.0.2")
			w.Remake("h1", "10.0.0.2", records(w))
			w.LoseStatus()
			w.Settle(m)
			g.Expect(thief.Applied()).To(BeEmpty(), "a configuration with the keys of the cluster")
			g.Expect(metal.Applied()).To(HaveLen(1))
			told := conditions.Get(w.Machine("a"), infrav1.RunningCondition)
			g.Expect(told.Status).To(Equal(metav1.ConditionFalse))
			g.Expect(told.Message).To(ContainSubstring("has run"))
		})
	}
}

// TestALostHandoverIsNoProofOfAWipe: whoever bootstraps etcd anew relies on that proof.
func TestALostHandoverIsNoProofOfAWipe(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	w.Remake("h1", "10.0.0.1")
	w.Settle(m)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Host("h1").Spec.Wiped).To(BeEmpty())
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError), "the machine is found configured")
	g.Expect(metal.Resets()).To(BeEmpty())
}

func TestAMachineInUseIsNotWipedThroughAnotherHost(t *testing.T) {
	for name, changes := range map[string][]func(*infrav1.TalosHost){
		"by a release": {}, "by a release, and an adoption": {harness.AdoptWith("theirs")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			w.AddTalosconfig("theirs")
			g.Expect(w.Client.Create(t.Context(), harness.NewHost("evil", "10.0.0.1", append(changes, func(h *infrav1.TalosHost) {
				h.CreationTimestamp = metav1.NewTime(harness.TestTime.Add(-time.Hour))
				h.Spec.AdoptionSecretRef.Name = "theirs"
				h.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: metav1.NewTime(harness.TestTime)}
			})...))).To(Succeed())
			w.Settle(m)
			g.Expect(metal.Resets()).To(BeEmpty())
			g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostProvisioned))
			harness.ExpectError(w, "evil", infrav1.HostIdentityReason, "TalosHost h1 stands for the same machine")
			g.Expect(conditions.Get(w.Host("evil"), infrav1.IdentityVerifiedCondition).Reason).To(Equal(infrav1.IdentityDuplicateReason))
		})
	}
}

func TestAReleaseWithoutAHandoverNeedsTheAdoptionPolicy(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("evil", "10.0.0.1", func(h *infrav1.TalosHost) {
		h.Spec.AdoptionSecretRef.Name = "theirs"
		h.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: metav1.NewTime(harness.TestTime)}
	}))
	metal := w.AddMachine("10.0.0.1")
	metal.Boot(false, harness.Bundle(t).TalosCA())
	w.AddTalosconfig("theirs")
	m := w.Manager()
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(conditions.Get(w.Host("evil"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.ReleaseUntrustedReason))

	harness.Change(w, w.Host("evil"), harness.AdoptWith("theirs"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "evil")
}

func TestBadInputAdoptionWithTheTalosconfigOfALivingCluster(t *testing.T) {
	owned := func(kind, name string) func(*corev1.Secret) {
		return func(s *corev1.Secret) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "any/v1", Kind: kind, Name: name, UID: "any"}}
		}
	}
	labelled := func(cluster string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.Labels = map[string]string{clusterv1.ClusterNameLabel: cluster} }
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Secret)
		taken  bool
	}{
		"that of a Cluster by its label":        {change: labelled(harness.TestCluster)},
		"that of a Cluster by its owner":        {change: owned("Cluster", harness.TestCluster)},
		"that of another TalosHost":             {change: owned("TalosHost", "other")},
		"that of a Cluster that is gone":        {change: labelled("gone"), taken: true},
		"that of a Cluster that owned it":       {change: owned("Cluster", "gone"), taken: true},
		"that of a TalosHost that is gone":      {change: owned("TalosHost", "gone"), taken: true},
		"one that somebody has made for it":     {change: func(*corev1.Secret) {}, taken: true},
		"one that something else has generated": {change: owned("ExternalSecret", harness.TestCluster), taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, harness.NewHost("h1", "10.0.0.1", harness.AdoptWith("theirs")), harness.NewHost("other", "10.0.0.9"))
			metal := w.AddMachine("10.0.0.1")
			metal.Boot(false, harness.Bundle(t).TalosCA())
			w.AddTalosconfig("theirs", tt.change)
			w.Settle(w.Manager())
			if tt.taken {
				g.Expect(metal.Resets()).To(HaveLen(1))
				harness.ExpectFree(w, "h1")
				return
			}
			g.Expect(metal.Resets()).To(BeEmpty())
			harness.ExpectError(w, "h1", infrav1.HostForeignReason, "Secret theirs belongs to")
		})
	}
}

// TestHostsOfOtherNamespacesDoNoHarm: their records, which nobody checks there, keep
// nothing from being used here, nor does what they name, and their names are not told.
func TestHostsOfOtherNamespacesDoNoHarm(t *testing.T) {
	foreign := func(changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
		h := harness.NewHost("secret-name", "10.0.0.1", changes...)
		h.Namespace, h.CreationTimestamp = "tenant", metav1.NewTime(harness.TestTime.Add(time.Hour))
		return h
	}
	mine := func() *infrav1.TalosHost {
		return harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.CreationTimestamp = metav1.NewTime(harness.TestTime) })
	}
	older := func(changes ...func(*infrav1.TalosHost)) *infrav1.TalosHost {
		h := foreign(changes...)
		h.CreationTimestamp = metav1.NewTime(harness.TestTime.Add(-time.Hour))
		return h
	}
	identityOf := func(uuid string) infrav1.HostIdentity { return infrav1.HostIdentity{UUID: uuid} }
	consumed := func(uuid string) func(h *infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) {
			h.Spec.ConsumerRef = infrav1.ConsumerReference{Kind: infrav1.TalosMachineKind, Namespace: "tenant", Name: "x", ProviderID: "talos://x"}
			h.Spec.Handover = infrav1.HostHandover{
				ProviderID: "talos://x", Progress: infrav1.HandoverRan, MaintenanceCertFingerprint: "boot-0", Identity: identityOf(uuid),
			}
		}
	}
	// uuid is that of the machine at 10.0.0.1.
	const uuid, otherUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e01", "4c4c4544-0042-3510-8053-b4c04f4d4e99"
	owner := &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "x"}, Spec: infrav1.TalosMachineSpec{ProviderID: "talos://x", Metal: &infrav1.TalosMachineMetalSpec{}},
	}
	// inUse has a machine of its own, and names the address of another one too.
	inUse := func() []client.Object {
		return []client.Object{owner.DeepCopy(), older(consumed(otherUUID), func(h *infrav1.TalosHost) {
			h.Spec.Addresses = []string{"10.0.0.9", "10.0.0.1"}
		})}
	}
	found := func(w *harness.Environment) *infrav1.TalosHost {
		host := &infrav1.TalosHost{}
		NewWithT(w.T).Expect(w.Client.Get(w.T.Context(), client.ObjectKey{Namespace: "tenant", Name: "secret-name"}, host)).To(Succeed())
		return host
	}
	// expectLeft: the other host does not get the machine of h1, and is not told its name.
	expectLeft := func(w *harness.Environment) {
		w.T.Helper()
		harness.ExpectFree(w, "h1")
		told := conditions.Get(found(w), infrav1.IdentityVerifiedCondition)
		NewWithT(w.T).Expect(told.Reason).To(Equal(infrav1.IdentityDuplicateReason))
		NewWithT(w.T).Expect(told.Message).To(HavePrefix("A TalosHost of another namespace stands for the same machine"))
	}
	t.Run("a claim of nobody", func(t *testing.T) {
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1"), foreign(consumed(uuid)))
		w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		harness.ExpectFree(w, "h1")
	})
	t.Run("a claim of nobody keeps no machine from its configuration", func(t *testing.T) {
		w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"), foreign(consumed(uuid)))...)
		metal := w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
	})
	t.Run("a true claim", func(t *testing.T) {
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1"), foreign(consumed(uuid)), owner.DeepCopy())
		w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		harness.ExpectError(w, "h1", infrav1.HostIdentityReason, "A TalosHost of another namespace stands for the same machine")
		for _, condition := range w.Host("h1").Status.Conditions {
			NewWithT(t).Expect(condition.Message).NotTo(ContainSubstring("secret-name"))
			NewWithT(t).Expect(condition.Message).NotTo(ContainSubstring("tenant"))
		}
	})
	t.Run("an older host that names the address of a machine that nobody has seen", func(t *testing.T) {
		w := harness.New(t, mine(), older())
		w.Settle(w.Manager())
		told := conditions.Get(w.Host("h1"), infrav1.IdentityVerifiedCondition)
		NewWithT(t).Expect(told.Reason).NotTo(Equal(infrav1.IdentityDuplicateReason))
	})
	t.Run("an older host that is pointed at a free machine", func(t *testing.T) {
		w := harness.New(t, mine(), older(func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"10.0.0.9"} }))
		w.AddMachine("10.0.0.1")
		w.AddMachine("10.0.0.9")
		m := w.Manager()
		w.Settle(m)
		NewWithT(t).Expect(found(w).Status.State).To(Equal(infrav1.HostAvailable))
		harness.Change(w, found(w), func(h *infrav1.TalosHost) {
			h.Spec.Addresses = []string{"10.0.0.1"}
			metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
		})
		w.Settle(m)
		expectLeft(w)
	})
	t.Run("an older host whose name leads to a free machine from now on", func(t *testing.T) {
		w := harness.New(t, mine(), older(func(h *infrav1.TalosHost) { h.Spec.Addresses = []string{"any.example.com"} }))
		metal := w.AddMachine("10.0.0.1")
		m := w.Manager()
		w.Settle(m)
		w.Dialer.Add("any.example.com", metal.Machine)
		w.Settle(m)
		expectLeft(w)
	})
	t.Run("an older host that names a machine that is off when it was seen before", func(t *testing.T) {
		w := harness.New(t, mine())
		metal := w.AddMachine("10.0.0.1")
		m := w.Manager()
		w.Settle(m)
		metal.SetSilent(true)
		w.Settle(m)
		NewWithT(t).Expect(w.Client.Create(t.Context(), older())).To(Succeed())
		w.Settle(m)
		metal.SetSilent(false)
		w.Settle(m)
		expectLeft(w)
	})
	t.Run("a host in use that names the address of a free machine too", func(t *testing.T) {
		w := harness.New(t, append(inUse(), mine())...)
		w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		harness.ExpectFree(w, "h1")
	})
	t.Run("a host in use that names the address of a machine that is to be configured", func(t *testing.T) {
		w := harness.New(t, append(append(inUse(), harness.NewMachine(t, "a")...), mine())...)
		metal := w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		NewWithT(t).Expect(metal.Applied()).To(HaveLen(1))
	})
	t.Run("a host in use that names the address of a machine that is given back", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		for _, object := range inUse() {
			g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
		}
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(metal.Resets()).To(HaveLen(1))
		harness.ExpectFree(w, "h1")
	})
	t.Run("the UUID of a free machine", func(t *testing.T) {
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Identity = identityOf(uuid) }), foreign(func(h *infrav1.TalosHost) {
			h.Spec.Addresses = []string{"10.0.0.9"}
			h.Spec.Identity = infrav1.HostIdentity{UUID: uuid, MACAddresses: []string{"b0:26:28:00:00:99"}}
		}))
		w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		harness.ExpectFree(w, "h1")
	})
	t.Run("the UUID of a machine that runs", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		uuid := metal.Snapshot().Hardware.SystemUUID
		h := harness.NewHost("liar", "10.0.0.9", func(h *infrav1.TalosHost) {
			h.Spec.Identity = infrav1.HostIdentity{UUID: uuid, MACAddresses: []string{"b0:26:28:00:00:99"}}
		})
		h.Namespace = "tenant"
		g.Expect(w.Client.Create(t.Context(), h)).To(Succeed())
		harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.Identity.UUID = uuid })
		w.Settle(m)
		metal.BreakWatches()
		w.Settle(m)
		g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.RunningCondition)).To(BeTrue())
		w.Remove(w.Machine("a"))
		w.Settle(m)
		g.Expect(metal.Resets()).To(HaveLen(1))
	})
}

// TestACertificateThatIsNamedAfterwardsProvesNothing: it is compared with the one that
// the machine had when it was given the keys.
func TestACertificateThatIsNamedAfterwardsProvesNothing(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	handedOver := w.Host("h1").Spec.Handover.MaintenanceCertFingerprint
	told := func(fingerprint string) *metav1.Condition {
		harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = fingerprint })
		metal.BreakWatches()
		w.Settle(m)
		return conditions.Get(w.Machine("a"), infrav1.IdentityVerifiedCondition)
	}
	g.Expect(told("")).To(And(HaveField("Reason", infrav1.NoFingerprintReason), HaveField("Status", metav1.ConditionUnknown)))
	other := told("boot-99")
	g.Expect(other.Status).To(Equal(metav1.ConditionFalse))
	g.Expect(other.Reason).To(Equal("FingerprintChanged"))
	g.Expect(other.Message).To(ContainSubstring("another certificate than maintenanceCertFingerprint of the TalosHost names"))
	g.Expect(told(handedOver).Status).To(Equal(metav1.ConditionTrue))
}

// TestAProviderIDOfAHostStaysWithIt: who has lost the race for such a host does not take
// its provider ID to another one.
func TestAProviderIDOfAHostStaysWithIt(t *testing.T) {
	g := NewWithT(t)
	const named = "talos://named-by-the-host"
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.ProviderID = named }))...)
	w.AddMachine("10.0.0.1")
	w.AddMachine("10.0.0.2")
	m := w.Manager()
	w.BeforeUpdate = func(client.Object) {
		other := w.Host("h1")
		other.Spec.ConsumerRef = infrav1.ConsumerReference{Kind: infrav1.TalosMachineKind, Namespace: harness.TestNamespace, Name: "z", ProviderID: named}
		g.Expect(w.Client.Update(t.Context(), other)).To(Succeed())
		g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.2"))).To(Succeed())
	}
	w.Settle(m)
	g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h2"))
	g.Expect(w.Machine("a").Spec.ProviderID).To(HavePrefix(infrav1.ProviderIDPrefix))
	g.Expect(w.Machine("a").Spec.ProviderID).NotTo(Equal(named))
}

// TestAnAdoptionRemembersTheMachine, whatever becomes of the status.
func TestAnAdoptionRemembersTheMachine(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1", harness.AdoptWith("theirs")))
	metal := w.AddMachine("10.0.0.1")
	metal.Boot(false, harness.Bundle(t).TalosCA())
	w.AddTalosconfig("theirs")
	m := w.Manager()
	for w.Host("h1").Spec.Release.Policy == "" {
		w.Round(m)
	}
	resets := len(metal.Resets())
	metal.Update(func(s *talosfake.State) {
		s.Hardware.SystemUUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99"
		s.Hardware.Links[0].HardwareAddress = "b0:26:28:00:00:99"
	})
	w.LoseStatus()
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(resets))
	g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.ReleaseIdentityReason))
}

// TestTheKeyOfAnotherHostIsNotForAdoption: each host in use has one in the namespace.
func TestTheKeyOfAnotherHostIsNotForAdoption(t *testing.T) {
	g := NewWithT(t)
	w, m, _ := harness.Provisioned(t)
	other := w.AddMachine("10.0.0.2")
	other.Boot(false, harness.Bundle(t).TalosCA())
	g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.2", harness.AdoptWith(credentials.AdminName("h1"))))).To(Succeed())
	w.Settle(m)
	g.Expect(other.Resets()).To(BeEmpty())
	harness.ExpectError(w, "h2", infrav1.HostForeignReason, "Secret h1-talos-admin belongs to")
}

// TestAMachineWithAnotherProviderIDIsNotWiped: a host that is restored from an old backup,
// in which it was being released, stands for what the machine was then.
func TestAMachineWithAnotherProviderIDIsNotWiped(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Update(func(s *talosfake.State) { s.ProviderID = "talos://its-next-life" })
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	released := conditions.Get(w.Host("h1"), infrav1.ReleasedCondition)
	g.Expect(released.Reason).To(Equal(infrav1.ReleaseOtherClaimReason))
	g.Expect(released.Message).To(ContainSubstring("another provider ID"))

	metal.Fail("ProviderID", errors.New("connection reset by peer"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty(), "nobody knows")
	g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Message).To(ContainSubstring("does not tell the provider ID"))

	metal.Fail("ProviderID", nil)
	metal.Update(func(s *talosfake.State) { s.ProviderID = w.Host("h1").Spec.Handover.ProviderID })
	w.Live(m, 2*time.Minute)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "h1")
}
