package controllers_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestIdle is a fleet in which nothing happens: nothing is written, hardly
// anything is read, and machines are left in peace.
func TestIdle(t *testing.T) {
	g := NewWithT(t)
	w, m, _ := harness.Provisioned(t)
	inRack := func(h *infrav1.TalosHost) { h.Labels = map[string]string{"rack": "1"} }
	for _, objects := range [][]client.Object{
		harness.NewMachine(t, "b", func(m *infrav1.TalosMachine) {
			m.Spec.Metal.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
		}),
		// It stays without a host.
		harness.NewMachine(t, "c", func(m *infrav1.TalosMachine) {
			m.Spec.Metal.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{"rack": "2"}}
		}),
		{
			harness.NewHost("h2", "10.0.0.2", inRack), harness.NewHost("h3", "10.0.0.3"), harness.NewHost("h4", "10.0.0.4"), harness.NewHost("h5", "10.0.0.5"), harness.NewHost("h6", "10.0.0.6"),
			harness.NewHost("h7", "10.0.0.1"), harness.NewHost("h8", "10.0.0.8"), harness.NewHost("h9", "10.0.0.9", func(h *infrav1.TalosHost) {
				h.Spec.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99"
			}),
		},
	} {
		for _, object := range objects {
			g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
		}
	}
	silentNode := w.AddMachine("10.0.0.2")
	for _, address := range []string{"10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.9"} {
		w.AddMachine(address)
	}
	w.AddMachine("10.0.0.6").Boot(false, []byte("theirs"))
	w.Settle(m)
	silentNode.SetSilent(true)
	w.Live(m, 20*time.Minute)

	states := map[string]infrav1.HostState{}
	for _, host := range w.Hosts() {
		states[host.Name] = host.Status.State
	}
	g.Expect(states).To(Equal(map[string]infrav1.HostState{
		"h1": infrav1.HostProvisioned, "h2": infrav1.HostProvisioned, // h2 does not answer.
		"h3": infrav1.HostAvailable, "h4": infrav1.HostAvailable, "h5": infrav1.HostAvailable,
		"h6": infrav1.HostError, "h7": infrav1.HostError, "h8": infrav1.HostUnknown, "h9": infrav1.HostError, // A stranger's, a duplicate, a silent one, another machine.
	}))
	g.Expect(conditions.Get(w.Machine("b"), infrav1.RunningCondition).Reason).To(Equal(infrav1.UnreachableReason))
	g.Expect(conditions.Get(w.Machine("c"), infrav1.AllocatedCondition).Reason).To(Equal(infrav1.NoHostFitsReason))

	asked := maps.Clone(w.Asked)
	writes, reads, events := w.Life.Effects(), w.Reads, len(w.Recorded())
	passes := w.Live(m, 5*time.Minute)
	t.Logf("5 minutes: %d passes, %d writes, %d live reads", passes, w.Life.Effects()-writes, w.Reads-reads)
	g.Expect(w.Life.Effects()-writes).To(BeZero(), "status holds transitions only")
	g.Expect(w.Recorded()).To(HaveLen(events))
	// Each object is looked at once by the resync that this simulation begins with.
	g.Expect(w.Reads-reads).To(BeNumerically("<=", 2), "live reads: the Machine without a host looks for its configuration")
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"} {
		g.Expect(w.Asked[address]-asked[address]).To(BeZero(), "calls to %s", address)
	}
	g.Expect(w.Asked["10.0.0.9"]-asked["10.0.0.9"]).To(BeNumerically("<=", 4), "another machine than the host's is asked who it is")
	g.Expect(passes).To(BeNumerically("<=", 60))
}

