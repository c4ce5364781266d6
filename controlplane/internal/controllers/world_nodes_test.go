package controllers

import (
	"fmt"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"slices"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/test/support/builders"
)

// held reports whether the bootstrap provider makes no configuration for a Machine.
func (w *world) held(name string) bool {
	w.t.Helper()
	config := &bootstrapv1.TalosConfig{}
	err := w.client.Get(w.t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, config)
	NewWithT(w.t).Expect(client.IgnoreNotFound(err)).To(Succeed())

	return metav1.HasAnnotation(config.ObjectMeta, bootstrapv1.HoldBootstrapDataAnnotation)
}

// running are the machines that have etcd data.
func (w *world) running() []*talosfake.Machine {
	var running []*talosfake.Machine
	for _, machine := range w.talos {
		if machine.Snapshot().EtcdData {
			running = append(running, machine)
		}
	}

	return running
}

// join makes a new machine a learner of the etcd cluster that runs, if one does.
func (w *world) join(machine *talosfake.Machine, id uint64) {
	w.t.Helper()
	running := w.running()
	if len(running) == 0 {
		return
	}
	members := running[0].Snapshot().Members
	for _, member := range members {
		NewWithT(w.t).Expect(member.Learner).To(BeFalse(), "etcd takes one learner at a time")
	}
	leader := running[0].Snapshot().EtcdStatus.Leader
	members = append(slices.Clone(members), talosclient.EtcdMember{ID: id, Hostname: machine.Snapshot().Hostname, Learner: true})
	machine.Update(func(state *talosfake.State) {
		runControlPlane(state)
		state.EtcdStatus = talosclient.EtcdStatus{MemberID: id, Leader: leader, Learner: true}
	})
	for _, member := range append(running, machine) {
		member.Update(func(state *talosfake.State) { state.Members = members })
	}
}

// leave is a node that leaves etcd.
func (w *world) leave(machine *talosfake.Machine) error {
	err := w.remove(machine.Snapshot().EtcdStatus.MemberID)
	machine.Update(func(state *talosfake.State) {
		state.EtcdData, state.Members = false, nil
		state.Services = []talosclient.Service{{ID: "etcd", State: "Finished"}}
	})

	return err
}

// remove takes a member out of etcd, whose leadership goes to another one.
func (w *world) remove(id uint64) error {
	isIt := func(member talosclient.EtcdMember) bool { return member.ID == id }
	for _, machine := range w.running() {
		machine.Update(func(state *talosfake.State) {
			state.Members = slices.DeleteFunc(slices.Clone(state.Members), isIt)
			if state.EtcdStatus.Leader == id && len(state.Members) > 0 {
				state.EtcdStatus.Leader = state.Members[0].ID
			}
		})
	}

	return nil
}

// promote lets all learners vote.
func (w *world) promote() {
	for _, machine := range w.running() {
		machine.Update(func(state *talosfake.State) {
			state.EtcdStatus.Learner = false
			state.Members = slices.Clone(state.Members)
			for i := range state.Members {
				state.Members[i].Learner = false
			}
		})
	}
}

func (w *world) provision(machine *clusterv1.Machine) {
	w.t.Helper()
	g, ctx := NewWithT(w.t), w.t.Context()
	number := len(w.talos) + len(w.gone)
	address := fmt.Sprintf("10.0.0.%d", number+1)
	node := w.dialer.Add(address, newTalosMachine(machine.Name, w.prober))
	node.Update(func(state *talosfake.State) {
		state.Manifests = []map[string]any{builders.KubeProxy(machine.Spec.Version)}
		state.EtcdSpec.AdvertisedAddresses = []string{address}
	})
	node.OnLeave = func(leaving *talosfake.Machine) error { return w.leave(leaving) }
	node.OnRemoveMember = func(_ *talosfake.Machine, id uint64) error { return w.remove(id) }
	w.join(node, firstMember+uint64(number))
	w.talos[machine.Name] = node

	before := machine.DeepCopy()
	machine.Spec.Bootstrap.DataSecretName = ptr.To(machine.Name)
	machine.Spec.ProviderID = "talos://" + machine.Name
	g.Expect(w.client.Patch(ctx, machine, client.MergeFrom(before))).To(Succeed())
	before = machine.DeepCopy()
	machine.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
	machine.Status.Addresses = []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: machine.Name}, {Type: clusterv1.MachineInternalIP, Address: address},
	}
	g.Expect(w.client.Status().Patch(ctx, machine, client.MergeFrom(before))).To(Succeed())
}

// newTalosMachine is a control plane node that waits for the bootstrap of etcd.
func newTalosMachine(hostname string, prober *proberStub) *talosfake.Machine {
	machine := talosfake.NewMachine(talosfake.State{
		Hostname: hostname,
		Status:   talosclient.MachineStatus{Stage: talosclient.StageBooting},
		Services: []talosclient.Service{{ID: "etcd", State: "Preparing"}},
	})
	machine.OnBootstrap = func(m *talosfake.Machine) error {
		m.Update(func(state *talosfake.State) { runControlPlane(state) })
		prober.set(health.APIServerReady)
		return nil
	}
	machine.OnRecover = machine.OnBootstrap

	return machine
}

// firstMember is the ID of the etcd member that the bootstrap makes.
const firstMember = 7

// runControlPlane is what a node becomes by a bootstrap.
func runControlPlane(state *talosfake.State) {
	state.EtcdData = true
	state.Members = []talosclient.EtcdMember{{ID: firstMember, Hostname: state.Hostname, PeerURLs: []string{"https://10.0.0.1:2380"}}}
	state.EtcdStatus = talosclient.EtcdStatus{MemberID: firstMember, Leader: firstMember}
	state.Services = []talosclient.Service{{ID: "etcd", State: "Running", HealthKnown: true, Healthy: true}}
	for _, name := range []string{"kube-apiserver-", "kube-controller-manager-", "kube-scheduler-"} {
		state.StaticPods = append(state.StaticPods, talosclient.StaticPod{Name: name + state.Hostname, Phase: "Running", Ready: true})
	}
}
