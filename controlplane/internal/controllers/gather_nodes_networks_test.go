package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// twoNetworks is a world of three Machines whose etcd is in another network than the
// addresses of the Machines. The last one joins: etcd lists it, and it has no data yet.
func twoNetworks(t *testing.T, change func(*talosclient.EtcdMember, *talosclient.EtcdSpec)) (*world, *Reconciler, *clusterv1.Machine) {
	t.Helper()
	controlPlane := newControlPlane()
	controlPlane.Spec.Replicas = ptr.To[int32](3)
	w := newWorld(t, newCluster(), controlPlane)
	r := w.manager()
	for range 3 {
		w.settle(r)
	}
	joins := w.machines()[2]
	NewWithT(t).Expect(joins.Annotations).To(HaveKey(controlplanev1.EtcdMemberAnnotation))
	spec := talosclient.EtcdSpec{Hostname: joins.Name, AdvertisedAddresses: []string{"10.9.9.3"}}
	w.editMembers(func(member *talosclient.EtcdMember) {
		if member.Hostname == joins.Name {
			member.Hostname, member.PeerURLs, member.Learner = "", []string{"https://10.9.9.3:2380"}, true
			change(member, &spec)
		}
	})
	empty := newTalosMachine(joins.Name, w.prober).Snapshot()
	empty.EtcdSpec = spec
	w.talos[joins.Name].Update(func(state *talosfake.State) { *state = empty })
	w.forgetMember(joins)

	return w, r, joins
}

// TestAMemberThatJoinsIsNeverRemoved: where etcd of a node will be is what the node
// says. While it has not said it, and as long as a member without a name may be one
// that joins at this moment, nobody's member is removed.
func TestAMemberThatJoinsIsNeverRemoved(t *testing.T) {
	long := time.Duration(controlplanev1.DefaultEtcdLeaveTimeoutSeconds) * time.Second
	for name, tc := range map[string]struct {
		change func(*talosclient.EtcdMember, *talosclient.EtcdSpec)
		// after is for how long the member has been listed.
		after   time.Duration
		removed bool
	}{
		"etcd is in another network": {change: func(*talosclient.EtcdMember, *talosclient.EtcdSpec) {}, after: long},
		"the node writes its address in other form": {change: func(_ *talosclient.EtcdMember, spec *talosclient.EtcdSpec) {
			spec.AdvertisedAddresses = []string{"::ffff:10.9.9.3"}
		}, after: long},
		"the node has not said where etcd is": {change: func(_ *talosclient.EtcdMember, spec *talosclient.EtcdSpec) { *spec = talosclient.EtcdSpec{} }, after: long},
		"the node has got another address since": {change: func(_ *talosclient.EtcdMember, spec *talosclient.EtcdSpec) {
			spec.AdvertisedAddresses = []string{"10.8.8.3"}
		}},
		"somebody else has left it behind": {change: func(_ *talosclient.EtcdMember, spec *talosclient.EtcdSpec) {
			spec.AdvertisedAddresses = []string{"10.8.8.3"}
		}, after: long, removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r, _ := twoNetworks(t, tc.change)
			g.Expect(w.reconcile(r)).To(Succeed())
			w.clock.SetTime(w.clock.Now().Add(tc.after))
			g.Expect(w.reconcile(r)).To(Succeed())
			want := 3
			if tc.removed {
				want = 2
			}
			g.Expect(w.talos[w.machines()[0].Name].Snapshot().Members).To(HaveLen(want))
		})
	}
}

// TestANodeIsReachedAtAnyOfItsAddresses: the networks of the managers and of the cluster
// may differ. Where it answered last is tried first.
func TestANodeIsReachedAtAnyOfItsAddresses(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, newCluster(), newControlPlane())
	r := w.manager()
	w.settle(r)
	machine := w.machines()[0]
	machine.Status.Addresses = []clusterv1.MachineAddress{
		{Type: clusterv1.MachineHostName, Address: machine.Name},
		{Type: clusterv1.MachineExternalDNS, Address: "one.example.com"},
		{Type: clusterv1.MachineExternalIP, Address: "192.0.2.1"},
		{Type: clusterv1.MachineInternalIP, Address: "10.7.7.7"},
		{Type: clusterv1.MachineInternalIP, Address: "10.6.6.6"},
	}
	g.Expect(w.client.Status().Update(t.Context(), machine)).To(Succeed())
	g.Expect(r.observer().Target(machine).Addresses).To(Equal([]string{"10.7.7.7", "10.6.6.6", "192.0.2.1", "one.example.com"}))
	// Another node of the cluster is at the first one.
	w.dialer.Add("10.7.7.7", newTalosMachine("other", w.prober))
	w.dialer.Add("192.0.2.1", w.talos[machine.Name])
	r.observer().Forget(w.machines())
	g.Expect(w.reconcile(r)).To(Succeed())

	g.Expect(r.memory.Reached(client.ObjectKeyFromObject(machine))).To(Equal("192.0.2.1"))
	g.Expect(r.observer().Target(machine).Addresses).To(Equal([]string{"192.0.2.1", "10.7.7.7", "10.6.6.6", "one.example.com"}))
	facts, known := r.memory.Recall(client.ObjectKeyFromObject(machine))
	g.Expect(known).To(BeTrue(), "it is healthy")
	g.Expect(facts.Address).To(Equal("192.0.2.1"))

}
