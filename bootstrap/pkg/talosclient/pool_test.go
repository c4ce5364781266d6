package talosclient_test

import (
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"io"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// nodeSpec is a node whose Talos API has the certificates of a cluster.
type nodeSpec struct {
	address string
	bundle  *secrets.Bundle
	// clock is the node's own.
	clock *clocktesting.FakeClock
	// names are in its certificate; nil is its address.
	names []string
	// usage is what its certificate is for; 0 is a server.
	usage stdx509.ExtKeyUsage
}

// servedNode is a Talos API that counts those who connect to it.
type servedNode struct {
	machine.UnimplementedMachineServiceServer
	nodeSpec
	handshakes atomic.Int32
	// sent is how many bytes of a snapshot it could send.
	sent atomic.Int64
	// certificate is what it presents to the next one who connects.
	certificate atomic.Pointer[tls.Certificate]

	net.Listener
	mu       sync.Mutex
	accepted []net.Conn
}

// Accept implements net.Listener.
func (n *servedNode) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.accepted = append(n.accepted, c)
	return c, err
}

func (n *servedNode) breakConnections() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.accepted {
		_ = c.Close()
	}
}

func (n *servedNode) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: "v1.13.9"}}}}, nil
}

// EtcdSnapshot sends without an end.
func (n *servedNode) EtcdSnapshot(_ *machine.EtcdSnapshotRequest, stream machine.MachineService_EtcdSnapshotServer) error {
	for chunk := make([]byte, 32<<10); ; n.sent.Add(int64(len(chunk))) {
		if err := stream.Send(&common.Data{Bytes: chunk}); err != nil {
			return err
		}
	}
}

// renew makes a certificate for a day, as Talos does at half of that.
func (n *servedNode) renew(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	ca, err := x509.NewCertificateAuthorityFromCertificateAndKey(n.bundle.Machinery().Certs.OS)
	g.Expect(err).NotTo(HaveOccurred())
	usage := n.usage
	if usage == 0 {
		usage = stdx509.ExtKeyUsageServerAuth
	}
	options := []x509.Option{
		x509.NotBefore(n.clock.Now()), x509.NotAfter(n.clock.Now().Add(x509.DefaultCertificateValidityDuration)),
		x509.KeyUsage(stdx509.KeyUsageDigitalSignature), x509.ExtKeyUsage([]stdx509.ExtKeyUsage{usage}),
	}
	if n.names != nil {
		options = append(options, x509.DNSNames(n.names))
	} else {
		options = append(options, x509.IPAddresses([]net.IP{net.ParseIP(n.address)}))
	}
	pair, err := x509.NewKeyPair(ca, options...)
	g.Expect(err).NotTo(HaveOccurred())
	encoded := x509.NewCertificateAndKeyFromKeyPair(pair)
	certificate, err := tls.X509KeyPair(encoded.Crt, encoded.Key)
	g.Expect(err).NotTo(HaveOccurred())
	n.certificate.Store(&certificate)
}

// start serves the Talos API of a node.
func start(t *testing.T, spec nodeSpec) *servedNode {
	t.Helper()
	g := NewWithT(t)
	n := &servedNode{nodeSpec: spec}
	n.renew(t)
	clients := stdx509.NewCertPool()
	g.Expect(clients.AppendCertsFromPEM(spec.bundle.TalosCA())).To(BeTrue())
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(spec.address, strconv.Itoa(talosclient.Port)))
	g.Expect(err).NotTo(HaveOccurred())
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, Time: spec.clock.Now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			n.handshakes.Add(1)
			return n.certificate.Load(), nil
		},
	})))
	machine.RegisterMachineServiceServer(server, n)
	n.Listener = listener
	go func() { _ = server.Serve(n) }()
	t.Cleanup(server.Stop)
	return n
}

// epoch is when all tests of the pool begin, and when the CAs of ours and theirs,
// two clusters, were made: that takes long.
var (
	epoch  = time.Unix(1<<31, 0)       //nolint:gochecknoglobals // A constant.
	ours   = sync.OnceValue(newBundle) //nolint:gochecknoglobals // Made once.
	theirs = sync.OnceValue(newBundle) //nolint:gochecknoglobals // Made once.
)

