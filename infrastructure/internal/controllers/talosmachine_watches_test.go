package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestAControlPlaneWakesTheWorkersThatHaveLeftItTheHosts: and nobody else.
func TestAControlPlaneWakesTheWorkersThatHaveLeftItTheHosts(t *testing.T) {
	g := NewWithT(t)
	objects := harness.NewMachine(t, "waits")
	for name, change := range map[string]func(*infrav1.TalosMachine){
		"has-a-host": func(m *infrav1.TalosMachine) { m.Spec.HostRef.Claim = infrav1.HostClaimBound },
		"in-a-pod":   func(m *infrav1.TalosMachine) { m.Spec.Metal = nil },
		"elsewhere":  func(m *infrav1.TalosMachine) { m.Labels[clusterv1.ClusterNameLabel] = "two" },
	} {
		objects = append(objects, harness.NewMachine(t, name, change)[1])
	}
	m := harness.New(t, objects...).Manager()
	machine, _ := harness.NewMachine(t, "control-plane")[1].(*infrav1.TalosMachine)
	g.Expect(m.Machines.ControlPlaneToWorkers(t.Context(), machine)).To(BeEmpty(), "a worker needs no host before others")
	machine.Labels[clusterv1.MachineControlPlaneLabel] = ""
	requests := m.Machines.ControlPlaneToWorkers(t.Context(), machine)
	g.Expect(requests).To(HaveLen(1))
	g.Expect(requests[0].NamespacedName).To(Equal(client.ObjectKey{Namespace: harness.TestNamespace, Name: "waits"}))
}

func TestWhichChangesOfAControlPlaneWakeWorkers(t *testing.T) {
	g := NewWithT(t)
	is := func(claim infrav1.HostClaim) client.Object {
		return &infrav1.TalosMachine{Spec: infrav1.TalosMachineSpec{HostRef: infrav1.TalosMachineHostReference{Claim: claim}}}
	}
	g.Expect(controllers.GetsHost(is(infrav1.HostClaimIntended), is(infrav1.HostClaimBound))).To(BeTrue())
	g.Expect(controllers.GetsHost(is(infrav1.HostClaimBound), is(infrav1.HostClaimBound))).To(BeFalse(), "its status changes often")
	g.Expect(controllers.GetsHost(is(""), is(infrav1.HostClaimIntended))).To(BeFalse())
}
