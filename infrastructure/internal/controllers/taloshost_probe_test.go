package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

func TestTheLastContactIsOfTheRightMachineAndGoesWithItsHost(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, harness.NewHost("h1", "10.0.0.1"), harness.NewHost("h2", "10.0.0.2"), harness.NewHost("h3", "10.0.0.3", func(h *infrav1.TalosHost) {
		h.Spec.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e09"
	}))
	w.AddMachine("10.0.0.1")
	w.AddMachine("10.0.0.2").SetSilent(true)
	w.AddMachine("10.0.0.3")
	m := w.Manager()
	w.Settle(m)
	last := func(name string) bool {
		_, known := m.Probes.Last(client.ObjectKey{Namespace: harness.TestNamespace, Name: name})
		return known
	}
	g.Expect(last("h1")).To(BeTrue())
	g.Expect(last("h2")).To(BeFalse(), "it is silent")
	g.Expect(last("h3")).To(BeFalse(), "another machine has answered")

	host := w.Host("h1")
	w.Remove(host)
	w.Settle(m)
	w.Reconcile(m.Hosts.Reconcile, host, func(error) bool { return false })
	g.Expect(w.Exists(&infrav1.TalosHost{}, "h1")).To(BeFalse())
	g.Expect(last("h1")).To(BeFalse())
}

// TestWithoutAHostReadySaysSo: Cluster API takes condition Ready over into the
// Machine, and control planes read there that no host is left.
func TestWithoutAHostReadySaysSo(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(append(harness.NewMachine(t, "a"), harness.NewMachine(t, "b")...), harness.NewHost("h1", "10.0.0.1"))...)
	w.AddMachine("10.0.0.1")
	w.Settle(w.Manager())
	var reasons []string
	for _, machine := range w.Machines() {
		for _, condition := range machine.Status.Conditions {
			if condition.Type == infrav1.ReadyCondition || condition.Type == infrav1.AllocatedCondition {
				reasons = append(reasons, condition.Type+" "+condition.Reason)
			}
		}
	}
	g.Expect(reasons).To(ConsistOf(
		infrav1.AllocatedCondition+" "+infrav1.HostClaimedReason, infrav1.ReadyCondition+" "+infrav1.RunningReason,
		infrav1.AllocatedCondition+" "+infrav1.NoHostFitsReason, infrav1.ReadyCondition+" "+infrav1.NoHostFitsReason))
}
