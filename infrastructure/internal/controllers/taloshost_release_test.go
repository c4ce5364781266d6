package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
)

func TestAHostThatComesBackUnwipedIsNeverAvailable(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.KeepsData = true
	w.Remove(w.Machine("a"))
	w.Settle(m)

	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse(), "the TalosMachine is let go")
	host := w.Host("h1")
	g.Expect(host.Status.State).To(Equal(infrav1.HostError))
	g.Expect(conditions.Get(host, infrav1.ReleasedCondition).Reason).To(Equal(infrav1.NotWipedReason))
	g.Expect(host.Spec.ConsumerRef).To(BeZero())
	g.Expect(host.Spec.Release.Policy).To(Equal(infrav1.ReleaseWipeSystem))
	g.Expect(metal.Resets()).To(HaveLen(1), "it is not wiped again at once")

	metal.KeepsData = false
	w.Wait(time.Hour)
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(2))
	harness.ExpectFree(w, "h1")
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseUnproven)).To(Equal(1), "the TalosMachine did not wait")
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseWiped)).To(Equal(1))
}

func TestAPersonLetsAHostBeWipedAgain(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.KeepsData = true
	w.Remove(w.Machine("a"))
	w.Settle(m)
	metal.KeepsData = false
	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(2))
	g.Expect(w.Host("h1").Annotations).NotTo(HaveKey(infrav1.HostRetryAnnotation))
	harness.ExpectFree(w, "h1")
}

func TestAHostInMaintenanceWithContentIsNotAvailable(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	volumes := metal.Snapshot().Volumes
	w.Remove(w.Machine("a"))
	for len(metal.Resets()) == 0 {
		w.Round(m)
		metal.Update(func(s *talosfake.State) { s.Volumes = volumes })
	}
	w.Settle(m)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Message).To(ContainSubstring("EPHEMERAL (/dev/vda6), STATE (/dev/vda5)"))
}

func TestASilentHostIsWipedOnceItAnswers(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	deleting := conditions.Get(w.Machine("a"), infrav1.DeletingCondition)
	g.Expect(deleting.Reason).To(Equal(infrav1.WaitingForReleaseReason))
	g.Expect(deleting.Message).To(ContainSubstring("does not answer"))
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostReleasing))

	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(w.Exists(&corev1.Secret{}, credentials.AdminName("h1"))).To(BeTrue())

	metal.SetSilent(false)
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	harness.ExpectFree(w, "h1")
}

func TestASilentHostObjectThatIsDeletedGoesUnwiped(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	w.Remove(w.Host("h1"))
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosHost{}, "h1")).To(BeTrue(), "the time for an answer is not over")

	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosHost{}, "h1")).To(BeFalse())
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Exists(&corev1.Secret{}, credentials.AdminName("h1"))).To(BeFalse())
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseDeleted)).To(Equal(1))
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseWiped)).To(BeZero())
}

func TestEverythingIsDeletedAtOnce(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	// As in a namespace that terminates: in any order, and nothing can be made.
	for _, object := range []client.Object{
		w.Host("h1"), harness.Get(w, &corev1.Secret{}, credentials.AdminName("h1")), harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster)),
		harness.Get(w, &corev1.Secret{}, "a"),
	} {
		w.Remove(object)
	}
	w.Settle(m)
	g.Expect(w.Exists(&infrav1.TalosHost{}, "h1")).To(BeTrue())
	g.Expect(metal.Resets()).To(BeEmpty())

	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(HaveLen(1))
	g.Expect(metal.Snapshot().Maintenance).To(BeTrue())
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Exists(&infrav1.TalosHost{}, "h1")).To(BeFalse())
	g.Expect(w.Exists(&corev1.Secret{}, credentials.AdminName("h1"))).To(BeFalse())
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseWiped)).To(Equal(1))
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseDeleted)).To(BeZero(), "the machine was wiped before its host went")
}

func TestRetainLeavesTheMachineAlone(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", func(m *infrav1.TalosMachine) { m.Spec.Metal.ReleasePolicy = infrav1.ReleaseRetain }), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))

	metal.Boot(true, nil)
	w.Settle(m)
	harness.ExpectFree(w, "h1")
}

func TestAnUnhealthyMachinePutsItsHostIntoQuarantine(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.Boot(true, nil)
	w.Settle(m)
	running := conditions.Get(w.Machine("a"), infrav1.RunningCondition)
	g.Expect(running.Reason).To(Equal(infrav1.ReturnedToMaintenanceReason))
	g.Expect(metal.Applied()).To(HaveLen(1), "it is never configured again by itself")
	g.Expect(conditions.IsFalse(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())

	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(conditions.Get(w.Host("h1"), infrav1.AvailableCondition).Reason).To(Equal(infrav1.HostQuarantinedReason))
	for _, object := range harness.NewMachine(t, "b") {
		g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
	}
	w.Settle(m)
	g.Expect(conditions.Get(w.Machine("b"), infrav1.AllocatedCondition).Message).To(ContainSubstring("1 in quarantine"))

	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, infrav1.HostRetryAnnotation, "")
	})
	w.Settle(m)
	g.Expect(w.Machine("b").Spec.HostRef.Name).To(Equal("h1"))
}