// TestWatchesTellWhatPassesDoNotAskFor proves that a machine in peace is not out
// of sight.
func TestWatchesTellWhatPassesDoNotAskFor(t *testing.T) {
	t.Run("a node that reports something", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		w.Live(m, 10*time.Minute)
		metal.Update(func(s *talosfake.State) {
			s.Status = talosclient.MachineStatus{Stage: talosclient.StageRunning, Unmet: []string{"nodeReady: kubelet is down"}}
		})
		g.Eventually(func() string {
			w.Live(m, time.Second)
			return conditions.Get(w.Machine("a"), infrav1.RunningCondition).Message
		}).Should(ContainSubstring("kubelet is down"))
	})
	t.Run("a node that is gone, and comes back", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := harness.Provisioned(t)
		w.Live(m, 10*time.Minute)
		metal.SetSilent(true)
		g.Eventually(func() bool {
			w.Live(m, time.Second)
			return conditions.IsTrue(w.Machine("a"), infrav1.RunningCondition)
		}).Should(BeFalse())
		metal.SetSilent(false)
		w.Live(m, 90*time.Second)
		g.Expect(conditions.IsTrue(w.Machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	})
	t.Run("a free machine that is gone, and comes back in another boot", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1"))
		metal := w.AddMachine("10.0.0.1")
		m := w.Manager()
		w.Live(m, 10*time.Minute)
		asked := w.Asked["10.0.0.1"]
		w.Live(m, time.Hour)
		g.Expect(w.Asked["10.0.0.1"]).To(Equal(asked))
		metal.SetSilent(true)
		g.Eventually(func() infrav1.HostState {
			w.Live(m, time.Second)
			return w.Host("h1").Status.State
		}).Should(Equal(infrav1.HostUnknown))
		metal.SetSilent(false)
		metal.Boot(true, nil)
		w.Live(m, 90*time.Second)
		g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostAvailable))
		g.Expect(w.Host("h1").Status.MaintenanceCertFingerprint).To(Equal("boot-2"))
	})
	t.Run("a quarantine that ends", func(t *testing.T) {
		g := NewWithT(t)
		w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(harness.TestTime) }))
		w.AddMachine("10.0.0.1")
		m := w.Manager()
		w.Live(m, 59*time.Minute)
		g.Expect(conditions.Get(w.Host("h1"), infrav1.AvailableCondition).Reason).To(Equal(infrav1.HostQuarantinedReason))
		g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning Quarantined ")))
		w.Live(m, 2*time.Minute)
		g.Expect(conditions.IsTrue(w.Host("h1"), infrav1.AvailableCondition)).To(BeTrue())
	})
}

// TestSilentHostsAreAskedLessAndLess counts attempts to reach a machine that was
// given back and never answers.
func TestSilentHostsAreAskedLessAndLess(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Remove(w.Machine("a"))
	w.Live(m, 30*time.Minute)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	writes, reads := w.Life.Effects(), w.Reads
	passes := w.Live(m, 10*time.Minute)
	g.Expect(passes).To(BeNumerically("<=", 14), "about one a minute")
	g.Expect(passes).To(BeNumerically(">=", 8))
	g.Expect(w.Life.Effects()).To(Equal(writes))
	g.Expect(w.Reads).To(Equal(reads), "the certificate comes out of the cache")

	metal.SetSilent(false)
	w.Live(m, 5*time.Minute)
	harness.ExpectFree(w, "h1")
}

func TestAnAdoptionThatCannotSucceedIsNotTriedForEver(t *testing.T) {
	for name, tt := range map[string]struct{ role, ca, message string }{
		"the talosconfig may only read":         {role: secrets.RoleReader, message: "lacks the role os:admin"},
		"the talosconfig is of another cluster": {role: secrets.RoleAdmin, ca: "theirs", message: "does not accept the talosconfig of adoptionSecretRef"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := harness.New(t, harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
				h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, "theirs"
			}))
			metal := w.AddMachine("10.0.0.1")
			metal.Boot(false, harness.Bundle(t).TalosCA())
			if tt.ca != "" {
				metal.Boot(false, []byte(tt.ca))
			}
			creds, err := harness.Bundle(t).ClientCredentials(tt.role, harness.TestTime, 24*time.Hour)
			g.Expect(err).NotTo(HaveOccurred())
			talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(w.Client.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: harness.TestNamespace, Name: "theirs"}, Data: map[string][]byte{"talosconfig": talosconfig},
			})).To(Succeed())
			m := w.Manager()
			w.Live(m, 20*time.Minute)
			harness.ExpectError(w, "h1", infrav1.HostForeignReason, tt.message)
			writes := w.Life.Effects()
			passes := w.Live(m, 20*time.Minute)
			g.Expect(w.Life.Effects()).To(Equal(writes))
			g.Expect(passes).To(BeNumerically("<=", 25), "about one a minute")
			g.Expect(metal.Resets()).To(BeEmpty())
		})
	}
}