func newBundle() *secrets.Bundle {
	bundle, err := secrets.NewBundle(epoch, "v1.13", nil)
	if err != nil {
		panic(err)
	}
	return bundle
}

func credentialsOf(t *testing.T, bundle *secrets.Bundle, role string, now time.Time) talosclient.Credentials {
	t.Helper()
	creds, err := bundle.ClientCredentials(role, now, time.Hour)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return creds
}

// counted is a pool, and the number of its open connections.
func counted(t *testing.T, clock *clocktesting.FakeClock) (pool *talosclient.Pool, open func() int) {
	t.Helper()
	metrics, registry := talosclient.NewMetrics(clock), prometheus.NewRegistry()
	NewWithT(t).Expect(metrics.Register(registry)).To(Succeed())
	pool = talosclient.New(talosclient.WithClock(clock), talosclient.WithMetrics(metrics))
	t.Cleanup(pool.Close)
	return pool, func() int {
		t.Helper()
		g := NewWithT(t)
		families, err := registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		for _, family := range families {
			if family.GetName() == "capi_talos_talos_connections" {
				return int(family.GetMetric()[0].GetGauge().GetValue())
			}
		}
		t.Fatal("the metric is missing")
		return 0
	}
}

// nodes are those of one cluster, with right clocks.
func nodes(t *testing.T, clock *clocktesting.FakeClock, bundle *secrets.Bundle, addresses ...string) []*servedNode {
	t.Helper()
	var served []*servedNode
	for _, address := range addresses {
		served = append(served, start(t, nodeSpec{address: address, bundle: bundle, clock: clock}))
	}
	return served
}

// TestConnectionsAreBoundedByNodesAndNotByTime: a week of reconciles, as the managers do it, with a
// certificate of a reader that is made anew every half hour, a watch that goes on
// all the time, and a call of an administrator now and then.
func TestConnectionsAreBoundedByNodesAndNotByTime(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	const week, every, renewed, asAdmin = 7 * 24 * time.Hour, 5 * time.Minute, 30 * time.Minute, 6 * time.Hour
	clock := clocktesting.NewFakeClock(epoch)
	bundle := ours()
	served := nodes(t, clock, bundle, "127.83.18.1", "127.83.18.2", "127.83.18.3")
	pool, open := counted(t, clock)
	began := clock.Now()

	readers := reader(t, bundle, began)
	ask := func(creds talosclient.Credentials, keep bool) {
		for _, n := range served {
			node, err := pool.Secure(ctx, n.address, creds)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(node.Version(ctx)).To(Equal("v1.13.9"))
			if !keep {
				g.Expect(node.Close()).To(Succeed())
			}
		}
	}
	none := runtime.NumGoroutine()
	ask(readers, true) // The watches.
	goroutines := runtime.NumGoroutine()
	t.Logf("at the start: %d connections, %d goroutines", open(), goroutines)
	for clock.Since(began) < week {
		clock.Step(every)
		if clock.Since(began)%(x509.DefaultCertificateValidityDuration/2) == 0 {
			for _, n := range served {
				n.renew(t)
			}
		}
		if clock.Since(began)%renewed == 0 {
			readers = reader(t, bundle, clock.Now())
		}
		ask(readers, false)
		if clock.Since(began)%asAdmin == 0 {
			ask(admin(t, bundle, clock.Now()), false)
		}
		g.Expect(open()).To(BeNumerically("<=", 2*len(served)), "after %s", clock.Since(began))
	}
	t.Logf("after a week: %d connections, %d goroutines", open(), runtime.NumGoroutine())
	const chance = 10 // Goroutines of the test itself, and of calls that just end.
	g.Eventually(runtime.NumGoroutine).Should(BeNumerically("<=", none+2*(goroutines-none)+chance), "two connections per node")
	for _, n := range served {
		// A day is the life of a node's certificate, six hours that of the calls of an administrator.
		g.Expect(n.handshakes.Load()).To(BeNumerically("<=", 1+7+28), "connections are used again")
	}

	clock.Step(3 * every)
	g.Eventually(open).Should(BeNumerically("<=", len(served)), "what nobody uses is closed without anybody asking")
	pool.Close()
	g.Expect(open()).To(BeZero())
}

