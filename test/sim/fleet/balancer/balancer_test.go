package balancer_test

import (
	"bufio"
	"context"
	"crypto/tls"
	stdx509 "crypto/x509"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/crypto/x509"

	"github.com/capi-talos/capi-talos/test/sim/fleet/balancer"
)

const (
	timeout  = 10 * time.Second
	interval = 20 * time.Millisecond
	host     = "127.0.0.1"
)

// target greets whoever connects with its name, over TLS.
type target struct {
	name     string
	address  string
	listener net.Listener

	mu    sync.Mutex
	conns []net.Conn
}

func startTarget(t *testing.T, name, address, validFor string) *target {
	t.Helper()
	g := NewWithT(t)
	ca, err := x509.NewSelfSignedCertificateAuthority(x509.ECDSA(true))
	g.Expect(err).NotTo(HaveOccurred())
	pair, err := x509.NewKeyPair(ca, x509.IPAddresses([]net.IP{net.ParseIP(validFor)}), x509.NotAfter(time.Now().Add(time.Hour)),
		x509.ExtKeyUsage([]stdx509.ExtKeyUsage{stdx509.ExtKeyUsageServerAuth}))
	g.Expect(err).NotTo(HaveOccurred())
	encoded := x509.NewCertificateAndKeyFromKeyPair(pair)
	certificate, err := tls.X509KeyPair(encoded.Crt, encoded.Key)
	g.Expect(err).NotTo(HaveOccurred())
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	g.Expect(err).NotTo(HaveOccurred())
	made := &target{name: name, address: listener.Addr().String(), listener: listener}
	go made.serve(&tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}})
	t.Cleanup(made.stop)
	return made
}

func (s *target) serve(config *tls.Config) {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.conns = append(s.conns, conn)
		s.mu.Unlock()
		go func() { _, _ = tls.Server(conn, config).Write([]byte(s.name + "\n")) }()
	}
}

// stop refuses connections, and leaves those that are there as they are: the
// machine lost its network.
func (s *target) stop() { _ = s.listener.Close() }

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", host+":0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	defer func() { _ = listener.Close() }()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return port
}

func start(t *testing.T, targets ...string) (*balancer.Balancer, string) {
	t.Helper()
	port := freePort(t)
	started, err := balancer.Start(t.Context(), balancer.Options{Host: host, Port: port, ProbeInterval: interval, Targets: func() []string { return targets }})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(started.Close()).To(Succeed()) })
	return started, net.JoinHostPort(host, port)
}

// connect returns a connection, and the name of the target at its other end.
func connect(ctx context.Context, address string) (net.Conn, string, error) {
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", address) //nolint:gosec // The targets are told by their greeting.
	if err != nil {
		return nil, "", err
	}
	name, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		_ = conn.Close()
		return nil, "", err
	}
	return conn, name[:len(name)-1], nil
}

func seen(ctx context.Context, address string, tries int) map[string]int {
	names := map[string]int{}
	for range tries {
		conn, name, err := connect(ctx, address)
		if err != nil {
			names["error"]++
			continue
		}
		names[name]++
		_ = conn.Close()
	}
	return names
}

func TestOnlyTargetsOfTheEndpointAreChosen(t *testing.T) {
	g := NewWithT(t)
	one := startTarget(t, "one", host+":0", host)
	two := startTarget(t, "two", host+":0", host)
	foreign := startTarget(t, "foreign", host+":0", "127.0.0.99")
	b, address := start(t, one.address, two.address, foreign.address, net.JoinHostPort(host, freePort(t)))
	g.Eventually(b.Healthy).WithTimeout(timeout).Should(ConsistOf(one.address, two.address))
	// The first look may still reorder the targets, so they need not be even.
	g.Expect(seen(t.Context(), address, 10)).To(And(HaveLen(2), HaveKey("one"), HaveKey("two")))
}

func TestWithoutTargetsConnectionsAreRefused(t *testing.T) {
	g := NewWithT(t)
	one := startTarget(t, "one", host+":0", host)
	b, address := start(t, one.address)
	_, none := start(t)
	refused := func() error {
		_, _, err := connect(t.Context(), address)
		return err
	}
	_, _, err := connect(t.Context(), none)
	g.Expect(err).To(MatchError(syscall.ECONNREFUSED))
	g.Eventually(b.Healthy).WithTimeout(timeout).Should(HaveLen(1))
	g.Expect(refused()).To(Succeed())
	one.stop()
	g.Eventually(refused).WithTimeout(timeout).Should(MatchError(syscall.ECONNREFUSED))
}

func TestTakenAddress(t *testing.T) {
	g := NewWithT(t)
	one := startTarget(t, "one", host+":0", host)
	_, port, err := net.SplitHostPort(one.address)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = balancer.Start(t.Context(), balancer.Options{Host: host, Port: port, Targets: func() []string { return nil }})
	g.Expect(err).To(MatchError(syscall.EADDRINUSE))
}

func TestTargetsComeAndGo(t *testing.T) {
	g := NewWithT(t)
	one := startTarget(t, "one", host+":0", host)
	two := startTarget(t, "two", host+":0", host)
	b, address := start(t, one.address, two.address)
	g.Eventually(b.Healthy).WithTimeout(timeout).Should(HaveLen(2))

	one.stop()
	g.Expect(seen(t.Context(), address, 4)).To(Equal(map[string]int{"two": 4}), "a dead target is passed over before it is known to be dead")
	g.Eventually(b.Healthy).WithTimeout(timeout).Should(ConsistOf(two.address))
	startTarget(t, "again", one.address, host)
	g.Eventually(func() map[string]int { return seen(t.Context(), address, 2) }).WithTimeout(timeout).Should(HaveKey("again"))
}

func TestConnectionsToDeadTargetsEnd(t *testing.T) {
	g := NewWithT(t)
	one := startTarget(t, "one", host+":0", host)
	b, address := start(t, one.address)
	g.Eventually(b.Healthy).WithTimeout(timeout).Should(HaveLen(1))
	conn, _, err := connect(t.Context(), address)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })

	one.stop()
	g.Expect(conn.SetReadDeadline(time.Now().Add(timeout))).To(Succeed())
	_, err = conn.Read(make([]byte, 1))
	g.Expect(err).To(HaveOccurred())
	g.Expect(err).NotTo(MatchError(ContainSubstring("timeout")))
	g.Expect(b.Healthy()).To(BeEmpty())
}

func TestOneHangingTargetDoesNotHideOthers(t *testing.T) {
	g := NewWithT(t)
	// This one takes connections and never answers.
	hanging, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", host+":0")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = hanging.Close() })
	one := startTarget(t, "one", host+":0", host)
	b, address := start(t, hanging.Addr().String(), one.address)
	g.Eventually(b.Healthy).WithTimeout(time.Second).Should(ConsistOf(one.address))
	g.Expect(seen(t.Context(), address, 2)).To(Equal(map[string]int{"one": 2}))
}

func TestCloseEndsConnections(t *testing.T) {
	g := NewWithT(t)
	one := startTarget(t, "one", host+":0", host)
	b, address := start(t, one.address)
	g.Eventually(b.Healthy).WithTimeout(timeout).Should(HaveLen(1))
	conn, _, err := connect(t.Context(), address)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = conn.Close() })
	g.Expect(b.Close()).To(Succeed())
	g.Expect(b.Close()).To(Succeed())
	_, err = conn.Read(make([]byte, 1))
	g.Expect(err).To(HaveOccurred())
	_, _, err = connect(t.Context(), address)
	g.Expect(err).To(HaveOccurred())
}
