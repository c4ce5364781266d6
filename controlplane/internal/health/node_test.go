package health

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

var errDenied = errors.New("denied")

// inspect asks one healthy control plane node, changed by edit.
func inspect(t *testing.T, edit func(*fake.Machine)) Facts {
	t.Helper()
	machine := fake.NewMachine(fake.State{
		Hostname:   "cp-a",
		EtcdData:   true,
		Members:    []talosclient.EtcdMember{{ID: 7, Hostname: "cp-a", PeerURLs: []string{"https://10.0.0.1:2380"}}},
		EtcdStatus: talosclient.EtcdStatus{MemberID: 7, Leader: 7},
		Services:   []talosclient.Service{{ID: "etcd", State: "Running", HealthKnown: true, Healthy: true}},
		StaticPods: []talosclient.StaticPod{
			{Name: "kube-apiserver-cp-a", Phase: "Running", Ready: true},
			{Name: "kube-controller-manager-cp-a", Phase: "Running", Ready: true},
			{Name: "kube-scheduler-cp-a", Phase: "Running", Ready: true},
		},
	})
	edit(machine)
	dialer := fake.NewDialer()
	dialer.Add("10.0.0.2", machine)

	return Inspector{Dialer: dialer}.Inspect(t.Context(), talosclient.Credentials{},
		talosclient.Target{Addresses: []string{"10.0.0.1", "10.0.0.2"}, Hostname: "cp-a"})
}

func update(change func(*fake.State)) func(*fake.Machine) {
	return func(m *fake.Machine) { m.Update(change) }
}

