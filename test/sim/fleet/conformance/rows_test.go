package conformance_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/capi-talos/capi-talos/test/sim/fleet/conformance"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

func TestEveryMethodOfTheRuleMapHasARow(t *testing.T) {
	g := NewWithT(t)
	methods, names := map[string]bool{}, map[string]bool{}
	for _, row := range conformance.Rows() {
		g.Expect(names[row.Name()]).To(BeFalse(), row.Name())
		methods[row.Method], names[row.Name()] = true, true
	}
	for _, method := range talossim.Methods() {
		g.Expect(methods).To(HaveKey(method))
	}
	g.Expect(methods).To(HaveLen(len(talossim.Methods())))
	g.Expect(conformance.Gaps()).To(HaveEach(Not(BeEmpty())), "each with its reason")
	for method := range conformance.Gaps() {
		g.Expect(methods).To(HaveKey(method))
	}
}

func TestTheClassOfAMessage(t *testing.T) {
	g := NewWithT(t)
	for want, err := range map[string]error{
		"OK": nil,
		"Unknown: failed to remove member <id>: etcdserver: unhealthy cluster": fmt.Errorf("failed to remove member %d: etcdserver: unhealthy cluster", uint64(10276657743932975438)),
		"Unavailable: dial tcp <address>: refused":                             status.Error(codes.Unavailable, "dial tcp 10.5.0.2:50000: refused"),
		"DeadlineExceeded":                   status.Error(codes.DeadlineExceeded, "stream terminated"),
		"InvalidArgument: <what is invalid>": status.Error(codes.InvalidArgument, "2 errors occurred:\n\t* one\n\t* two\n"),
	} {
		g.Expect(conformance.Class(err)).To(Equal(want))
	}
}

func TestAGapMustBeSaid(t *testing.T) {
	g := NewWithT(t)
	record := func(answer string) conformance.Record {
		return conformance.Record{Answers: map[string]map[string]string{"/machine.MachineService/CPUInfo": {"os:admin": answer, "os:etcd:backup": "PermissionDenied: not authorized"}}}
	}
	differences, gaps := conformance.Judge(record("Unimplemented: it is not simulated"), record("OK"))
	g.Expect(differences).To(BeEmpty())
	g.Expect(gaps).To(Equal(1))
	differences, _ = conformance.Judge(record("Unknown: it broke"), record("OK"))
	g.Expect(differences).To(ConsistOf(ContainSubstring("it is a gap")))
	got := record("Unimplemented: it is not simulated")
	got.Answers["/machine.MachineService/CPUInfo"]["os:etcd:backup"] = "OK"
	differences, _ = conformance.Judge(got, record("OK"))
	g.Expect(differences).To(ConsistOf(ContainSubstring("as os:etcd:backup")))
	g.Expect(conformance.Differences(conformance.Record{Scenarios: map[string][]string{"join": {"one"}}}, conformance.Record{Scenarios: map[string][]string{"join": {"one", "two"}}})).
		To(ConsistOf(ContainSubstring(`step 2: got "", kept "two"`)))
}
