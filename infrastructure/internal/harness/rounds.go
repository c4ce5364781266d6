package harness

import (
	"context"
	"maps"
	"slices"
	"time"

	. "github.com/onsi/gomega"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
)

// rest waits until the watches of a manager have told what they know.
func (w *Environment) rest(m *Manager) {
	w.T.Helper()
	hosts, machines := w.Hosts(), w.Machines()
	NewWithT(w.T).Eventually(func() bool {
		following := 0
		for i := range hosts {
			if m.hostWatcher.Watching(client.ObjectKeyFromObject(&hosts[i])) {
				following++
			}
		}
		for i := range machines {
			if m.machineWatcher.Watching(client.ObjectKeyFromObject(&machines[i])) {
				following++
			}
		}
		w.countMu.Lock()
		defer w.countMu.Unlock()

		return following <= m.openWatches
	}).WithTimeout(10*time.Second).WithPolling(time.Millisecond).Should(BeTrue(), "a watch hangs")
}

// Round lets the manager look at everything once.
func (w *Environment) Round(m *Manager) {
	w.T.Helper()
	w.RoundWith(m, func(error) bool { return false })
}

// RoundWith is a round in which some errors are all right.
func (w *Environment) RoundWith(m *Manager, isExpected func(error) bool) {
	w.T.Helper()
	w.PodRuntime.Work()
	w.rest(m)
	for _, host := range w.Hosts() {
		w.Reconcile(m.Hosts.Reconcile, &host, isExpected)
	}
	for _, machine := range w.Machines() {
		w.Reconcile(m.Machines.Reconcile, &machine, isExpected)
	}
	for _, cluster := range w.TalosClusters() {
		w.Reconcile(m.Clusters.Reconcile, &cluster, isExpected)
	}
	w.Clock.SetTime(w.Clock.Now().Add(tick))
}

// Reconcile reconciles one object. Some errors are all right.
func (w *Environment) Reconcile(reconcile func(context.Context, ctrl.Request) (ctrl.Result, error), object client.Object, isExpected func(error) bool) {
	w.T.Helper()
	_, err := reconcile(w.T.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)})
	if w.Life.IsOver() || (err != nil && isExpected(err)) {
		return
	}
	NewWithT(w.T).Expect(err).NotTo(HaveOccurred(), "reconciling %T %s", object, object.GetName())
}

// Settle is as many rounds as are surely enough.
func (w *Environment) Settle(m *Manager) {
	w.T.Helper()
	for range Rounds {
		w.Round(m)
	}
}

// Live lets time pass, and makes the reconciliations that are due: those that a reconciliation has
// asked for, those that a watch has, and all of them after something was written.
func (w *Environment) Live(m *Manager, d time.Duration) (passes int) {
	w.T.Helper()
	type work struct {
		reconcile func(context.Context, ctrl.Request) (ctrl.Result, error)
		key       client.ObjectKey
	}
	end := w.Clock.Now().Add(d)
	due, works := map[string]time.Time{}, map[string]work{}
	add := func(kind string, reconcile func(context.Context, ctrl.Request) (ctrl.Result, error), object client.Object) {
		name := kind + object.GetName()
		works[name], due[name] = work{reconcile, client.ObjectKeyFromObject(object)}, w.Clock.Now()
	}
	all := func() {
		for _, host := range w.Hosts() {
			add("host ", m.Hosts.Reconcile, &host)
		}
		for _, machine := range w.Machines() {
			add("machine ", m.Machines.Reconcile, &machine)
		}
		for _, cluster := range w.TalosClusters() {
			add("cluster ", m.Clusters.Reconcile, &cluster)
		}
	}
	all()
	for {
		w.PodRuntime.Work()
		w.rest(m)
		select {
		case event := <-m.hostWatcher.Events():
			due["host "+event.Object.GetName()] = w.Clock.Now()
		case event := <-m.machineWatcher.Events():
			due["machine "+event.Object.GetName()] = w.Clock.Now()
		default:
		}
		next := ""
		for _, name := range slices.Sorted(maps.Keys(due)) {
			if next == "" || due[name].Before(due[next]) {
				next = name
			}
		}
		if next == "" || due[next].After(end) {
			w.Clock.SetTime(end)
			return passes
		}
		if due[next].After(w.Clock.Now()) {
			w.Clock.SetTime(due[next])
		}
		delete(due, next)
		writes := w.Life.Effects() - w.refused
		result, err := works[next].reconcile(w.T.Context(), ctrl.Request{NamespacedName: works[next].key})
		NewWithT(w.T).Expect(err).NotTo(HaveOccurred(), next)
		passes++
		if w.Life.Effects()-w.refused != writes {
			all()
		}
		if result.RequeueAfter > 0 {
			due[next] = w.Clock.Now().Add(result.RequeueAfter)
		}
	}
}

// LiveUntil lets managers work, a new one whenever one has died, until all is
// done. An order to wipe that was lost with its manager is given again after a
// minute, so that may take some rounds.
func (w *Environment) LiveUntil(done func() bool) (died bool) {
	w.T.Helper()
	m := w.Manager()
	for range 4 * Rounds {
		w.Round(m)
		if w.Life.IsOver() {
			died = true
			w.Life.Restart()
			m = w.Manager()
		}
		if done() {
			return died
		}
	}
	NewWithT(w.T).Expect(done()).To(BeTrue(), "nothing came of it")

	return died
}

// Wait lets time pass.
func (w *Environment) Wait(d time.Duration) { w.Clock.SetTime(w.Clock.Now().Add(d)) }

// UntilWiping lets a manager work until the machine was told to wipe itself.
func (w *Environment) UntilWiping(m *Manager, metal *BareMetal) {
	w.T.Helper()
	for range Rounds {
		if len(metal.Resets()) > 0 {
			return
		}
		w.Round(m)
	}
	NewWithT(w.T).Expect(metal.Resets()).To(HaveLen(1))
}

// UntilWiped lets a manager work until the machine is proven wiped, and is not
// configured again yet.
func (w *Environment) UntilWiped(m *Manager) {
	w.T.Helper()
	isWiped := func() bool {
		spec := w.Host("h1").Spec
		return spec.Reprovision.ClusterName != "" && spec.Handover.ProviderID == ""
	}
	for range 4 * Rounds {
		if isWiped() {
			return
		}
		for _, host := range w.Hosts() {
			w.Reconcile(m.Hosts.Reconcile, &host, func(error) bool { return false })
		}
		if !isWiped() {
			for _, machine := range w.Machines() {
				w.Reconcile(m.Machines.Reconcile, &machine, func(error) bool { return false })
			}
		}
		w.Clock.SetTime(w.Clock.Now().Add(tick))
	}
	NewWithT(w.T).Expect(isWiped()).To(BeTrue())
}

// ReconcileTemplate reconciles the template, and returns what it says after that.
func (w *Environment) ReconcileTemplate() *infrav1.TalosMachineTemplate {
	w.T.Helper()
	r := &controllers.MachineTemplateReconciler{Client: w.Life.Client(w.Client), APIReader: w.Client}
	_, err := r.Reconcile(w.T.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: TestNamespace, Name: TestTemplate}})
	NewWithT(w.T).Expect(err).NotTo(HaveOccurred())

	return Get(w, &infrav1.TalosMachineTemplate{}, TestTemplate)
}