func TestHostsThatStandForOneMachineWakeEachOther(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.1"), harness.NewHost("h3", "10.0.0.3"))
	w.AddMachine("10.0.0.1")
	w.AddMachine("10.0.0.3")
	m := w.Manager()
	w.Settle(m)
	wakes := func(name string) []string {
		var names []string
		for _, request := range m.Hosts.HostToDuplicates(t.Context(), w.Host(name)) {
			names = append(names, request.Name)
		}
		return names
	}
	g.Expect(wakes("h1")).To(ConsistOf("h2"))
	g.Expect(wakes("h2")).To(ConsistOf("h1"))
	g.Expect(wakes("h3")).To(ConsistOf("h2"), "one in error may be waiting for this one")
}

// TestEachHostOfARackLooksAtItsOwn: when a rack boots, no host looks through all others,
// and its change wakes none of them.
func TestEachHostOfARackLooksAtItsOwn(t *testing.T) {
	g := NewWithT(t)
	lookedAt := func(size int) int {
		var rack []client.Object
		for i := range size {
			rack = append(rack, harness.NewHost(fmt.Sprint("h", i), fmt.Sprint("10.0.1.", i), func(h *infrav1.TalosHost) {
				h.Spec.Identity.UUID = fmt.Sprintf("4c4c4544-0042-3510-8053-b4c04f4d4e%02x", i)
			}))
		}
		w := harness.New(t, rack...)
		m := w.Manager()
		w.Settle(m)
		w.Listed = 0
		for i := range size {
			host := w.Host(fmt.Sprint("h", i))
			g.Expect(m.Hosts.HostToDuplicates(t.Context(), host)).To(BeEmpty())
			w.Reconcile(m.Hosts.Reconcile, host, func(error) bool { return false })
		}
		return w.Listed / size
	}
	few := lookedAt(4)
	g.Expect(few).To(BeNumerically(">", 0))
	g.Expect(lookedAt(16)).To(Equal(few))
}

// TestAHostWakesTheClustersWhoseFailureDomainsItChanges: and no other change does.
func TestAHostWakesTheClustersWhoseFailureDomainsItChanges(t *testing.T) {
	available := harness.NewHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.FailureDomain, h.Status.State = "rack1", infrav1.HostAvailable })
	for name, tt := range map[string]struct {
		change func(*infrav1.TalosHost)
		wakes  bool
	}{
		"it is in another one":     {change: func(h *infrav1.TalosHost) { h.Spec.FailureDomain = "rack2" }, wakes: true},
		"it is claimed":            {change: func(h *infrav1.TalosHost) { h.Spec.ConsumerRef.Name = "m" }, wakes: true},
		"it does not answer":       {change: func(h *infrav1.TalosHost) { h.Status.State = infrav1.HostUnknown }, wakes: true},
		"nobody may claim it":      {change: func(h *infrav1.TalosHost) { h.Spec.Unschedulable = ptr.To(true) }, wakes: true},
		"it answers at an address": {change: func(h *infrav1.TalosHost) { h.Status.Address = "10.0.0.2" }},
	} {
		t.Run(name, func(t *testing.T) {
			after := available.DeepCopy()
			tt.change(after)
			NewWithT(t).Expect(controllers.IsOtherFailureDomain(available, after)).To(Equal(tt.wakes))
		})
	}
}
