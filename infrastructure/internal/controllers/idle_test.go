package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// live lets time pass, and makes the reconciliations that are due: those that a reconciliation has
// asked for, those that a watch has, and all of them after something was written.
func (w *world) live(m *manager, d time.Duration) (passes int) {
	w.t.Helper()
	type work struct {
		reconcile func(context.Context, ctrl.Request) (ctrl.Result, error)
		key       client.ObjectKey
	}
	end := w.clock.Now().Add(d)
	due, works := map[string]time.Time{}, map[string]work{}
	add := func(kind string, reconcile func(context.Context, ctrl.Request) (ctrl.Result, error), object client.Object) {
		name := kind + object.GetName()
		works[name], due[name] = work{reconcile, client.ObjectKeyFromObject(object)}, w.clock.Now()
	}
	all := func() {
		for _, host := range w.hosts() {
			add("host ", m.hosts.Reconcile, &host)
		}
		for _, machine := range w.machines() {
			add("machine ", m.machines.Reconcile, &machine)
		}
		for _, cluster := range w.talosClusters() {
			add("cluster ", m.clusters.Reconcile, &cluster)
		}
	}
	all()
	for {
		w.yard.work()
		w.rest(m)
		select {
		case event := <-m.hostWatcher.Events():
			due["host "+event.Object.GetName()] = w.clock.Now()
		case event := <-m.machineWatcher.Events():
			due["machine "+event.Object.GetName()] = w.clock.Now()
		default:
		}
		next := ""
		for _, name := range slices.Sorted(maps.Keys(due)) {
			if next == "" || due[name].Before(due[next]) {
				next = name
			}
		}
		if next == "" || due[next].After(end) {
			w.clock.SetTime(end)
			return passes
		}
		if due[next].After(w.clock.Now()) {
			w.clock.SetTime(due[next])
		}
		delete(due, next)
		writes := w.life.Effects()
		result, err := works[next].reconcile(w.t.Context(), ctrl.Request{NamespacedName: works[next].key})
		NewWithT(w.t).Expect(err).NotTo(HaveOccurred(), next)
		passes++
		if w.life.Effects() != writes {
			all()
		}
		if result.RequeueAfter > 0 {
			due[next] = w.clock.Now().Add(result.RequeueAfter)
		}
	}
}

// TestIdle is a fleet in which nothing happens: nothing is written, hardly
// anything is read, and machines are left in peace.
func TestIdle(t *testing.T) {
	g := NewWithT(t)
	w, m, _ := provisioned(t)
	inRack := func(h *infrav1.TalosHost) { h.Labels = map[string]string{"rack": "1"} }
	for _, objects := range [][]client.Object{
		newMachine(t, "b", func(m *infrav1.TalosMachine) {
			m.Spec.Metal.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
		}),
		// It stays without a host.
		newMachine(t, "c", func(m *infrav1.TalosMachine) {
			m.Spec.Metal.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{"rack": "2"}}
		}),
		{
			newHost("h2", "10.0.0.2", inRack), newHost("h3", "10.0.0.3"), newHost("h4", "10.0.0.4"), newHost("h5", "10.0.0.5"), newHost("h6", "10.0.0.6"),
			newHost("h7", "10.0.0.1"), newHost("h8", "10.0.0.8"), newHost("h9", "10.0.0.9", func(h *infrav1.TalosHost) {
				h.Spec.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e99"
			}),
		},
	} {
		for _, object := range objects {
			g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
		}
	}
	silentNode := w.addMachine("10.0.0.2")
	for _, address := range []string{"10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.9"} {
		w.addMachine(address)
	}
	w.addMachine("10.0.0.6").boot(false, []byte("theirs"))
	w.settle(m)
	silentNode.SetSilent(true)
	w.live(m, 20*time.Minute)

	states := map[string]infrav1.HostState{}
	for _, host := range w.hosts() {
		states[host.Name] = host.Status.State
	}
	g.Expect(states).To(Equal(map[string]infrav1.HostState{
		"h1": infrav1.HostProvisioned, "h2": infrav1.HostProvisioned, // h2 does not answer.
		"h3": infrav1.HostAvailable, "h4": infrav1.HostAvailable, "h5": infrav1.HostAvailable,
		"h6": infrav1.HostError, "h7": infrav1.HostError, "h8": infrav1.HostUnknown, "h9": infrav1.HostError, // A stranger's, a duplicate, a silent one, another machine.
	}))
	g.Expect(conditions.Get(w.machine("b"), infrav1.RunningCondition).Reason).To(Equal(infrav1.UnreachableReason))
	g.Expect(conditions.Get(w.machine("c"), infrav1.AllocatedCondition).Reason).To(Equal(infrav1.NoHostFitsReason))

	asked := maps.Clone(w.asked)
	writes, reads, events := w.life.Effects(), w.reads, len(w.recorded())
	passes := w.live(m, 5*time.Minute)
	t.Logf("5 minutes: %d passes, %d writes, %d live reads", passes, w.life.Effects()-writes, w.reads-reads)
	g.Expect(w.life.Effects()-writes).To(BeZero(), "status holds transitions only")
	g.Expect(w.recorded()).To(HaveLen(events))
	// Each object is looked at once by the resync that this simulation begins with.
	g.Expect(w.reads-reads).To(BeNumerically("<=", 2), "live reads: the Machine without a host looks for its configuration")
	for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"} {
		g.Expect(w.asked[address]-asked[address]).To(BeZero(), "calls to %s", address)
	}
	g.Expect(w.asked["10.0.0.9"]-asked["10.0.0.9"]).To(BeNumerically("<=", 4), "another machine than the host's is asked who it is")
	g.Expect(passes).To(BeNumerically("<=", 60))
}

