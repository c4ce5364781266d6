package talosclient

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	cosiv1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	cosi "github.com/cosi-project/runtime/pkg/state/protobuf/client"
	talosx509 "github.com/siderolabs/crypto/x509"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// connectTimeout bounds one TCP and TLS attempt.
	connectTimeout = 5 * time.Second
	// keepaliveInterval finds nodes that went silent while a watch is open. A gRPC
	// server takes only so many pings: it ends the connection, and the interval
	// doubles, until there are more than five minutes between them. What finds a
	// machine that is gone in half a minute all the same is TCP.
	keepaliveInterval = 20 * time.Second
	tcpKeepaliveIdle  = 10 * time.Second
	tcpKeepaliveEvery = 5 * time.Second
	tcpKeepaliveCount = 3
	// idleTimeout closes the transport of a pooled connection nobody uses.
	idleTimeout = 5 * time.Minute
)

// Pool is the Dialer of the managers. It keeps one connection per node and
// credentials; Close ends them all.
type Pool struct {
	observers []grpc.DialOption

	mu    sync.Mutex
	conns map[poolKey]*conn
}

var _ Dialer = &Pool{}

type poolKey struct {
	address     string
	credentials [sha256.Size]byte
}

// Option changes what New makes.
type Option func(*Pool)

// WithMetrics has metrics count all calls over the connections of the pool.
func WithMetrics(metrics *Metrics) Option {
	return func(pool *Pool) { pool.observers = append(pool.observers, metrics.dialOptions()...) }
}

// New returns an empty pool.
func New(options ...Option) *Pool {
	pool := &Pool{conns: map[poolKey]*conn{}}
	for _, option := range options {
		option(pool)
	}
	return pool
}

// Maintenance implements Dialer. These connections are not pooled: each one is
// bound to the certificate, and so to the boot, that it first met.
func (p *Pool) Maintenance(ctx context.Context, address, fingerprint string) (Node, error) {
	verifier := &anonymousVerifier{want: fingerprint}
	//nolint:gosec // G402: a machine in maintenance mode has a self-signed certificate; anonymousVerifier pins it.
	c, err := p.open(address, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true,
		VerifyConnection:   verifier.verify,
	}, &verifier.pin)
	if err != nil {
		return nil, fmt.Errorf("connecting to the maintenance service of %s: %w", address, err)
	}

	node := &node{conn: c, release: c.close}
	if _, err := node.MachineStatus(ctx); err != nil {
		c.close()
		return nil, fmt.Errorf("connecting to the maintenance service of %s: %w", address, maintenanceError(err))
	}
	return node, nil
}

// Secure implements Dialer.
func (p *Pool) Secure(ctx context.Context, address string, creds Credentials) (Node, error) {
	key := poolKey{address: address, credentials: sha256.Sum256(bytes.Join([][]byte{creds.CA, creds.Cert, creds.Key}, []byte{0}))}

	p.mu.Lock()
	c, found := p.conns[key]
	p.mu.Unlock()

	if !found {
		var err error
		if c, err = p.openSecure(address, creds); err != nil {
			return nil, fmt.Errorf("connecting to the Talos API of %s: %w", address, err)
		}
	}

	node := &node{conn: c, release: func() {}}
	if found && c.transport.GetState() == connectivity.Ready {
		return node, nil // It was verified, and each handshake since has been.
	}
	if _, err := node.Version(ctx); err != nil {
		p.drop(key, c)
		return nil, fmt.Errorf("connecting to the Talos API of %s: %w", address, secureError(err))
	}
	if !found {
		p.keep(key, c)
	}
	return node, nil
}

// Close ends all pooled connections.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.conns {
		c.close()
		delete(p.conns, key)
	}
}

// keep puts a verified connection into the pool; where two callers raced, both
// work and the later one is pooled, so the earlier is closed by its idleness.
func (p *Pool) keep(key poolKey, c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[key] = c
}

func (p *Pool) drop(key poolKey, c *conn) {
	p.mu.Lock()
	if p.conns[key] == c {
		delete(p.conns, key)
	}
	p.mu.Unlock()
	c.close()
}

