package metal_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
)

func TestTwoMachinesWantOneHost(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(append(harness.NewMachine(t, "a"), harness.NewMachine(t, "b")...), harness.NewHost("h1", "10.0.0.1"))...)
	metals := []*harness.BareMetal{w.AddMachine("10.0.0.1"), w.AddMachine("10.0.0.2")}
	m := w.Manager()
	w.Settle(m)

	winner, loser := w.Machine("a"), w.Machine("b")
	if loser.Spec.HostRef.Name != "" {
		winner, loser = loser, winner
	}
	g.Expect(winner.Spec.HostRef.Name).To(Equal("h1"))
	g.Expect(loser.Spec.HostRef).To(BeZero())
	waiting := conditions.Get(loser, infrav1.AllocatedCondition)
	g.Expect(waiting.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(waiting.Message).To(Equal("No TalosHost of 1 can be claimed: 1 claimed"))
	g.Expect(conditions.Get(loser, infrav1.ReadyCondition).Reason).To(Equal(infrav1.NoHostFitsReason))

	g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.2"))).To(Succeed())
	w.Settle(m)
	g.Expect(w.Machine(loser.Name).Spec.HostRef.Name).To(Equal("h2"))
	g.Expect(w.Machine("a").Spec.ProviderID).NotTo(Equal(w.Machine("b").Spec.ProviderID))
	g.Expect(metals[0].Applied()).To(HaveLen(1))
	g.Expect(metals[1].Applied()).To(HaveLen(1))
	g.Expect(m.Counts.Claims(harness.TestNamespace, metrics.ClaimClaimed)).To(Equal(2))
}

// TestWhatCannotBeReadIsNoMistakeOfTheUser: no selector is called wrong because of it.
func TestWhatCannotBeReadIsNoMistakeOfTheUser(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	w.AddMachine("10.0.0.1")
	harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(machine *clusterv1.Machine) {
		machine.Spec.Bootstrap.ConfigRef = clusterv1.ContractVersionedObjectReference{APIGroup: bootstrapv1.GroupVersion.Group, Kind: "TalosConfig", Name: "a"}
	})
	w.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			if _, isConfig := into.(*bootstrapv1.TalosConfig); isConfig {
				return errTest
			}
			return c.Get(ctx, key, into, opts...)
		},
	})
	w.RoundWith(w.Manager(), func(err error) bool { return errors.Is(err, errTest) })
	g.Expect(w.Told("a", infrav1.AllocatedCondition).Reason).NotTo(Equal(infrav1.InvalidSelectorReason))
	g.Expect(w.Recorded()).NotTo(ContainElement(ContainSubstring(infrav1.EventAttention)))
}

// TestTheControlPlaneGetsItsHostFirst: of a worker and a control plane with one host, the
// worker never gets it, whoever asks first.
func TestTheControlPlaneGetsItsHostFirst(t *testing.T) {
	g := NewWithT(t)
	// Rounds go by name, and the control plane is made late.
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	w.AddMachine("10.0.0.1")
	w.AddMachine("10.0.0.2")
	harness.Change(w, harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster), func(c *clusterv1.Cluster) {
		c.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: "controlplane.cluster.x-k8s.io", Kind: "TalosControlPlane", Name: "cp"}
	})
	m := w.Manager()
	expectWaiting := func(message string) {
		t.Helper()
		g.Expect(w.Machine("a").Spec.HostRef).To(BeZero())
		found := conditions.Get(w.Machine("a"), infrav1.AllocatedCondition)
		g.Expect(found.Reason).To(Equal(infrav1.WaitingForControlPlaneReason))
		g.Expect(found.Message).To(Equal(message))
	}
	w.Settle(m)
	expectWaiting("Waiting for the control plane, which is not initialized and has no TalosMachine yet that gets its TalosHost first")

	for _, object := range harness.NewMachine(t, "b") {
		object.SetLabels(map[string]string{clusterv1.ClusterNameLabel: harness.TestCluster, clusterv1.MachineControlPlaneLabel: ""})
		if machine, is := object.(*clusterv1.Machine); is {
			machine.Spec.Bootstrap.DataSecretName = nil
		}
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	expectWaiting("Waiting for TalosMachine b of the control plane, which gets its TalosHost first")

	harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "b"), func(b *clusterv1.Machine) { b.Spec.Bootstrap.DataSecretName = ptr.To("b") })
	w.Settle(m)
	g.Expect(w.Machine("b").Spec.HostRef.Name).To(Equal("h1"))
	g.Expect(conditions.Get(w.Machine("a"), infrav1.AllocatedCondition).Reason).To(Equal(infrav1.NoHostFitsReason))

	g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.2"))).To(Succeed())
	w.Settle(m)
	g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h2"), "it does not wait for the control plane to be initialized")
}