func TestNothingIsReleasedWithoutATalosMachineThatIsDeleted(t *testing.T) {
	deleteForMove := func(o metav1.Object) {
		o.SetAnnotations(map[string]string{infrav1.DeleteForMoveAnnotation: ""})
	}
	tests := map[string]func(*harness.Environment){
		"the TalosMachine is deleted for a move": func(w *harness.Environment) {
			harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { deleteForMove(m) })
			w.Remove(w.Machine("a"))
		},
		"the TalosMachine and the host are deleted for a move": func(w *harness.Environment) {
			harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { deleteForMove(m) })
			harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { deleteForMove(h) })
			w.Remove(w.Machine("a"))
			w.Remove(w.Host("h1"))
		},
		"the host is deleted for a move": func(w *harness.Environment) {
			harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) { deleteForMove(h) })
			w.Remove(w.Machine("a"))
		},
		"the TalosMachine vanishes": func(w *harness.Environment) {
			harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { m.Finalizers = nil })
			w.Remove(w.Machine("a"))
		},
		"the Cluster is paused": func(w *harness.Environment) {
			cluster := harness.Get(w, &clusterv1.Cluster{}, harness.TestCluster)
			harness.Change(w, cluster, func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
			w.Remove(w.Machine("a"))
		},
		"the host object alone is deleted": func(w *harness.Environment) { w.Remove(w.Host("h1")) },
	}
	for name, act := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			act(w)
			w.Settle(m)
			w.Wait(24 * time.Hour)
			w.Settle(m)
			g.Expect(metal.Resets()).To(BeEmpty())
			g.Expect(w.Host("h1").Spec.Release).To(BeZero())
			g.Expect(w.Host("h1").Spec.ConsumerRef.Name).To(Equal("a"))
			g.Expect(w.Host("h1").Status.State).NotTo(Equal(infrav1.HostAvailable))
		})
	}
}

func TestAMovedMachineIsBoundAgain(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	// In the other management cluster everything has a new UID and no status.
	harness.Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { m.UID = "another-uid" })
	w.LoseStatus()
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.ConsumerRef.UID).To(Equal("another-uid"))
	g.Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))
	g.Expect(metal.Applied()).To(HaveLen(1))
}

func TestAMachineThatWasNeverConfiguredIsGivenBackAsItIs(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	w.Remove(harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster)))
	m := w.Manager()
	w.Settle(m)
	g.Expect(w.Machine("a").Spec.HostRef.Claim).To(Equal(infrav1.HostClaimBound))
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(metal.Resets()).To(BeEmpty())
	g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
	harness.ExpectFree(w, "h1")
	g.Expect(m.Counts.Releases(harness.TestNamespace, metrics.ReleaseUnconfigured)).To(Equal(1))
}

// leftEtcd is a machine whose member the control plane provider has seen leave, and
// that has data of etcd nevertheless.
func leftEtcd(t *testing.T) (*harness.Environment, *harness.Manager, *harness.BareMetal) {
	t.Helper()
	w, m, metal := harness.Provisioned(t)
	owner := &clusterv1.Machine{}
	NewWithT(t).Expect(w.Client.Get(t.Context(), client.ObjectKey{Namespace: harness.TestNamespace, Name: "a"}, owner)).To(Succeed())
	harness.Change(w, owner, func(machine *clusterv1.Machine) {
		metav1.SetMetaDataAnnotation(&machine.ObjectMeta, controlplanev1.EtcdLeftAnnotation, "")
	})
	metal.Update(func(s *talosfake.State) {
		s.EtcdData, s.EtcdSpec.AdvertisedAddresses, s.EtcdStatus.MemberID = true, []string{"10.9.0.1"}, 5
	})

	return w, m, metal
}

// noEtcdData is a machine that shows no data of etcd, while the service is in a state.
func noEtcdData(state string) func(*talosfake.State) {
	return func(s *talosfake.State) {
		s.EtcdData, s.Services = false, []talosclient.Service{{ID: talosclient.EtcdService, State: state}}
	}
}