func TestConnectionsAreShared(t *testing.T) {
	const here = "127.83.18.4"
	for name, c := range map[string]struct {
		first, second func(t *testing.T, bundle *secrets.Bundle, now time.Time) talosclient.Credentials
		handshakes    int32
		refused       bool
	}{
		"by a renewed certificate of a reader": {first: reader, second: reader, handshakes: 1},
		"not by administrators":                {first: admin, second: admin, handshakes: 2},
		"not by a reader and an administrator": {first: reader, second: admin, handshakes: 2},
		"not with a certificate that the CA has not signed": {
			first: reader, second: func(t *testing.T, bundle *secrets.Bundle, now time.Time) talosclient.Credentials {
				t.Helper()
				forged := reader(t, theirs(), now)
				forged.CA = bundle.TalosCA()
				return forged
			}, handshakes: 2, refused: true,
		},
		"not with a certificate that has expired": {
			first: reader, second: func(t *testing.T, bundle *secrets.Bundle, now time.Time) talosclient.Credentials {
				t.Helper()
				return reader(t, bundle, now.Add(-2*time.Hour))
			}, handshakes: 2, refused: true,
		},
		"not with the CA of another cluster": {
			first: reader, second: func(t *testing.T, _ *secrets.Bundle, now time.Time) talosclient.Credentials {
				t.Helper()
				return reader(t, theirs(), now)
			}, handshakes: 2, refused: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			clock := clocktesting.NewFakeClock(epoch.Add(24 * time.Hour))
			bundle := ours()
			n := start(t, nodeSpec{address: here, bundle: bundle, clock: clock})
			pool, open := counted(t, clock)

			first, err := pool.Secure(t.Context(), here, c.first(t, bundle, clock.Now()))
			g.Expect(err).NotTo(HaveOccurred())
			second, err := pool.Secure(t.Context(), here, c.second(t, bundle, clock.Now()))
			if c.refused {
				g.Expect(err).To(MatchError(talosclient.ErrUntrusted))
				g.Expect(open()).To(Equal(1))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(second.Close()).To(Succeed())
				g.Expect(second.Close()).To(Succeed(), "twice is once")
			}
			g.Expect(n.handshakes.Load()).To(Equal(c.handshakes))
			g.Expect(first.Version(t.Context())).To(Equal("v1.13.9"), "what another user gives back is not closed under the first")
			g.Expect(first.Close()).To(Succeed())
			clock.Step(time.Hour)
			g.Eventually(open).Should(BeZero())
		})
	}
}

func reader(t *testing.T, bundle *secrets.Bundle, now time.Time) talosclient.Credentials {
	t.Helper()
	return credentialsOf(t, bundle, secrets.RoleReader, now)
}

func admin(t *testing.T, bundle *secrets.Bundle, now time.Time) talosclient.Credentials {
	t.Helper()
	return credentialsOf(t, bundle, secrets.RoleAdmin, now)
}