func TestConditionsOfAMachine(t *testing.T) {
	const (
		api       = controlplanev1.MachineAPIServerPodHealthyCondition
		scheduler = controlplanev1.MachineSchedulerPodHealthyCondition
		etcdPod   = controlplanev1.MachineEtcdPodHealthyCondition
		member    = controlplanev1.MachineEtcdMemberHealthyCondition
	)
	service := func(s talosclient.Service) func(*fake.Machine) {
		return update(func(state *fake.State) { state.Services = []talosclient.Service{s} })
	}
	for name, tc := range map[string]struct {
		edit      func(*fake.Machine)
		condition string
		status    metav1.ConditionStatus
		reason    string
	}{
		"an API server that is ready": {func(*fake.Machine) {}, api, "True", controlplanev1.MachinePodRunningReason},
		"a scheduler without a Pod":   {update(func(s *fake.State) { s.StaticPods = s.StaticPods[:2] }), scheduler, "False", controlplanev1.MachinePodDoesNotExistReason},
		"an API server that starts": {update(func(s *fake.State) {
			s.StaticPods = []talosclient.StaticPod{{Name: "kube-apiserver-x", Phase: "Pending"}}
		}), api, "False", controlplanev1.MachinePodProvisioningReason},
		"an API server that is not ready": {update(func(s *fake.State) {
			s.StaticPods = []talosclient.StaticPod{{Name: "kube-apiserver-x", Phase: "Running"}}
		}), api, "False", controlplanev1.MachinePodFailedReason},
		"Pods that cannot be listed":       {func(m *fake.Machine) { m.Fail("StaticPods", errDenied) }, api, "Unknown", controlplanev1.MachinePodInspectionFailedReason},
		"a silent node":                    {func(m *fake.Machine) { m.SetSilent(true) }, api, "Unknown", controlplanev1.MachinePodInspectionFailedReason},
		"another node at the address":      {update(func(s *fake.State) { s.Hostname = "cp-b" }), member, "Unknown", controlplanev1.MachinePodInspectionFailedReason},
		"an etcd that runs":                {func(*fake.Machine) {}, etcdPod, "True", controlplanev1.MachinePodRunningReason},
		"an etcd that waits":               {service(talosclient.Service{ID: "etcd", State: "Preparing"}), etcdPod, "False", controlplanev1.MachinePodProvisioningReason},
		"an etcd that was not judged yet":  {service(talosclient.Service{ID: "etcd", State: "Running"}), etcdPod, "False", controlplanev1.MachinePodProvisioningReason},
		"an etcd that is not healthy":      {service(talosclient.Service{ID: "etcd", State: "Running", HealthKnown: true}), etcdPod, "False", controlplanev1.MachinePodFailedReason},
		"an etcd that failed":              {service(talosclient.Service{ID: "etcd", State: "Failed"}), etcdPod, "False", controlplanev1.MachinePodFailedReason},
		"an etcd that is not there":        {service(talosclient.Service{ID: "kubelet", State: "Running"}), etcdPod, "False", controlplanev1.MachinePodDoesNotExistReason},
		"services that cannot be listed":   {func(m *fake.Machine) { m.Fail("Services", errDenied) }, etcdPod, "Unknown", controlplanev1.MachinePodInspectionFailedReason},
		"a member that leads":              {func(*fake.Machine) {}, member, "True", controlplanev1.MachineEtcdMemberHealthyReason},
		"a member that does not answer":    {func(m *fake.Machine) { m.Fail("EtcdStatus", errDenied) }, member, "Unknown", controlplanev1.MachineEtcdMemberInspectionFailedReason},
		"a member without a leader":        {update(func(s *fake.State) { s.EtcdStatus.Leader = 0 }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a member that is far behind":      {update(func(s *fake.State) { s.EtcdStatus.RaftIndex = maxLag + 1 }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a member that is hardly behind":   {update(func(s *fake.State) { s.EtcdStatus.RaftIndex = maxLag }), member, "True", controlplanev1.MachineEtcdMemberHealthyReason},
		"a database near its quota":        {update(func(s *fake.State) { s.EtcdSpec.QuotaBytes, s.EtcdStatus.DBSizeBytes = 10, 9 }), member, "True", controlplanev1.MachineEtcdMemberHealthyReason},
		"a learner":                        {update(func(s *fake.State) { s.EtcdStatus.Learner = true }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a member that was removed":        {update(func(s *fake.State) { s.Members = nil }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a member with an alarm":           {update(func(s *fake.State) { s.Alarms = []talosclient.EtcdAlarm{{MemberID: 7, Alarm: "NOSPACE"}} }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a member beside one with alarm":   {update(func(s *fake.State) { s.Alarms = []talosclient.EtcdAlarm{{MemberID: 8, Alarm: "NOSPACE"}} }), member, "True", controlplanev1.MachineEtcdMemberHealthyReason},
		"a member that complains":          {update(func(s *fake.State) { s.EtcdStatus.Errors = []string{"disk is slow"} }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a node before the bootstrap":      {update(func(s *fake.State) { s.EtcdData = false; s.Services[0].State = "Preparing" }), member, "False", controlplanev1.MachineEtcdMemberNotHealthyReason},
		"a node that hides whether it has": {func(m *fake.Machine) { m.Fail("EtcdDataExists", errDenied) }, member, "True", controlplanev1.MachineEtcdMemberHealthyReason},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			for _, condition := range Conditions(inspect(t, tc.edit)) {
				g.Expect(condition.Status == metav1.ConditionTrue).To(Equal(condition.Message == ""), condition.Type+" has a message exactly when it is not true")
				if condition.Type == tc.condition {
					g.Expect(condition.Status).To(Equal(tc.status))
					g.Expect(condition.Reason).To(Equal(tc.reason))
				}
			}
		})
	}
}

func TestConditionsAreComplete(t *testing.T) {
	g := NewWithT(t)
	for _, facts := range []Facts{{}, {Err: errDenied}} {
		var types []string
		for _, condition := range Conditions(facts) {
			types = append(types, condition.Type)
		}
		g.Expect(types).To(ConsistOf(MachineConditionTypes()))
	}
}

func TestEtcdDataNeedsTwoWitnesses(t *testing.T) {
	absent := func(state string) func(*fake.Machine) {
		return update(func(s *fake.State) {
			s.EtcdData = false
			s.Services = []talosclient.Service{{ID: "etcd", State: state}}
			s.Members = nil
		})
	}
	for name, tc := range map[string]struct {
		edit func(*fake.Machine)
		want EtcdData
	}{
		"data is there":                       {func(*fake.Machine) {}, EtcdDataPresent},
		"no data, and etcd waits":             {absent("Preparing"), EtcdDataAbsent},
		"no data, and etcd runs":              {absent("Running"), EtcdDataUnknown},
		"no data, and etcd is not loaded":     {update(func(s *fake.State) { s.EtcdData = false; s.Services = nil }), EtcdDataUnknown},
		"no data, and services not listed":    {func(m *fake.Machine) { absent("Preparing")(m); m.Fail("Services", errDenied) }, EtcdDataUnknown},
		"the data directory cannot be listed": {func(m *fake.Machine) { absent("Preparing")(m); m.Fail("EtcdDataExists", errDenied) }, EtcdDataUnknown},
		"the node is silent":                  {func(m *fake.Machine) { m.SetSilent(true) }, EtcdDataUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(inspect(t, tc.edit).EtcdData).To(Equal(tc.want))
		})
	}
}

func TestInspectWithoutAnAddress(t *testing.T) {
	facts := Inspector{Dialer: fake.NewDialer()}.Inspect(t.Context(), talosclient.Credentials{}, talosclient.Target{})
	NewWithT(t).Expect(facts.Err).To(HaveOccurred())
}