func TestAWorkerWaitsForNoControlPlaneThatNeedsNoHost(t *testing.T) {
	for name, tt := range map[string]struct {
		other       func(*infrav1.TalosMachine)
		initialized bool
		waits       bool
	}{
		"of its Cluster, on metal, without a host": {waits: true},
		"only about to have a host":                {other: func(b *infrav1.TalosMachine) { b.Spec.HostRef.Claim = infrav1.HostClaimIntended }, waits: true},
		"with a host":                              {other: func(b *infrav1.TalosMachine) { b.Spec.HostRef.Claim = infrav1.HostClaimBound }},
		"initialized":                              {initialized: true},
		"in a Pod":                                 {other: func(b *infrav1.TalosMachine) { b.Spec.Metal = nil }},
		"of another Cluster":                       {other: func(b *infrav1.TalosMachine) { b.Labels[clusterv1.ClusterNameLabel] = "two" }},
		"of another namespace":                     {other: func(b *infrav1.TalosMachine) { b.Namespace = "elsewhere" }},
		"no control plane":                         {other: func(b *infrav1.TalosMachine) { delete(b.Labels, clusterv1.MachineControlPlaneLabel) }},
		"being deleted": {other: func(b *infrav1.TalosMachine) {
			b.DeletionTimestamp, b.Finalizers = ptr.To(metav1.Now()), []string{"somebody/else"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			other := &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{
				Namespace: harness.TestNamespace, Name: "b",
				Labels: map[string]string{clusterv1.ClusterNameLabel: harness.TestCluster, clusterv1.MachineControlPlaneLabel: ""},
			}, Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{}}}
			if tt.other != nil {
				tt.other(other)
			}
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"), other)...)
			w.AddMachine("10.0.0.1")
			cluster := harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster)
			cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(tt.initialized)
			g.Expect(w.Client.Status().Update(t.Context(), cluster)).To(Succeed())
			m := w.Manager()
			for range harness.Rounds {
				w.Reconcile(m.Hosts.Reconcile, w.Host("h1"), func(error) bool { return false })
				w.Reconcile(m.Machines.Reconcile, w.Machine("a"), func(error) bool { return false })
			}
			wanted := "h1"
			if tt.waits {
				wanted = ""
			}
			g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal(wanted))
		})
	}
}

func TestAHostThatIsTakenInTheLastMomentIsNotTakenAgain(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.BeforeUpdate = func(object client.Object) {
		g.Expect(object.GetName()).To(Equal("h1"), "the first update is the claim")
		other := w.Host("h1")
		other.Spec.ConsumerRef = infrav1.ConsumerReference{Kind: infrav1.TalosMachineKind, Namespace: harness.TestNamespace, Name: "z", ProviderID: "talos://z"}
		g.Expect(w.Client.Update(t.Context(), other)).To(Succeed())
	}
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.ConsumerRef.Name).To(Equal("z"))
	g.Expect(w.Machine("a").Spec.HostRef).To(BeZero())
	g.Expect(conditions.Get(w.Machine("a"), infrav1.AllocatedCondition).Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(metal.Applied()).To(BeEmpty())
	g.Expect(m.Counts.Claims(harness.TestNamespace, metrics.ClaimConflict)).To(Equal(1))
	g.Expect(m.Counts.Claims(harness.TestNamespace, metrics.ClaimClaimed)).To(BeZero())
}