// conn is one gRPC connection, the Talos SDK on top of it, and the certificate
// it is bound to. The SDK's own connections would take TLS credentials of theirs.
type conn struct {
	*client.Client
	transport *grpc.ClientConn
	pin       *pin
}

func (c *conn) close() {
	// The connection is given up: an error of closing it tells nothing that
	// could be acted on.
	_ = c.transport.Close()
}

func (p *Pool) open(address string, config *tls.Config, pin *pin) (*conn, error) {
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: tcpKeepaliveIdle, Interval: tcpKeepaliveEvery, Count: tcpKeepaliveCount,
	}}
	options := append(slices.Clone(p.observers),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", target)
		}),
		grpc.WithTransportCredentials(newPatientTLS(config)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize)),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(idleTimeout),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval, Timeout: connectTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
	)
	transport, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(address, strconv.Itoa(Port)), options...)
	if err != nil {
		return nil, err
	}
	return &conn{
		Client: &client.Client{
			MachineClient: machine.NewMachineServiceClient(transport),
			// A watch that breaks is reported: the machine may be another one, or
			// in another boot, when it answers again.
			COSI: state.WrapCore(cosi.NewAdapter(cosiv1.NewStateClient(transport), cosi.WithDisableWatchRetry())),
		},
		transport: transport,
		pin:       pin,
	}, nil
}

func (p *Pool) openSecure(address string, creds Credentials) (*conn, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(creds.CA) {
		return nil, errors.New("the CA of the credentials is no PEM certificate")
	}
	cert, err := tls.X509KeyPair(creds.Cert, creds.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the client certificate: %w", err)
	}

	pin := &pin{}
	return p.open(address, &tls.Config{
		MinVersion:   tls.VersionTLS12,
		RootCAs:      roots,
		Certificates: []tls.Certificate{cert},
		VerifyConnection: func(state tls.ConnectionState) error {
			pin.set(fingerprintOf(state))
			return nil
		},
	}, pin)
}

// pin is the fingerprint of the certificate that a connection met.
type pin struct {
	mu    sync.Mutex
	value string
}

func (p *pin) get() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.value
}

func (p *pin) set(value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.value = value
}

// anonymousVerifier stands for certificate verification where there is no CA:
// it holds the connection to the fingerprint asked for, else to the first one
// met, so that a reconnect cannot end up at another boot or another machine.
type anonymousVerifier struct {
	want string
	pin  pin
}

var errOtherCertificate = errors.New("the maintenance certificate changed under an open connection")

func (v *anonymousVerifier) verify(state tls.ConnectionState) error {
	got := fingerprintOf(state)
	if v.want != "" && got != v.want {
		return ErrFingerprintMismatch
	}
	if known := v.pin.get(); known != "" && known != got {
		return errOtherCertificate
	}
	v.pin.set(got)
	return nil
}

// fingerprintOf is the SPKI fingerprint, the form that Talos prints on its
// console and takes in `talosctl apply-config --cert-fingerprint`.
func fingerprintOf(state tls.ConnectionState) string {
	if len(state.PeerCertificates) == 0 {
		return ""
	}
	return talosx509.SPKIFingerprint(state.PeerCertificates[0]).String()
}

// maintenanceError and secureError read the reason out of the message: gRPC
// flattens handshake errors to text.
func maintenanceError(err error) error {
	message := err.Error()
	switch {
	case strings.Contains(message, ErrFingerprintMismatch.Error()):
		return ErrFingerprintMismatch
	case strings.Contains(message, "remote error: tls:"), status.Code(err) == codes.PermissionDenied, status.Code(err) == codes.Unauthenticated:
		return fmt.Errorf("%w: %w", ErrNotInMaintenance, err)
	}
	return err
}

func secureError(err error) error {
	message := err.Error()
	switch {
	case strings.Contains(message, "x509: certificate signed by unknown authority"),
		strings.Contains(message, "x509: certificate is valid for"),
		strings.Contains(message, "x509: cannot validate certificate"),
		strings.Contains(message, "remote error: tls:"):
		return fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return err
}
