package talosclient

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/collectors"
)

// Metrics count the calls of the Talos API and time them, and the connections. It is a
// prometheus.Collector. Nothing in it grows with the machines: the methods are
// those that this package calls, and codes that gRPC does not know count as
// Unknown.
type Metrics struct {
	clock       clock.PassiveClock
	requests    *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	connections prometheus.Gauge
}

var _ prometheus.Collector = &Metrics{}

// NewMetrics returns Metrics that have counted nothing yet, and that show it to
// nobody.
func NewMetrics(passiveClock clock.PassiveClock) *Metrics {
	labels := []string{"method", "code"}

	return &Metrics{
		clock: passiveClock,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "capi_talos_talos_requests_total",
			Help: "Calls of the Talos API, by gRPC method and by the code of the answer.",
		}, labels),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "capi_talos_talos_request_duration_seconds",
			Help: "How long calls of the Talos API took; of a stream, how long its first message took.",
			// Calls are bounded by DefaultCallTimeout, the leave of etcd by LeaveTimeout. A
			// database of etcd is answered once all of it was sent.
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, labels),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "capi_talos_talos_connections",
			Help: "Connections to the Talos API that are open, those that nobody uses at the moment included.",
		}),
	}
}

// Register registers the Metrics, in place of those that a former manager of the
// same process has left.
func (m *Metrics) Register(registry prometheus.Registerer) error {
	return collectors.Register(registry, m, "the Talos API")
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(into chan<- *prometheus.Desc) {
	m.requests.Describe(into)
	m.durations.Describe(into)
	m.connections.Describe(into)
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(into chan<- prometheus.Metric) {
	m.requests.Collect(into)
	m.durations.Collect(into)
	m.connections.Collect(into)
}

// connected counts connections that were opened, or closed. A pool without metrics
// has nil.
func (m *Metrics) connected(more float64) {
	if m != nil {
		m.connections.Add(more)
	}
}

// dialOptions make a connection counted.
func (m *Metrics) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(m.unary), grpc.WithChainStreamInterceptor(m.stream)}
}

func (m *Metrics) unary(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	start := m.clock.Now()
	err := invoke(ctx, method, request, reply, conn, options...)
	m.observe(method, start, err)

	return err
}

func (m *Metrics) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	start := m.clock.Now()
	opened, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		m.observe(method, start, err)
		return nil, err
	}

	return &countedStream{ClientStream: opened, answered: func(err error) { m.observe(method, start, err) }}, nil
}

func (m *Metrics) observe(method string, start time.Time, err error) {
	code := status.Code(err)
	if code > codes.Unauthenticated {
		code = codes.Unknown
	}
	method = strings.TrimPrefix(method, "/")
	m.requests.WithLabelValues(method, code.String()).Inc()
	m.durations.WithLabelValues(method, code.String()).Observe(m.clock.Since(start).Seconds())
}

// countedStream tells how a stream was answered: by its first message, by an end
// without one, or by an error. How long it goes on after that is up to its reader.
// One goroutine reads at a time.
type countedStream struct {
	grpc.ClientStream
	answered func(error)
}

// RecvMsg implements grpc.ClientStream.
func (s *countedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if s.answered == nil {
		return err
	}
	if errors.Is(err, io.EOF) {
		s.answered(nil)
	} else {
		s.answered(err)
	}
	s.answered = nil

	return err
}