// TestAMachineThatVotesAgainIsNotWiped: a machine that has left etcd, and was
// restarted before it was reset, is wiped once its member was removed, or the Cluster
// goes.
func TestAMachineThatVotesAgainIsNotWiped(t *testing.T) {
	for name, end := range map[string]func(*harness.Environment, *harness.BareMetal){
		"its member was removed": func(_ *harness.Environment, metal *harness.BareMetal) {
			metal.Update(func(s *talosfake.State) { s.EtcdStatus.Learner = true })
		},
		"its data is gone": func(_ *harness.Environment, metal *harness.BareMetal) {
			metal.Update(noEtcdData("Preparing"))
		},
		"it was stopped, and its data is gone": func(_ *harness.Environment, metal *harness.BareMetal) {
			metal.Update(noEtcdData("Finished"))
		},
		"the Cluster is gone": func(w *harness.Environment, _ *harness.BareMetal) { w.Remove(harness.NewCluster()) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := leftEtcd(t)
			w.Remove(w.Machine("a"))
			w.Settle(m)
			g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.EtcdVoterReason))
			g.Expect(metal.Resets()).To(BeEmpty())

			end(w, metal)
			w.Wait(time.Minute)
			w.Settle(m)
			g.Expect(metal.Resets()).To(HaveLen(1))
			harness.ExpectFree(w, "h1")
		})
	}
}

// TestTheOthersTellWhetherASilentEtcdVotes: a leave that was broken off leaves data
// behind, and an etcd that does not answer. The other control plane machines know
// whether it has a vote; one that follows no leader is not believed.
func TestTheOthersTellWhetherASilentEtcdVotes(t *testing.T) {
	at := func(address string, learner bool) talosclient.EtcdMember {
		return talosclient.EtcdMember{ID: 1, PeerURLs: []string{"https://" + address + ":2380"}, Learner: learner}
	}
	record := func(w *harness.Environment, _ *harness.BareMetal) {
		harness.Change(w, harness.Get(w, &clusterv1.Machine{}, "a"), func(machine *clusterv1.Machine) {
			machine.Spec.ProviderID = w.Machine("a").Spec.ProviderID
			metav1.SetMetaDataAnnotation(&machine.ObjectMeta, controlplanev1.EtcdMemberAnnotation, `{"id":"1","peerURLs":["https://10.9.0.9:2380"]}`)
		})
	}
	unsaid := func(_ *harness.Environment, metal *harness.BareMetal) {
		metal.Fail("EtcdSpec", talosfake.ErrUnreachable)
	}
	for name, tc := range map[string]struct {
		leader uint64
		member talosclient.EtcdMember
		act    func(*harness.Environment, *harness.BareMetal)
		wiped  bool
	}{
		"it votes in another network":                         {leader: 7, member: at("10.9.0.1", false)},
		"it votes in another network, in another form":        {leader: 7, member: at("[::ffff:10.9.0.1]", false)},
		"it votes where nobody knows, as its Machine records": {leader: 7, member: at("10.9.0.9", false), act: record},
		"nobody knows where it would vote":                    {leader: 7, member: at("10.9.0.9", false), act: unsaid},
		"it votes, as its own etcd says": {leader: 7, member: at("10.9.0.9", false), act: func(_ *harness.Environment, metal *harness.BareMetal) {
			metal.Fail("EtcdStatus", nil)
			metal.Update(func(s *talosfake.State) { s.EtcdStatus = talosclient.EtcdStatus{MemberID: 1, Learner: true} })
		}},
		"it boots, and its volumes are not mounted": {leader: 7, member: at("10.9.0.1", false), act: func(_ *harness.Environment, metal *harness.BareMetal) {
			metal.Update(noEtcdData("Waiting"))
		}},
		"it boots, and nobody else has a leader": {member: at("10.9.0.1", false), act: func(_ *harness.Environment, metal *harness.BareMetal) {
			metal.Update(func(s *talosfake.State) { s.EtcdData, s.Services = false, nil })
		}},
		"it learns in another network":     {leader: 7, member: at("10.9.0.1", true), wiped: true},
		"it has no member":                 {leader: 7, member: at("10.0.0.9", false), wiped: true},
		"it learns":                        {leader: 7, member: at("10.0.0.1", true), wiped: true},
		"it votes":                         {leader: 7, member: at("10.0.0.1", false)},
		"the one that tells has no leader": {member: at("10.0.0.9", false)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := leftEtcd(t)
			metal.Fail("EtcdStatus", talosfake.ErrUnreachable)
			if tc.act != nil {
				tc.act(w, metal)
			}
			other := harness.NewMachine(t, "b", func(machine *infrav1.TalosMachine) {
				machine.Labels = map[string]string{clusterv1.ClusterNameLabel: harness.TestCluster, clusterv1.MachineControlPlaneLabel: ""}
				machine.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineInternalIP, Address: "10.0.0.9"}}
			})[1]
			g.Expect(w.Client.Create(t.Context(), other)).To(Succeed())
			w.Dialer.Add("10.0.0.9", talosfake.NewMachine(talosfake.State{
				EtcdStatus: talosclient.EtcdStatus{Leader: tc.leader}, Members: []talosclient.EtcdMember{tc.member},
			}))

			w.Remove(w.Machine("a"))
			w.Settle(m)
			if tc.wiped {
				harness.ExpectFree(w, "h1")
				return
			}
			g.Expect(conditions.Get(w.Host("h1"), infrav1.ReleasedCondition).Reason).To(Equal(infrav1.EtcdVoterReason))
			g.Expect(metal.Resets()).To(BeEmpty())
		})
	}
}
