package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

func TestTheLastContactIsOfTheRightMachineAndGoesWithItsHost(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newHost("h1", "10.0.0.1"), newHost("h2", "10.0.0.2"), newHost("h3", "10.0.0.3", func(h *infrav1.TalosHost) {
		h.Spec.Identity.UUID = "4c4c4544-0042-3510-8053-b4c04f4d4e09"
	}))
	w.addMachine("10.0.0.1")
	w.addMachine("10.0.0.2").SetSilent(true)
	w.addMachine("10.0.0.3")
	m := w.manager()
	w.settle(m)
	last := func(name string) bool {
		_, known := m.contacts.Last(client.ObjectKey{Namespace: testNamespace, Name: name})
		return known
	}
	g.Expect(last("h1")).To(BeTrue())
	g.Expect(last("h2")).To(BeFalse(), "it is silent")
	g.Expect(last("h3")).To(BeFalse(), "another machine has answered")

	host := w.host("h1")
	w.remove(host)
	w.settle(m)
	w.pass(m.hosts.Reconcile, host, func(error) bool { return false })
	g.Expect(w.exists(&infrav1.TalosHost{}, "h1")).To(BeFalse())
	g.Expect(last("h1")).To(BeFalse())
}

// TestWithoutAHostReadySaysSo: Cluster API takes condition Ready over into the
// Machine, and control planes read there that no host is left.
func TestWithoutAHostReadySaysSo(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(append(newMachine(t, "a"), newMachine(t, "b")...), newHost("h1", "10.0.0.1"))...)
	w.addMachine("10.0.0.1")
	w.settle(w.manager())
	var reasons []string
	for _, machine := range w.machines() {
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