// TestAReconnectPresentsTheLatestCertificate: the first one has expired by then.
func TestAReconnectPresentsTheLatestCertificate(t *testing.T) {
	g := NewWithT(t)
	const here = "127.83.18.5"
	clock := clocktesting.NewFakeClock(epoch)
	bundle := ours()
	n := start(t, nodeSpec{address: here, bundle: bundle, clock: clock})
	pool, open := counted(t, clock)
	watch, err := pool.Secure(t.Context(), here, reader(t, bundle, clock.Now()))
	g.Expect(err).NotTo(HaveOccurred())
	clock.Step(50 * time.Minute)
	later, err := pool.Secure(t.Context(), here, reader(t, bundle, clock.Now()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(later.Close()).To(Succeed())
	old, err := pool.Secure(t.Context(), here, reader(t, bundle, clock.Now().Add(-40*time.Minute)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(old.Close()).To(Succeed())

	clock.Step(30 * time.Minute)
	n.breakConnections()
	g.Eventually(func() error {
		_, err := watch.Version(t.Context())
		return err
	}).Should(Succeed(), "a watch goes on in the same connection")
	g.Expect(n.handshakes.Load()).To(BeEquivalentTo(2))
	g.Expect(open()).To(Equal(1))
}

// TestAConnectionEndsWithTheCertificateOfTheNode: nobody vouches for who is at the
// other end any more.
func TestAConnectionEndsWithTheCertificateOfTheNode(t *testing.T) {
	g := NewWithT(t)
	const here = "127.83.18.6"
	clock := clocktesting.NewFakeClock(epoch)
	bundle := ours()
	n := start(t, nodeSpec{address: here, bundle: bundle, clock: clock})
	pool, open := counted(t, clock)
	watch, err := pool.Secure(t.Context(), here, reader(t, bundle, clock.Now()))
	g.Expect(err).NotTo(HaveOccurred())

	clock.Step(25 * time.Hour)
	_, err = pool.Secure(t.Context(), here, reader(t, bundle, clock.Now()))
	g.Expect(err).To(MatchError(talosclient.ErrClock))
	n.renew(t)
	node, err := pool.Secure(t.Context(), here, reader(t, bundle, clock.Now()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(open()).To(Equal(2), "whoever uses the old one keeps it")
	g.Expect(watch.Close()).To(Succeed())
	g.Expect(open()).To(Equal(1))
	g.Expect(node.Close()).To(Succeed())
}

func TestMaintenanceConnectionsAreClosed(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, _ := ca.issue(g)
	serve(t, &talos{}, cert, nil)
	pool, open := counted(t, clocktesting.NewFakeClock(time.Unix(1000, 0)))
	node, err := pool.Maintenance(t.Context(), address, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(open()).To(Equal(1))
	g.Expect(node.Close()).To(Succeed())
	g.Expect(open()).To(BeZero())
	_, err = pool.Maintenance(t.Context(), address, "AAAA")
	g.Expect(err).To(HaveOccurred())
	g.Expect(open()).To(BeZero(), "one that was refused is closed, too")
	g.Expect(testutil.CollectAndCount(talosclient.NewMetrics(clocktesting.NewFakeClock(time.Unix(1000, 0))), "capi_talos_talos_connections")).To(Equal(1))
}

// TestAnIdleConnectionEnds after the ten minutes that the page on metrics tells.
func TestAnIdleConnectionEnds(t *testing.T) {
	g := NewWithT(t)
	const here = "127.83.18.12"
	clock := clocktesting.NewFakeClock(epoch)
	start(t, nodeSpec{address: here, bundle: ours(), clock: clock})
	pool, open := counted(t, clock)
	creds := credentialsOf(t, ours(), secrets.RoleReader, epoch)
	g.Expect(ask(t, pool, here, creds)).To(Succeed())
	clock.Step(10*time.Minute - time.Second)
	g.Expect(ask(t, pool, here, creds)).To(Succeed())
	g.Expect(open()).To(Equal(1), "it is there for the next one")
	clock.Step(10 * time.Minute)
	g.Eventually(open).Should(BeZero())
}

func TestThePortIsTalosOwn(t *testing.T) {
	NewWithT(t).Expect(talosclient.Port).To(Equal(constants.ApidPort))
}

// TestANodeSendsAheadAndNoMore: a snapshot neither waits for each chunk to be read, nor fills
// the memory behind a store that is slow.
func TestANodeSendsAheadAndNoMore(t *testing.T) {
	g := NewWithT(t)
	const here, window = "127.83.18.13", 1 << 20
	clock := clocktesting.NewFakeClock(epoch)
	n := start(t, nodeSpec{address: here, bundle: ours(), clock: clock})
	pool, _ := counted(t, clock)
	node, err := pool.Secure(t.Context(), here, credentialsOf(t, ours(), secrets.RoleEtcdBackup, clock.Now()))
	g.Expect(err).NotTo(HaveOccurred())
	snapshot, err := node.EtcdSnapshot(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	// The server's own buffer takes a little more than what is on its way.
	const most = window + window/4
	g.Eventually(n.sent.Load).WithTimeout(10 * time.Second).Should(BeNumerically(">=", window-window/8))
	for range 64 {
		_, err := io.CopyN(io.Discard, snapshot, window)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Consistently(n.sent.Load).Should(BeNumerically("<=", 64*window+most), "after it was measured")
	g.Expect(snapshot.Close()).To(Succeed())
	g.Expect(node.Close()).To(Succeed())
}
