package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// blocksMove is the rule of clusterctl (cmd/clusterctl/client/cluster/mover.go,
// waitReadyForMove): an object with the annotation is waited for, whatever its value.
func blocksMove(host *infrav1.TalosHost) bool {
	_, blocked := host.Annotations[clusterctlv1.BlockMoveAnnotation]

	return blocked
}

// TestAHostThatNobodyWaitsForBlocksNoMove: the release of a machine that is retained,
// dead or refuses the client certificate may never end. The records of it are in the
// spec, so the host can be moved.
func TestAHostThatNobodyWaitsForBlocksNoMove(t *testing.T) {
	timeout := time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second
	for name, spoil := range map[string]func(*harness.BareMetal){
		"it is dead":              func(metal *harness.BareMetal) { metal.SetSilent(true) },
		"it refuses us":           func(metal *harness.BareMetal) { metal.Boot(false, []byte("another CA")) },
		"it comes back unwiped":   func(metal *harness.BareMetal) { metal.KeepsData = true },
		"it refuses to be wiped":  func(metal *harness.BareMetal) { metal.Fail("Reset", talosfake.ErrUnreachable) },
		"its volumes are unknown": func(metal *harness.BareMetal) { metal.Fail("Volumes", talosfake.ErrUnreachable) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, metal := harness.Provisioned(t)
			spoil(metal)
			w.Remove(w.Machine("a"))
			w.Round(m)
			g.Expect(blocksMove(w.Host("h1"))).To(BeTrue(), "its TalosMachine waits for it")
			w.Settle(m)
			w.Wait(timeout)
			w.Settle(m)
			g.Expect(w.Exists(&infrav1.TalosMachine{}, "a")).To(BeFalse())
			g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
			g.Expect(w.Host("h1").Spec.Release.Policy).To(Equal(infrav1.ReleaseWipeSystem), "it goes on in the other management cluster")
			g.Expect(blocksMove(w.Host("h1"))).To(BeFalse())
		})
	}
}

func TestARetainedHostBlocksNoMove(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a", func(m *infrav1.TalosMachine) { m.Spec.Metal.ReleasePolicy = infrav1.ReleaseRetain }), harness.NewHost("h1", "10.0.0.1"))...)
	w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Host("h1").Status.State).To(Equal(infrav1.HostError))
	g.Expect(blocksMove(w.Host("h1"))).To(BeFalse())
}

// TestAMoveWaitsForTheOrderToWipe: between the record of the order and the order
// itself no other management cluster may take the host, or it would count from an
// order that was never given.
func TestAMoveWaitsForTheOrderToWipe(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.SetSilent(true)
	w.Remove(w.Machine("a"))
	w.Settle(m)
	w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
	w.Settle(m)
	g.Expect(blocksMove(w.Host("h1"))).To(BeFalse())

	wipes := metal.OnReset
	metal.OnReset = func(machine *talosfake.Machine, options talosclient.ResetOptions) error {
		g.Expect(blocksMove(w.Host("h1"))).To(BeTrue(), "it is being told")
		g.Expect(w.Host("h1").Spec.Release.ResetAt).NotTo(Equal(metav1.Time{}))
		return wipes(machine, options)
	}
	metal.SetSilent(false)
	for len(metal.Resets()) == 0 {
		w.Round(m)
	}
	g.Expect(blocksMove(w.Host("h1"))).To(BeFalse(), "it was told")
	w.Settle(m)
	harness.ExpectFree(w, "h1")
}

// TestAManagerThatDiesInTheOrderBlocksNoMoveForEver: the next one takes the
// annotation off.
func TestAManagerThatDiesInTheOrderBlocksNoMoveForEver(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	metal.KeepsData = true
	w.Remove(w.Machine("a"))
	w.Settle(m)
	g.Expect(w.Host("h1").Spec.ConsumerRef).To(BeZero())
	harness.Change(w, w.Host("h1"), func(h *infrav1.TalosHost) {
		metav1.SetMetaDataAnnotation(&h.ObjectMeta, clusterctlv1.BlockMoveAnnotation, "")
	})
	w.Settle(w.Manager())
	g.Expect(blocksMove(w.Host("h1"))).To(BeFalse())
}
