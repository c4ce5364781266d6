package talosclient

import (
	"context"
	"crypto/tls"
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
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
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
	// window is how many bytes a node may send that nobody has read: enough for 20 MiB/s at
	// 50 ms. gRPC's own windows begin with two chunks of a snapshot of etcd, for which the node
	// waits, and may grow to 16 MiB of memory behind a slow store.
	window = 1 << 20
)

// Maintenance implements Dialer. These connections are not pooled: each one is
// bound to the certificate, and so to the boot, that it first met.
func (p *Pool) Maintenance(ctx context.Context, address, fingerprint string) (Node, error) {
	verifier := &anonymousVerifier{want: fingerprint}
	c := &conn{pin: &verifier.pin}
	//nolint:gosec // G402: a machine in maintenance mode has a self-signed certificate; anonymousVerifier pins it.
	err := p.open(c, address, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true,
		VerifyConnection:   verifier.verify,
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to the maintenance service of %s: %w", address, err)
	}
	p.track(c)

	node := p.node(c)
	if _, err := node.MachineStatus(ctx); err != nil {
		_ = node.Close()
		return nil, fmt.Errorf("connecting to the maintenance service of %s: %w", address, maintenanceError(err))
	}
	return node, nil
}

// Secure implements Dialer.
func (p *Pool) Secure(ctx context.Context, address string, creds Credentials) (Node, error) {
	id, err := identify(creds, p.clock.Now())
	if err != nil {
		return nil, fmt.Errorf("connecting to the Talos API of %s: %w", address, err)
	}
	c, err := p.lease(address, id)
	if err != nil {
		return nil, fmt.Errorf("connecting to the Talos API of %s: %w", address, err)
	}
	node := p.node(c)
	if c.isReady() {
		return node, nil // It was verified, and each handshake since has been.
	}
	// Who may not read the version, as one who may make backups only, is known to the node
	// as well.
	if _, err := node.Version(ctx); err != nil && status.Code(err) != codes.PermissionDenied {
		p.retire(c)
		_ = node.Close()
		return nil, fmt.Errorf("connecting to the Talos API of %s: %w", address, secureError(err, id, p.clock.Now()))
	}
	return node, nil
}

// open makes the transport of a connection. Nothing is sent before the first call.
func (p *Pool) open(c *conn, address string, config *tls.Config) error {
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: tcpKeepaliveIdle, Interval: tcpKeepaliveEvery, Count: tcpKeepaliveCount,
	}}
	options := append(slices.Clone(p.observers), grpc.WithChainStreamInterceptor(boundLists),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", target)
		}),
		grpc.WithTransportCredentials(newPatientTLS(config)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(constants.GRPCMaxMessageSize)),
		grpc.WithNoProxy(),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithIdleTimeout(0), // The pool closes what nobody uses.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveInterval, Timeout: connectTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
	)
	transport, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(address, strconv.Itoa(Port)), options...)
	if err != nil {
		return err
	}
	c.transport = transport
	c.Client = &client.Client{
		MachineClient: machine.NewMachineServiceClient(transport),
		StorageClient: storage.NewStorageServiceClient(transport),
		// A watch that breaks is reported: the machine may be another one, or
		// in another boot, when it answers again.
		COSI: state.WrapCore(cosi.NewAdapter(cosiv1.NewStateClient(transport), cosi.WithDisableWatchRetry())),
	}
	return nil
}

func (p *Pool) openSecure(address string, id *identity) (*conn, error) {
	c := &conn{pin: &pin{}}
	c.identity.Store(id)
	err := p.open(c, address, &tls.Config{
		MinVersion: tls.VersionTLS12,
		//nolint:gosec // G402: verifyServer verifies the chain, and says why it pins no name.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if err := id.verifyServer(state, p.clock.Now()); err != nil {
				return err
			}
			c.ends.Store(&state.PeerCertificates[0].NotAfter)
			c.pin.set(fingerprintOf(state))
			return nil
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &c.identity.Load().certificate, nil
		},
	})
	return c, err
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

// maintenanceError reads the reason out of the message: gRPC flattens handshake
// errors to text.
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
