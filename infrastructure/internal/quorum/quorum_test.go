package quorum

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// machine is the TalosMachine of a control plane machine of cluster "one".
func machine(name string, addresses ...string) *infrav1.TalosMachine {
	m := &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "one", clusterv1.MachineControlPlaneLabel: ""},
		},
		Spec: infrav1.TalosMachineSpec{ProviderID: "talos://" + name},
	}
	for _, address := range addresses {
		m.Status.Addresses = append(m.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineInternalIP, Address: address})
	}

	return m
}

// named gives a TalosMachine the host name that its node has.
func named(m *infrav1.TalosMachine, hostname string) *infrav1.TalosMachine {
	m.Status.Addresses = append(m.Status.Addresses, clusterv1.MachineAddress{Type: clusterv1.MachineHostName, Address: hostname})

	return m
}

// TestWithoutAsksTheOtherMachines: a machine is asked at each of its addresses, and what
// another machine answers there does not count.
func TestWithoutAsksTheOtherMachines(t *testing.T) {
	itself, third := machine("a", "10.0.0.1"), machine("c", "10.0.0.3")
	elsewhere := machine("b", "10.0.0.2")
	elsewhere.Labels[clusterv1.ClusterNameLabel] = "two"
	worker := machine("b", "10.0.0.2")
	delete(worker.Labels, clusterv1.MachineControlPlaneLabel)
	stranger := machine("b", "10.0.0.2")
	stranger.Namespace = "other"

	for name, tt := range map[string]struct {
		second *infrav1.TalosMachine
		silent bool
		want   []uint64
	}{
		"each answers":                              {machine("b", "10.0.0.2"), false, []uint64{2, 3}},
		"one answers at its second address":         {machine("b", "10.0.0.9", "10.0.0.2"), false, []uint64{2, 3}},
		"one has the name of its node":              {named(machine("b", "10.0.0.2"), "b"), false, []uint64{2, 3}},
		"another node answers at the first address": {named(machine("b", "10.0.0.1", "10.0.0.2"), "b"), false, []uint64{2, 3}},
		"another node answers at the only address":  {named(machine("b", "10.0.0.1"), "b"), false, []uint64{3}},
		"one has no address yet":                    {machine("b"), false, []uint64{3}},
		"one is silent":                             {machine("b", "10.0.0.2"), true, []uint64{3}},
		"one is of another cluster":                 {elsewhere, false, []uint64{3}},
		"one is of another namespace":               {stranger, false, []uint64{3}},
		"one is a worker":                           {worker, false, []uint64{3}},
		"one is the machine itself, under another name": {
			func() *infrav1.TalosMachine {
				m := machine("b", "10.0.0.2")
				m.Spec.ProviderID = itself.Spec.ProviderID
				return m
			}(), false, []uint64{3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			scheme := runtime.NewScheme()
			g.Expect(infrav1.AddToScheme(scheme)).To(Succeed())
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(itself.DeepCopy(), tt.second, third.DeepCopy()).Build()
			dialer := talosfake.NewDialer()
			for id, node := range map[uint64]string{1: "a", 2: "b", 3: "c"} {
				dialer.Add(fmt.Sprintf("10.0.0.%d", id), talosfake.NewMachine(talosfake.State{
					Hostname: node, EtcdStatus: talosclient.EtcdStatus{MemberID: id, Leader: 3},
					Members: []talosclient.EtcdMember{{ID: 1, Hostname: "a"}, {ID: 2, Hostname: "b"}, {ID: 3, Hostname: "c"}},
				})).SetSilent(node == "b" && tt.silent)
			}

			health, err := Without(t.Context(), reader, dialer, talosclient.Credentials{}, client.ObjectKey{Namespace: "ns", Name: "one"}, itself.Spec.ProviderID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(health.Answering).To(Equal(tt.want))
			g.Expect(health.Voters()).To(Equal(3), "a machine that is not asked counts as a voter all the same")
			g.Expect(health.HasQuorum()).To(Equal(len(tt.want) == 2))
		})
	}
}

func TestWithoutKnowsNothingWhenMachinesCannotBeListed(t *testing.T) {
	g := NewWithT(t)
	reader := fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build() // It does not know the kind.
	health, err := Without(t.Context(), reader, talosfake.NewDialer(), talosclient.Credentials{}, client.ObjectKey{Namespace: "ns", Name: "one"}, "talos://a")
	g.Expect(err).To(MatchError(ContainSubstring("listing TalosMachines")))
	g.Expect(health.HasQuorum()).To(BeFalse())
}
