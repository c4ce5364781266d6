package talossim

import (
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
	"time"

	cosiv1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// answerGrace is how long calls may take that are under way when the API ends.
const answerGrace = 300 * time.Millisecond

// served is the Talos API, in maintenance mode or configured.
type served struct {
	server *grpc.Server
	ended  chan struct{}
}

// serve starts the Talos API.
func (b *boot) serve(config *tls.Config) error {
	listener, err := b.gate.listen(net.JoinHostPort(b.machine.spec.Address, strconv.Itoa(constants.ApidPort)))
	if err != nil {
		return err
	}
	present := &served{ended: make(chan struct{})}
	guard := &authorizer{machine: b.machine, maintenance: b.settings == nil, rules: rules()}
	present.server = grpc.NewServer(
		grpc.Creds(credentials.NewTLS(config)),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.UnaryInterceptor(guard.unary), grpc.StreamInterceptor(guard.stream),
		grpc.UnknownServiceHandler(lacking),
	)
	machine.RegisterMachineServiceServer(present.server, &api{boot: b, settings: b.settings})
	if b.sim.options.Personality == Metal {
		storage.RegisterStorageServiceServer(present.server, &storageAPI{boot: b})
	}
	readable := state.WrapCore(state.Filter(b.resources.state, guard.access))
	cosiv1.RegisterStateServer(present.server, server.NewState(readable))
	go func() {
		defer close(present.ended)
		_ = present.server.Serve(listener)
	}()
	b.served = present
	return nil
}

// stopServing ends the Talos API, if there is one. The answer to the call that
// ended it still goes out, unless it is to end now.
func (b *boot) stopServing(now bool) {
	if b.served == nil {
		return
	}
	present := b.served
	b.served = nil
	if !now {
		hard := time.AfterFunc(answerGrace, func() {
			b.gate.drop()
			present.server.Stop()
		})
		present.server.GracefulStop()
		hard.Stop()
	}
	b.gate.drop()
	present.server.Stop()
	<-present.ended
}

// selfSigned is the certificate of a maintenance service; each boot makes one.
func selfSigned(address string, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a key: %w", err)
	}
	const life = 24 * time.Hour
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{Organization: []string{"talos"}}, IPAddresses: []net.IP{net.ParseIP(address)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("making a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