// TestWatchesTellWhatPassesDoNotAskFor proves that a machine in peace is not out
// of sight.
func TestWatchesTellWhatPassesDoNotAskFor(t *testing.T) {
	t.Run("a node that reports something", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := provisioned(t)
		w.live(m, 10*time.Minute)
		metal.Update(func(s *talosfake.State) {
			s.Status = talosclient.MachineStatus{Stage: talosclient.StageRunning, Unmet: []string{"nodeReady: kubelet is down"}}
		})
		g.Eventually(func() string {
			w.live(m, time.Second)
			return conditions.Get(w.machine("a"), infrav1.RunningCondition).Message
		}).Should(ContainSubstring("kubelet is down"))
	})
	t.Run("a node that is gone, and comes back", func(t *testing.T) {
		g := NewWithT(t)
		w, m, metal := provisioned(t)
		w.live(m, 10*time.Minute)
		metal.SetSilent(true)
		g.Eventually(func() bool {
			w.live(m, time.Second)
			return conditions.IsTrue(w.machine("a"), infrav1.RunningCondition)
		}).Should(BeFalse())
		metal.SetSilent(false)
		w.live(m, 90*time.Second)
		g.Expect(conditions.IsTrue(w.machine("a"), infrav1.ReadyCondition)).To(BeTrue())
	})
	t.Run("a free machine that is gone, and comes back in another boot", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, newHost("h1", "10.0.0.1"))
		metal := w.addMachine("10.0.0.1")
		m := w.manager()
		w.live(m, 10*time.Minute)
		asked := w.asked["10.0.0.1"]
		w.live(m, time.Hour)
		g.Expect(w.asked["10.0.0.1"]).To(Equal(asked))
		metal.SetSilent(true)
		g.Eventually(func() infrav1.HostState {
			w.live(m, time.Second)
			return w.host("h1").Status.State
		}).Should(Equal(infrav1.HostUnknown))
		metal.SetSilent(false)
		metal.boot(true, nil)
		w.live(m, 90*time.Second)
		g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostAvailable))
		g.Expect(w.host("h1").Status.MaintenanceCertFingerprint).To(Equal("boot-2"))
	})
	t.Run("a quarantine that ends", func(t *testing.T) {
		g := NewWithT(t)
		w := newWorld(t, newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(testTime) }))
		w.addMachine("10.0.0.1")
		m := w.manager()
		w.live(m, 59*time.Minute)
		g.Expect(conditions.Get(w.host("h1"), infrav1.AvailableCondition).Reason).To(Equal(infrav1.HostQuarantinedReason))
		g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning Quarantined ")))
		w.live(m, 2*time.Minute)
		g.Expect(conditions.IsTrue(w.host("h1"), infrav1.AvailableCondition)).To(BeTrue())
	})
}

