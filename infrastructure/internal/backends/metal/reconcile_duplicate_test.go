package metal_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// duel is about two hosts that were claimed in one moment, and are two addresses of one
// machine.
type duel struct {
	*harness.Environment
	metal *harness.BareMetal
	// behind reports whether the caches do not show yet what the hosts record.
	behind bool
	// recording, recorded and takingBack, when set, run once: before and after a hand-over is
	// recorded, and before it is taken back.
	recording, recorded, takingBack func()
	// fails, when set, is why no host can be read.
	fails error
}

func newDuel(t *testing.T) *duel {
	t.Helper()
	w := harness.New(t, append(append(harness.NewMachine(t, "a"), harness.NewMachine(t, "b")...), harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"))...)
	d := &duel{Environment: w, metal: w.AddMachine("10.0.0.1"), behind: true}
	w.AddMachine("10.0.0.2")
	// Without it, no machine is configured.
	bundle := harness.Get(w, &corev1.Secret{}, secrets.BundleName(harness.TestCluster))
	w.Remove(bundle)
	w.Settle(w.Manager())
	g := NewWithT(t)
	bundle.ResourceVersion = ""
	g.Expect(w.Client.Create(t.Context(), bundle)).To(Succeed())
	w.Dialer.Add("10.0.0.2", d.metal.Machine)
	second := w.Host("h2")
	second.Status.Hardware = w.Host("h1").Status.Hardware
	g.Expect(w.Client.Status().Update(t.Context(), second)).To(Succeed())
	w.Client = interceptor.NewClient(w.Client, interceptor.Funcs{Get: d.get, List: d.list, Update: d.update, Patch: d.patch})

	return d
}

func (d *duel) get(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if _, isHost := into.(*infrav1.TalosHost); isHost && d.fails != nil {
		return d.fails
	}

	return c.Get(ctx, key, into, opts...)
}

func (d *duel) list(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	err := c.List(ctx, list, opts...)
	if hosts, isHosts := list.(*infrav1.TalosHostList); isHosts && d.behind {
		for i := range hosts.Items {
			hosts.Items[i].Spec.ConsumerRef, hosts.Items[i].Spec.Handover = infrav1.ConsumerReference{}, infrav1.HostHandover{}
		}
	}

	return err
}

func (d *duel) update(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.UpdateOption) error {
	host, isHost := object.(*infrav1.TalosHost)
	if !isHost || host.Spec.Handover.ProviderID == "" {
		return c.Update(ctx, object, opts...)
	}
	once(&d.recording)
	err := c.Update(ctx, object, opts...)
	once(&d.recorded)

	return err
}

func (d *duel) patch(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if host, isHost := object.(*infrav1.TalosHost); isHost && host.Spec.Handover.ProviderID == "" {
		once(&d.takingBack)
	}

	return c.Patch(ctx, object, patch, opts...)
}

func once(hook *func()) {
	if run := *hook; run != nil {
		*hook = nil
		run()
	}
}

// reconcile reconciles the TalosMachine of a host, as a worker of its own.
func (d *duel) reconcile(host string) {
	machine := d.Machine(d.Host(host).Spec.ConsumerRef.Name)
	d.Reconcile(d.Manager().Machines.Reconcile, machine, func(err error) bool { return errors.Is(err, errTest) })
}

// expectWinner expects that one host's machine has the configuration, and that nothing is left of
// the other one's hand-over.
func (d *duel) expectWinner(winner, loser string) {
	d.T.Helper()
	g := NewWithT(d.T)
	g.Expect(d.metal.Applied()).To(HaveLen(1))
	won, lost := d.Host(winner).Spec, d.Host(loser).Spec
	g.Expect(won.Handover.Progress).To(Equal(infrav1.HandoverRan))
	g.Expect(string(d.metal.Applied()[0])).To(ContainSubstring("provider-id: " + won.Handover.ProviderID))
	g.Expect(conditions.IsTrue(d.Machine(won.ConsumerRef.Name), infrav1.ReadyCondition)).To(BeTrue())
	g.Expect(lost.Handover).To(BeZero())
	g.Expect(d.Host(loser).Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation))
	d.ExpectTold(lost.ConsumerRef.Name, infrav1.ConfigurationAppliedCondition, infrav1.HostDuplicateReason,
		"TalosHost "+winner+" is in use", "nothing is sent to it")
}

// TestTwoMachinesThatAreOne: a machine is never given two configurations, however the two
// reconciliations go on beside each other.
func TestTwoMachinesThatAreOne(t *testing.T) {
	for name, begin := range map[string]func(d *duel, one, other string){
		"the other one records its hand-over after the look at the cache": func(d *duel, one, other string) {
			d.recording = func() { d.reconcile(other) }
			d.takingBack = func() {
				harness.Change(d.Environment, d.Host(one), func(h *infrav1.TalosHost) { h.Labels = map[string]string{"somebody": "else"} })
			}
			d.reconcile(one)
		},
		"the other one looks after the hand-over was recorded": func(d *duel, one, other string) {
			d.recorded = func() { d.reconcile(other) }
			d.reconcile(one)
		},
		"both record before either looks": func(d *duel, one, other string) {
			looked, proceed, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			d.recorded = func() {
				d.takingBack = func() { close(looked); <-proceed }
				go func() { defer close(done); d.reconcile(other) }()
				select {
				case <-looked:
				case <-done:
					d.takingBack = nil
				}
			}
			d.reconcile(one)
			close(proceed)
			<-done
			NewWithT(d.T).Expect(d.metal.Applied()).To(BeEmpty())
		},
	} {
		for _, hosts := range [][2]string{{"h1", "h2"}, {"h2", "h1"}} {
			t.Run(name+", "+hosts[0]+" first", func(t *testing.T) {
				g, d := NewWithT(t), newDuel(t)
				begin(d, hosts[0], hosts[1])
				g.Expect(len(d.metal.Applied())).To(BeNumerically("<=", 1))
				d.behind = false
				m := d.Manager()
				d.Settle(m)
				d.Settle(m)
				winner, loser := "h1", "h2"
				if d.Host(winner).Spec.Handover.ProviderID == "" {
					winner, loser = loser, winner
				}
				d.expectWinner(winner, loser)

				d.Remove(d.Machine(d.Host(loser).Spec.ConsumerRef.Name))
				d.Settle(m)
				g.Expect(d.Host(loser).Spec.ConsumerRef).To(BeZero())
				g.Expect(d.Machines()).To(HaveLen(1))
				g.Expect(d.metal.Resets()).To(BeEmpty(), "it runs for the other one")
			})
		}
	}
	t.Run("the first of two is waited for", func(t *testing.T) {
		g, d := NewWithT(t), newDuel(t)
		d.behind = false
		d.reconcile("h2")
		g.Expect(d.Host("h2").Spec.Handover).To(BeZero())
		d.Settle(d.Manager())
		d.expectWinner("h1", "h2")
	})
	t.Run("but not by one that may have been sent its configuration", func(t *testing.T) {
		g, d := NewWithT(t), newDuel(t)
		d.metal.Fail("ApplyConfiguration", errTest)
		d.reconcile("h2")
		g.Expect(d.Host("h2").Spec.Handover.Progress).To(Equal(infrav1.HandoverStarted))
		d.metal.Fail("ApplyConfiguration", nil)
		d.behind = false
		d.Settle(d.Manager())
		d.expectWinner("h2", "h1")
	})
	t.Run("nothing is sent while the other one cannot be read", func(t *testing.T) {
		g, d := NewWithT(t), newDuel(t)
		d.recorded = func() { d.fails = errTest }
		d.reconcile("h1")
		d.fails = nil
		g.Expect(d.metal.Applied()).To(BeEmpty())
		g.Expect(d.Host("h1").Spec.Handover.Progress).To(Equal(infrav1.HandoverStarted))
		d.behind = false
		d.Settle(d.Manager())
		d.expectWinner("h1", "h2")
	})
}