func TestNothingIsClaimedBeforeItsTime(t *testing.T) {
	tests := map[string]struct {
		change func(*harness.Environment)
		reason string
	}{
		"the infrastructure of the cluster is not there": {
			change: func(w *harness.Environment) {
				cluster := harness.NewCluster()
				g := NewWithT(w.T)
				g.Expect(w.Client.Get(w.T.Context(), client.ObjectKeyFromObject(cluster), cluster)).To(Succeed())
				cluster.Status.Initialization.InfrastructureProvisioned = nil
				g.Expect(w.Client.Status().Update(w.T.Context(), cluster)).To(Succeed())
			},
			reason: infrav1.WaitingForClusterInfrastructureReason,
		},
		"there is no machine configuration": {
			change: func(w *harness.Environment) { w.Remove(harness.Get(w, &corev1.Secret{}, "a")) },
			reason: infrav1.WaitingForBootstrapDataReason,
		},
		"the Machine had another TalosMachine, which is gone": {
			change: func(w *harness.Environment) {
				harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Spec.ProviderID = "talos://before" })
			},
			reason: infrav1.HostLostReason,
		},
		"the host has disks, and none is named": {
			change: func(w *harness.Environment) {
				harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.Install = infrav1.HostInstall{} })
			},
			reason: infrav1.NoHostFitsReason,
		},
		"the maintenance certificate is another one than demanded": {
			change: func(w *harness.Environment) {
				harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.MaintenanceCertFingerprint = "boot-0" })
			},
			reason: infrav1.NoHostFitsReason,
		},
		"the host is unschedulable": {
			change: func(w *harness.Environment) {
				harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.Unschedulable = ptr.To(true) })
			},
			reason: infrav1.NoHostFitsReason,
		},
		"another machine answers": {
			change: func(w *harness.Environment) {
				harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { h.Spec.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99" })
			},
			reason: infrav1.NoHostFitsReason,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
			metal := w.AddMachine("10.0.0.1")
			tt.change(w)
			w.Settle(w.Manager())
			g.Expect(conditions.Get(w.Machine("a"), infrav1.AllocatedCondition).Reason).To(Equal(tt.reason))
			g.Expect(w.Host("h1").Spec.ConsumerRef).To(BeZero())
			g.Expect(metal.Applied()).To(BeEmpty())
		})
	}
}

func TestAProviderIDOfTheHostIsTaken(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.ProviderID = "cloud://zone/7" }))...)
	metal := w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	g.Expect(w.Machine("a").Spec.ProviderID).To(Equal("cloud://zone/7"))
	g.Expect(string(metal.Applied()[0])).To(ContainSubstring("provider-id: cloud://zone/7"))
}

func TestAClaimPrefersTheWishedFailureDomain(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprintf("choice %d", i), func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", harness.InFailureDomain("rack-1")), harness.NewHost("h2", "10.0.0.2", harness.InFailureDomain("rack-2")), harness.NewHost("h3", "10.0.0.3"))...)
			for range i {
				w.Random.IntN(2)
			}
			w.Wishes("rack-2")
			for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
				w.AddMachine(address)
			}
			w.Settle(w.Manager())
			g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h2"))
			g.Expect(w.Machine("a").Status.FailureDomain).To(Equal("rack-2"))
		})
	}
	t.Run("and takes another one where it has none left", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1", harness.InFailureDomain("rack-1")))...)
		w.Wishes("rack-2")
		w.AddMachine("10.0.0.1")
		w.Settle(w.Manager())
		g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h1"))
		g.Expect(w.Machine("a").Status.FailureDomain).To(Equal("rack-1"), "it says where the machine really is")
	})
}

func TestARequiredFailureDomainIsWaitedFor(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", func(m *infrav1.TalosMachine) { m.Spec.Metal.FailureDomainPolicy = infrav1.FailureDomainRequired }),
		harness.NewHost("h1", "10.0.0.1", harness.InFailureDomain("rack-1")), harness.NewHost("h3", "10.0.0.3"))...)
	w.Wishes("rack-2")
	w.AddMachine("10.0.0.1")
	w.AddMachine("10.0.0.3")
	m := w.Manager()
	w.Settle(m)
	found := conditions.Get(w.Machine("a"), infrav1.AllocatedCondition)
	g.Expect(found.Reason).To(Equal(infrav1.NoHostFitsReason))
	g.Expect(found.Message).To(Equal("No TalosHost of 2 can be claimed: 2 in another failure domain"))
	g.Expect(w.Host("h1").Spec.ConsumerRef).To(BeZero())

	g.Expect(w.Client.Create(t.Context(), harness.NewHost("h2", "10.0.0.2", harness.InFailureDomain("rack-2")))).To(Succeed())
	w.AddMachine("10.0.0.2")
	w.Settle(m)
	g.Expect(w.Machine("a").Spec.HostRef.Name).To(Equal("h2"))
}
