package etcd_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
)

func TestLook(t *testing.T) {
	g := NewWithT(t)
	dialer := fake.NewDialer()
	machine := dialer.Add("10.0.0.1", fake.NewMachine(fake.State{
		Members:    []talosclient.EtcdMember{{ID: 1, Hostname: "one", PeerURLs: []string{"https://10.0.0.1:2380"}}},
		EtcdStatus: talosclient.EtcdStatus{MemberID: 1, Leader: 1, RaftIndex: 9, RaftAppliedIndex: 7, DBSizeBytes: 5, Errors: []string{"etcdserver: no leader"}},
	}))
	node, err := dialer.Secure(t.Context(), "10.0.0.1", talosclient.Credentials{})
	g.Expect(err).NotTo(HaveOccurred())
	want := etcd.View{
		Self: 1, Leader: 1, Lag: 2, DBSizeBytes: 5, Errors: []string{"etcdserver: no leader"},
		Members: []etcd.Member{{ID: 1, Hostname: "one", PeerURLs: []string{"https://10.0.0.1:2380"}}},
	}
	g.Expect(etcd.Look(t.Context(), node)).To(HaveValue(Equal(want)))

	machine.Update(func(s *fake.State) { s.EtcdStatus.RaftAppliedIndex = 10 })
	want.Lag = 0
	g.Expect(etcd.Look(t.Context(), node)).To(HaveValue(Equal(want)), "it has applied more than it knew of a moment ago")

	machine.Fail("EtcdAlarms", errors.New("not asked for"))
	g.Expect(etcd.Look(t.Context(), node)).To(HaveValue(Equal(want)), "alarms are asked for where there are any")
	machine.Fail("EtcdAlarms", nil)

	machine.Update(func(s *fake.State) {
		s.EtcdStatus.Learner, s.Members = true, append(s.Members, talosclient.EtcdMember{ID: 2, Learner: true})
	})
	want.Learner, want.Members = true, append(want.Members, etcd.Member{ID: 2, Learner: true})
	g.Expect(etcd.Look(t.Context(), node)).To(HaveValue(Equal(want)))

	machine.Update(func(s *fake.State) {
		s.Alarms = []talosclient.EtcdAlarm{{MemberID: 1, Alarm: "NOSPACE"}}
		s.EtcdStatus.Errors = []string{"memberID:1 alarm:NOSPACE "}
	})
	want.Alarms, want.Errors = []etcd.Alarm{{MemberID: 1, Alarm: "NOSPACE"}}, []string{}
	g.Expect(etcd.Look(t.Context(), node)).To(HaveValue(Equal(want)), "an alarm is no other complaint")

	machine.Fail("EtcdMembers", errors.New("etcdserver: rpc not supported for learner"))
	_, err = etcd.Look(t.Context(), node)
	g.Expect(err).To(MatchError(ContainSubstring("listing the etcd members")))

	for method, doing := range map[string]string{"EtcdStatus": "reading the etcd status", "EtcdAlarms": "reading the etcd alarms"} {
		machine.Fail("EtcdMembers", nil)
		machine.Fail(method, errors.New("no answer"))
		_, err = etcd.Look(t.Context(), node)
		g.Expect(err).To(MatchError(ContainSubstring(doing)), "half a view is none")
		machine.Fail(method, nil)
	}
}
