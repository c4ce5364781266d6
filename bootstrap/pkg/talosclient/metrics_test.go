package talosclient_test

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

const (
	requests  = "capi_talos_talos_requests_total"
	durations = "capi_talos_talos_request_duration_seconds"
)

func TestCallsAreCountedByMethodAndAnswer(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, creds := ca.issue(g)
	fake := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	api := &talos{reset: func() error {
		fake.SetTime(fake.Now().Add(2 * time.Second))
		return status.Error(codes.Code(4242), "a code that gRPC does not know")
	}}
	serve(t, api, cert, &ca)
	metrics, registry := talosclient.NewMetrics(fake), prometheus.NewRegistry()
	g.Expect(metrics.Register(registry)).To(Succeed())
	g.Expect(testutil.GatherAndCount(registry, requests, durations)).To(BeZero(), "nothing was called yet")
	pool := talosclient.New(talosclient.WithMetrics(metrics))
	t.Cleanup(pool.Close)

	node, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
	g.Expect(node.Reset(t.Context(), talosclient.ResetOptions{})).NotTo(Succeed())
	_, err = node.MachineStatus(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	api.entries = []*machine.FileInfo{{RelativeName: "wal"}, {RelativeName: "snap"}}
	g.Expect(node.EtcdDataExists(t.Context())).To(BeTrue())
	api.entries = nil
	g.Expect(node.EtcdDataExists(t.Context())).To(BeFalse())
	api.ls = status.Error(codes.Unavailable, "gone")
	_, err = node.EtcdDataExists(t.Context())
	g.Expect(err).To(HaveOccurred())

	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP capi_talos_talos_requests_total Calls of the Talos API, by gRPC method and by the code of the answer.
# TYPE capi_talos_talos_requests_total counter
capi_talos_talos_requests_total{code="AlreadyExists",method="machine.MachineService/Bootstrap"} 1
capi_talos_talos_requests_total{code="NotFound",method="cosi.resource.State/Get"} 1
capi_talos_talos_requests_total{code="OK",method="machine.MachineService/List"} 2
capi_talos_talos_requests_total{code="OK",method="machine.MachineService/Version"} 1
capi_talos_talos_requests_total{code="Unavailable",method="machine.MachineService/List"} 1
capi_talos_talos_requests_total{code="Unknown",method="machine.MachineService/Reset"} 1
`), requests)).To(Succeed())
	g.Expect(sums(g, registry)).To(Equal(map[string]float64{
		"machine.MachineService/Bootstrap AlreadyExists": 0,
		"cosi.resource.State/Get NotFound":               0,
		"machine.MachineService/List OK":                 0,
		"machine.MachineService/Version OK":              0,
		"machine.MachineService/List Unavailable":        0,
		"machine.MachineService/Reset Unknown":           2,
	}))
}

func TestAMachineThatDoesNotAnswerIsCounted(t *testing.T) {
	g := NewWithT(t)
	_, creds := newAuthority(g).issue(g)
	metrics := talosclient.NewMetrics(clock.RealClock{})
	pool := talosclient.New(talosclient.WithMetrics(metrics))
	t.Cleanup(pool.Close)

	_, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).To(HaveOccurred())
	_, err = pool.Maintenance(t.Context(), address, "")
	g.Expect(err).To(HaveOccurred())
	g.Expect(testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP capi_talos_talos_requests_total Calls of the Talos API, by gRPC method and by the code of the answer.
# TYPE capi_talos_talos_requests_total counter
capi_talos_talos_requests_total{code="Unavailable",method="cosi.resource.State/Get"} 1
capi_talos_talos_requests_total{code="Unavailable",method="machine.MachineService/Version"} 1
`), requests)).To(Succeed())
}

func TestAWatchIsCountedOnceWhenItBegins(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, creds := ca.issue(g)
	serve(t, &talos{}, cert, &ca)
	metrics := talosclient.NewMetrics(clock.RealClock{})
	pool := talosclient.New(talosclient.WithMetrics(metrics))
	t.Cleanup(pool.Close)
	node, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).NotTo(HaveOccurred())

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- node.WatchMachineStatus(ctx, func(talosclient.MachineStatus) {}) }()
	const watches = `
# HELP capi_talos_talos_requests_total Calls of the Talos API, by gRPC method and by the code of the answer.
# TYPE capi_talos_talos_requests_total counter
capi_talos_talos_requests_total{code="OK",method="cosi.resource.State/Watch"} 1
capi_talos_talos_requests_total{code="OK",method="machine.MachineService/Version"} 1
`
	compare := func() error { return testutil.CollectAndCompare(metrics, strings.NewReader(watches), requests) }
	g.Eventually(compare).Should(Succeed())
	cancel()
	g.Eventually(ended).Should(Receive(MatchError(context.Canceled)))
	g.Expect(compare()).To(Succeed())
}

func TestTheNextManagerOfAProcessTakesTheRegistryOver(t *testing.T) {
	g, registry := NewWithT(t), prometheus.NewRegistry()
	g.Expect(talosclient.NewMetrics(clock.RealClock{}).Register(registry)).To(Succeed())
	g.Expect(talosclient.NewMetrics(clock.RealClock{}).Register(registry)).To(Succeed())

	other := prometheus.NewRegistry()
	g.Expect(other.Register(prometheus.NewCounter(prometheus.CounterOpts{Name: requests, Help: "another meaning"}))).To(Succeed())
	g.Expect(talosclient.NewMetrics(clock.RealClock{}).Register(other)).NotTo(Succeed(), "a name that means something else is not taken over")
}

// sums are the seconds that were observed, by method and code.
func sums(g Gomega, registry prometheus.Gatherer) map[string]float64 {
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != durations {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			found[labels["method"]+" "+labels["code"]] = metric.GetHistogram().GetSampleSum()
		}
	}

	return found
}
