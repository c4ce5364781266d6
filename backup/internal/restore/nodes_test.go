package restore

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

// TestWhetherEtcdMayHaveItsQuorum: it has where one member follows a leader, whoever else
// answers, and it may have where those that do not answer would be enough.
func TestWhetherEtcdMayHaveItsQuorum(t *testing.T) {
	members := []talosclient.EtcdMember{{ID: 1}, {ID: 2}, {ID: 3}}
	alone := func(s *fake.State) { s.EtcdData, s.Members = true, members }
	follows := func(s *fake.State) { alone(s); s.EtcdStatus.Leader = 2 }
	// in is a node whose etcd does not answer, in a state as Talos tells it.
	in := func(state, message string, data bool) func(*fake.State) {
		return func(s *fake.State) {
			s.EtcdData, s.Services = data, []talosclient.Service{{ID: "etcd", State: state, LastMessage: message}}
		}
	}
	crashed := in("Waiting", "Error running Containerd(etcd), going to restart forever: task failed", true)
	wiped := in("Preparing", "Running pre state", false)
	boots := in("Waiting", "Waiting for volume mount, time sync", false)
	loads := func(s *fake.State) { s.EtcdData, s.Services = false, nil }
	for name, tc := range map[string]struct {
		nodes              []func(*fake.State)
		silent, mute       []int
		lost, new          []int
		hasLeader, mayHave bool
		unseen             []string
	}{
		"all follow":                             {nodes: []func(*fake.State){follows, follows, follows}, hasLeader: true},
		"one follows, and the others are silent": {nodes: []func(*fake.State){follows, follows, follows}, silent: []int{1, 2}, hasLeader: true, mayHave: true, unseen: []string{"cp-1", "cp-2"}},
		"none follows":                           {nodes: []func(*fake.State){alone, alone, alone}},
		"a minority is silent":                   {nodes: []func(*fake.State){alone, alone, alone}, silent: []int{2}, unseen: []string{"cp-2"}},
		"a majority is silent":                   {nodes: []func(*fake.State){alone, alone, alone}, silent: []int{0, 2}, mayHave: true, unseen: []string{"cp-0", "cp-2"}},
		"all are silent":                         {nodes: []func(*fake.State){alone, alone, alone}, silent: []int{0, 1, 2}, mayHave: true, unseen: []string{"cp-0", "cp-1", "cp-2"}},
		"etcd runs, and does not answer":         {nodes: []func(*fake.State){alone, alone, alone}, mute: []int{0, 1}, mayHave: true, unseen: []string{"cp-0", "cp-1"}},
		"etcd has crashed":                       {nodes: []func(*fake.State){crashed, crashed, crashed}, mute: []int{0, 1, 2}},
		"its data is gone":                       {nodes: []func(*fake.State){wiped, wiped, wiped}},
		"it has failed":                          {nodes: []func(*fake.State){in("Failed", "", true), in("Finished", "", true), in("Skipped", "", true)}, mute: []int{0, 1, 2}},
		"all boot":                               {nodes: []func(*fake.State){boots, boots, boots}, mayHave: true, unseen: []string{"cp-0", "cp-1", "cp-2"}},
		"it is not loaded yet":                   {nodes: []func(*fake.State){loads, loads, loads}, mayHave: true, unseen: []string{"cp-0", "cp-1", "cp-2"}},
		"it begins to start":                     {nodes: []func(*fake.State){in("Starting", "Starting service", false), crashed, crashed}, mute: []int{1, 2}, mayHave: true, unseen: []string{"cp-0"}},
		"its image is pulled":                    {nodes: []func(*fake.State){in("Preparing", "Running pre state", true), crashed, crashed}, mute: []int{0, 1, 2}, mayHave: true, unseen: []string{"cp-0"}},
		"it is stopped":                          {nodes: []func(*fake.State){in("Stopping", "Sending SIGTERM", true), crashed, crashed}, mute: []int{0, 1, 2}, mayHave: true, unseen: []string{"cp-0"}},
		"one is alone, one boots, one is silent": {nodes: []func(*fake.State){alone, boots, alone}, silent: []int{2}, mayHave: true, unseen: []string{"cp-1", "cp-2"}},
		"one is alone, and one boots":            {nodes: []func(*fake.State){alone, boots, crashed}, mute: []int{2}, unseen: []string{"cp-1"}},
		"nobody tells how many there are":        {nodes: []func(*fake.State){wiped, wiped, wiped}, silent: []int{1}, mayHave: true, unseen: []string{"cp-1"}},
		"no address is known":                    {nodes: []func(*fake.State){follows, follows, follows}, lost: []int{0, 1, 2}, mayHave: true, unseen: []string{"cp-0", "cp-1", "cp-2"}},
		"one knows nobody, of two no address is": {nodes: []func(*fake.State){alone, alone, alone}, lost: []int{1, 2}, mayHave: true, unseen: []string{"cp-1", "cp-2"}},
		"of a minority no address is known":      {nodes: []func(*fake.State){alone, alone, alone}, lost: []int{1}, unseen: []string{"cp-1"}},
		"one has never run":                      {nodes: []func(*fake.State){crashed, crashed, crashed}, new: []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			g, dialer := NewWithT(t), fake.NewDialer()
			var machines []*clusterv1.Machine
			for i, change := range tc.nodes {
				name, address := fmt.Sprintf("cp-%d", i), fmt.Sprintf("10.0.0.%d", i+1)
				state := fake.State{
					Hostname: name, EtcdStatus: talosclient.EtcdStatus{MemberID: uint64(i + 1)}, EtcdSpec: talosclient.EtcdSpec{Hostname: name, Version: "3.6.12"},
					Services: []talosclient.Service{{ID: "etcd", State: "Running"}},
				}
				change(&state)
				node := dialer.Add(address, fake.NewMachine(state))
				node.SetSilent(slices.Contains(tc.silent, i))
				if slices.Contains(tc.mute, i) {
					node.Fail("EtcdStatus", errors.New("deadline exceeded"))
				}
				machine := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name}}
				if !slices.Contains(tc.new, i) {
					machine.Spec.ProviderID = "talos://" + name
				}
				if !slices.Contains(tc.lost, i) && !slices.Contains(tc.new, i) {
					machine.Status.Initialization.InfrastructureProvisioned = new(true)
					machine.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineInternalIP, Address: address}}
				}
				machines = append(machines, machine)
			}
			found := Look(t.Context(), dialer, talosclient.Credentials{}, machines)
			g.Expect(found.HasLeader).To(Equal(tc.hasLeader))
			g.Expect(found.Unseen).To(Equal(tc.unseen))
			g.Expect(found.MayHaveQuorum()).To(Equal(tc.mayHave))
		})
	}
}