// TestSilentHostsAreAskedLessAndLess counts attempts to reach a machine that was
// given back and never answers.
func TestSilentHostsAreAskedLessAndLess(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := provisioned(t)
	metal.SetSilent(true)
	w.remove(w.machine("a"))
	w.live(m, 30*time.Minute)
	g.Expect(w.host("h1").Status.State).To(Equal(infrav1.HostError))
	writes, reads := w.life.Effects(), w.reads
	passes := w.live(m, 10*time.Minute)
	g.Expect(passes).To(BeNumerically("<=", 14), "about one a minute")
	g.Expect(passes).To(BeNumerically(">=", 8))
	g.Expect(w.life.Effects()).To(Equal(writes))
	g.Expect(w.reads).To(Equal(reads), "the certificate comes out of the cache")

	metal.SetSilent(false)
	w.live(m, 5*time.Minute)
	expectFree(w, "h1")
}

func TestAnAdoptionThatCannotSucceedIsNotTriedForEver(t *testing.T) {
	for name, tt := range map[string]struct{ role, ca, message string }{
		"the talosconfig may only read":         {role: secrets.RoleReader, message: "lacks the role os:admin"},
		"the talosconfig is of another cluster": {role: secrets.RoleAdmin, ca: "theirs", message: "does not accept the talosconfig of adoptionSecretRef"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w := newWorld(t, newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) {
				h.Spec.AdoptionPolicy, h.Spec.AdoptionSecretRef.Name = infrav1.AdoptionWipeForeign, "theirs"
			}))
			metal := w.addMachine("10.0.0.1")
			metal.boot(false, bundle(t).TalosCA())
			if tt.ca != "" {
				metal.boot(false, []byte(tt.ca))
			}
			creds, err := bundle(t).ClientCredentials(tt.role, testTime, 24*time.Hour)
			g.Expect(err).NotTo(HaveOccurred())
			talosconfig, err := secrets.Talosconfig("theirs", []string{"10.0.0.1"}, creds)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(w.client.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: testNamespace, Name: "theirs"}, Data: map[string][]byte{"talosconfig": talosconfig},
			})).To(Succeed())
			m := w.manager()
			w.live(m, 20*time.Minute)
			expectError(w, "h1", infrav1.HostForeignReason, tt.message)
			writes := w.life.Effects()
			passes := w.live(m, 20*time.Minute)
			g.Expect(w.life.Effects()).To(Equal(writes))
			g.Expect(passes).To(BeNumerically("<=", 25), "about one a minute")
			g.Expect(metal.Resets()).To(BeEmpty())
		})
	}
}

func TestHostsThatStandForOneMachineWakeEachOther(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.1"), newHost("h3", "10.0.0.3"))
	w.addMachine("10.0.0.1")
	w.addMachine("10.0.0.3")
	m := w.manager()
	w.settle(m)
	wakes := func(name string) []string {
		var names []string
		for _, request := range m.hosts.hostToDuplicates(t.Context(), w.host(name)) {
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
			rack = append(rack, newHost(fmt.Sprint("h", i), fmt.Sprint("10.0.1.", i), func(h *infrav1.TalosHost) {
				h.Spec.Identity.UUID = fmt.Sprintf("4c4c4544-0042-3510-8053-b4c04f4d4e%02x", i)
			}))
		}
		w := newWorld(t, rack...)
		m := w.manager()
		w.settle(m)
		w.listed = 0
		for i := range size {
			host := w.host(fmt.Sprint("h", i))
			g.Expect(m.hosts.hostToDuplicates(t.Context(), host)).To(BeEmpty())
			w.pass(m.hosts.Reconcile, host, func(error) bool { return false })
		}
		return w.listed / size
	}
	few := lookedAt(4)
	g.Expect(few).To(BeNumerically(">", 0))
	g.Expect(lookedAt(16)).To(Equal(few))
}

// TestAHostWakesTheClustersWhoseFailureDomainsItChanges: and no other change does.
func TestAHostWakesTheClustersWhoseFailureDomainsItChanges(t *testing.T) {
	available := newHost("h1", "10.0.0.1", func(h *infrav1.TalosHost) { h.Spec.FailureDomain, h.Status.State = "rack1", infrav1.HostAvailable })
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
			NewWithT(t).Expect(isOtherFailureDomain(available, after)).To(Equal(tt.wakes))
		})
	}
}
