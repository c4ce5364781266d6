package talossim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"strconv"
	"sync"
	"time"

	cosiv1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// talosPort is where the Talos API listens.
const talosPort = 50000

// served is the Talos API of one boot.
type served struct {
	make func() (*grpc.Server, net.Listener, error)

	mu     sync.Mutex
	server *grpc.Server
	ended  bool
}

// setSilent stops the API, or serves it again.
func (s *served) setSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case silent && s.server != nil:
		s.server.Stop()
		s.server = nil
	case !silent && s.server == nil && !s.ended:
		// It served before: the address is its own.
		_ = s.start()
	}
}

func (s *served) start() error {
	srv, listener, err := s.make()
	if err != nil {
		return err
	}
	s.server = srv
	go func() { _ = srv.Serve(listener) }()
	return nil
}

func (s *served) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if s.server == nil {
		return
	}
	// The answer to the call that ended the boot still goes out; watches do not
	// hold it up.
	hard := time.AfterFunc(answerGrace, s.server.Stop)
	s.server.GracefulStop()
	hard.Stop()
	s.server = nil
}

// answerGrace is how long calls may take that are under way when a boot ends.
const answerGrace = 300 * time.Millisecond

// serve starts the Talos API of this boot.
func (b *boot) serve(ctx context.Context, config *tls.Config) error {
	address := net.JoinHostPort(b.machine.spec.Address, strconv.Itoa(talosPort))
	present := &served{make: func() (*grpc.Server, net.Listener, error) {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return nil, nil, fmt.Errorf("listening for the Talos API: %w", err)
		}
		guard := &authorizer{machine: b.machine, maintenance: b.settings == nil}
		srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.UnaryInterceptor(guard.unary), grpc.StreamInterceptor(guard.stream))
		machine.RegisterMachineServiceServer(srv, &api{boot: b})
		cosiv1.RegisterStateServer(srv, server.NewState(b.resources.state))
		return srv, listener, nil
	}}
	b.sim.mu.Lock()
	silent := b.machine.faults.Silent
	b.machine.served = present
	b.sim.mu.Unlock()
	b.onEnd(func() {
		present.end()
		b.sim.update(func() {
			if b.machine.served == present {
				b.machine.served = nil
			}
		})
	})
	if silent {
		return nil
	}
	present.mu.Lock()
	defer present.mu.Unlock()
	return present.start()
}

// selfSigned is the certificate of a maintenance service; each boot makes one.
func selfSigned(address string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a key: %w", err)
	}
	const life = 24 * time.Hour
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"talos"}}, IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(life), //nolint:forbidigo // Real clients look at it.
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
