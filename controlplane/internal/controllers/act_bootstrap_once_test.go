package controllers

import (
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/util/conditions"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
)

// service is the Talos service etcd in a state, in a run that began at a second.
func service(state string, second int64) []talosclient.Service {
	return []talosclient.Service{{ID: "etcd", State: state, Started: time.Unix(second, 0)}}
}

// slowToStart is a control plane whose first node is about to be bootstrapped, and
// whose etcd does not come up by that: Talos stops etcd, and starts it anew.
func slowToStart(t *testing.T) (*world, *Reconciler, *talosfake.Machine) {
	t.Helper()
	w := newWorld(t)
	r := w.manager()
	for len(w.talos) == 0 {
		NewWithT(t).Expect(w.reconcile(r)).To(Succeed())
		w.others()
	}
	node := w.talos[w.machines()[0].Name]
	node.Update(func(s *talosfake.State) { s.Services = service("Preparing", 1) })
	node.OnBootstrap = func(m *talosfake.Machine) error {
		run := int64(100 + m.Bootstraps())
		m.Update(func(s *talosfake.State) { s.Services = service("Preparing", run) })
		return nil
	}

	return w, r, node
}

// TestAnAcceptedBootstrapIsNotRepeated: each call stops the etcd that the last one has
// started, and may leave it stopped.
func TestAnAcceptedBootstrapIsNotRepeated(t *testing.T) {
	g := NewWithT(t)
	w, r, node := slowToStart(t)
	w.settle(r)
	g.Expect(node.Bootstraps()).To(Equal(1))
	initialized := conditions.Get(w.controlPlane(), controlplanev1.InitializedCondition)
	g.Expect(initialized.Reason).To(Equal(controlplanev1.WaitingForEtcdReason))
	g.Expect(initialized.Message).To(ContainSubstring("was asked to bootstrap"))

	w.clock.SetTime(w.clock.Now().Add(nodes.BootstrapPatience - time.Second))
	w.settle(r)
	g.Expect(node.Bootstraps()).To(Equal(1))
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	w.settle(r)
	g.Expect(node.Bootstraps()).To(Equal(2), "nothing has come of it for long")
}

// TestABootstrapIsRepeatedWhereNothingComesOfIt: what was started is not there any more.
func TestABootstrapIsRepeatedWhereNothingComesOfIt(t *testing.T) {
	for name, services := range map[string][]talosclient.Service{
		"etcd has failed":                service("Failed", 101),
		"etcd was stopped":               service("Finished", 101),
		"the node has booted since":      service("Preparing", 200),
		"and etcd has not started since": service("Waiting", 200),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r, node := slowToStart(t)
			w.settle(r)
			g.Expect(node.Bootstraps()).To(Equal(1))
			node.Update(func(s *talosfake.State) { s.Services = services })
			w.settle(r)
			g.Expect(node.Bootstraps()).To(Equal(2))
		})
	}
}

// TestTheNodeIsLookedAtJustBeforeTheBootstrap: what was gathered is old by then.
func TestTheNodeIsLookedAtJustBeforeTheBootstrap(t *testing.T) {
	for name, change := range map[string]func(*talosfake.Machine){
		"it has data":               func(m *talosfake.Machine) { m.Update(func(s *talosfake.State) { s.EtcdData = true }) },
		"its etcd runs":             func(m *talosfake.Machine) { m.Update(func(s *talosfake.State) { s.Services = service("Running", 1) }) },
		"it has no etcd yet":        func(m *talosfake.Machine) { m.Update(func(s *talosfake.State) { s.Services = nil }) },
		"it does not tell its data": func(m *talosfake.Machine) { m.Fail("EtcdDataExists", errors.New("denied")) },
		"it tells no services":      func(m *talosfake.Machine) { m.Fail("Services", errors.New("denied")) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r, node := slowToStart(t)
			r.Prober = lateProber{asked: func() health.APIServerState {
				if _, recorded := w.controlPlane().Annotations[controlplanev1.BootstrapIntentAnnotation]; recorded {
					change(node)
				}
				return health.APIServerSilent
			}}
			for range 2 {
				_ = w.reconcile(r) // The intent is recorded, and the call is next.
				w.others()
			}
			g.Expect(w.controlPlane().Annotations).To(HaveKey(controlplanev1.BootstrapIntentAnnotation))
			g.Expect(node.Bootstraps()).To(BeZero())
		})
	}
}

// TestABootstrapOfUnknownOutcomeIsNotRepeated: the call may have arrived.
func TestABootstrapOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"the connection breaks": {errors.New("connection reset by peer"), 1},
		"Talos refuses":         {talosclient.ErrBootstrapRefused, 5},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r, node := slowToStart(t)
			node.OnBootstrap = func(*talosfake.Machine) error { return tc.err }
			g.Expect(w.reconcile(r)).To(MatchError(tc.err))
			for range 4 {
				_ = w.reconcile(r)
			}
			g.Expect(node.Bootstraps()).To(Equal(tc.want))
		})
	}
}

// stopped is the dead end of Talos: a bootstrap finds data, after it has stopped etcd.
func stopped(t *testing.T) (*world, *Reconciler, *talosfake.Machine) {
	t.Helper()
	w, r, node := slowToStart(t)
	node.OnBootstrap = func(m *talosfake.Machine) error {
		m.Update(func(s *talosfake.State) {
			s.EtcdData, s.Services, s.Status.Stage = true, service("Finished", 101), talosclient.StageRunning
		})
		return errors.New("etcd data directory is not empty")
	}
	_ = w.reconcile(r)

	return w, r, node
}

// TestAStoppedEtcdIsBroughtUpAgain: Talos starts a service etcd that has ended at the
// next boot only, and nobody else sees to that.
func TestAStoppedEtcdIsBroughtUpAgain(t *testing.T) {
	g := NewWithT(t)
	w, r, node := stopped(t)
	w.settle(r)
	g.Expect(node.Restarts()).To(Equal(1))
	g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning NodeRestarted ")))

	node.Update(func(s *talosfake.State) { runControlPlane(s) })
	w.prober.set(health.APIServerReady)
	w.settle(r)
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
	g.Expect(node.Bootstraps()).To(Equal(1))
	g.Expect(node.Restarts()).To(Equal(1))
}

func TestAStoppedEtcdIsBroughtUpAgainAfterARestartOfTheManager(t *testing.T) {
	g := NewWithT(t)
	w, _, node := stopped(t)
	w.settle(w.manager())
	g.Expect(node.Restarts()).To(Equal(1))

	// It is shutting down, and says so.
	node.Update(func(s *talosfake.State) { s.Status.Stage = talosclient.StageRebooting })
	w.settle(w.manager())
	g.Expect(node.Restarts()).To(Equal(1))
}

// TestANodeIsNotRestartedAgainAtOnce: it takes its time.
func TestANodeIsNotRestartedAgainAtOnce(t *testing.T) {
	g := NewWithT(t)
	w, r, node := stopped(t)
	w.settle(r)
	w.clock.SetTime(w.clock.Now().Add(nodes.RestartPatience - time.Second))
	w.settle(r)
	g.Expect(node.Restarts()).To(Equal(1))
	w.clock.SetTime(w.clock.Now().Add(time.Second))
	w.settle(r)
	g.Expect(node.Restarts()).To(Equal(2))
}
