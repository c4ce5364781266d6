package talosclient_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"strconv"
	"testing"
	"time"

	cosiv1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// address is a loopback address of this test alone: the port is Talos' own.
const address = "127.83.17.5"

// talos is a Talos API with just the calls of these tests behind real TLS.
type talos struct {
	machine.UnimplementedMachineServiceServer
	resources state.State
	ls        error
	reset     func() error
	entries   []*machine.FileInfo
}

func (s *talos) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: "v1.13.9", Arch: "amd64"}}}}, nil
}

func (s *talos) List(_ *machine.ListRequest, stream grpc.ServerStreamingServer[machine.FileInfo]) error {
	for _, entry := range s.entries {
		if err := stream.Send(entry); err != nil {
			return err
		}
	}
	return s.ls
}

func (s *talos) ApplyConfiguration(context.Context, *machine.ApplyConfigurationRequest) (*machine.ApplyConfigurationResponse, error) {
	return nil, status.Error(codes.InvalidArgument, "unknown keys found")
}

func (s *talos) Bootstrap(context.Context, *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	return nil, status.Error(codes.AlreadyExists, "etcd data directory is not empty")
}

func (s *talos) Reset(context.Context, *machine.ResetRequest) (*machine.ResetResponse, error) {
	return nil, s.reset()
}

// authority signs the certificates of one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(g Gomega) authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<35, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())
	cert, err := x509.ParseCertificate(der)
	g.Expect(err).NotTo(HaveOccurred())
	return authority{cert: cert, key: key}
}

// issue returns a certificate for both ends and its PEM forms.
func (a authority) issue(g Gomega) (tls.Certificate, talosclient.Credentials) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{Organization: []string{"os:reader"}},
		IPAddresses: []net.IP{net.ParseIP(address)}, NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<35, 0),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	g.Expect(err).NotTo(HaveOccurred())
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	g.Expect(err).NotTo(HaveOccurred())
	creds := talosclient.Credentials{
		CA:   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}),
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
	pair, err := tls.X509KeyPair(creds.Cert, creds.Key)
	g.Expect(err).NotTo(HaveOccurred())
	return pair, creds
}

// serve starts the Talos API; with clients it demands their certificates.
func serve(t *testing.T, api *talos, cert tls.Certificate, clients *authority) {
	t.Helper()
	if api.resources == nil {
		api.resources = state.WrapCore(namespaced.NewState(inmem.Build))
	}
	serveAPI(t, api, api.resources, cert, clients)
}

func serveAPI(t *testing.T, api machine.MachineServiceServer, resources state.State, cert tls.Certificate, clients *authority) {
	t.Helper()
	serveWith(t, cert, clients, func(options ...grpc.ServerOption) *grpc.Server {
		srv := grpc.NewServer(options...)
		machine.RegisterMachineServiceServer(srv, api)
		cosiv1.RegisterStateServer(srv, server.NewState(resources))
		return srv
	})
}

// serveWith starts what newServer makes.
func serveWith(t *testing.T, cert tls.Certificate, clients *authority, newServer func(options ...grpc.ServerOption) *grpc.Server) {
	t.Helper()
	g := NewWithT(t)
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}
	if clients != nil {
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		config.ClientCAs.AddCert(clients.cert)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(talosclient.Port)))
	g.Expect(err).NotTo(HaveOccurred())
	srv := newServer(grpc.Creds(credentials.NewTLS(config)))
	go func() { _ = srv.Serve(listener) }()
	t.Cleanup(srv.Stop)
}

func stage(stage talosruntime.MachineStage) *talosruntime.MachineStatus {
	status := talosruntime.NewMachineStatus()
	status.TypedSpec().Stage = stage
	status.TypedSpec().Status.UnmetConditions = []talosruntime.UnmetCondition{{Name: "services", Reason: "etcd"}, {Name: "nodeReady", Reason: "no"}}
	return status
}

func TestMaintenanceIsBoundToTheCertificate(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, _ := ca.issue(g)
	api := &talos{resources: state.WrapCore(namespaced.NewState(inmem.Build))}
	g.Expect(api.resources.Create(t.Context(), stage(talosruntime.MachineStageMaintenance))).To(Succeed())
	serve(t, api, cert, nil)
	pool := talosclient.New()
	t.Cleanup(pool.Close)

	node, err := pool.Maintenance(t.Context(), address, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.MachineStatus(t.Context())).To(Equal(talosclient.MachineStatus{
		Stage: talosclient.StageMaintenance, Unmet: []string{"nodeReady: no", "services: etcd"},
	}))
	g.Expect(node.Version(t.Context())).To(Equal("v1.13.9"))

	_, err = pool.Maintenance(t.Context(), address, node.Fingerprint())
	g.Expect(err).NotTo(HaveOccurred(), "the certificate that was met is the one demanded")
	_, err = pool.Maintenance(t.Context(), address, "AAAA")
	g.Expect(err).To(MatchError(talosclient.ErrFingerprintMismatch))
}

func TestMaintenanceSaysThatAConfiguredNodeIsNone(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, _ := ca.issue(g)
	serve(t, &talos{}, cert, &ca)
	pool := talosclient.New()
	t.Cleanup(pool.Close)

	_, err := pool.Maintenance(t.Context(), address, "")
	g.Expect(err).To(MatchError(talosclient.ErrNotInMaintenance))
}

func TestSecureTellsAStrangerFromASilentNode(t *testing.T) {
	g := NewWithT(t)
	ca, other := newAuthority(g), newAuthority(g)
	cert, creds := ca.issue(g)
	_, strange := other.issue(g)
	pool := talosclient.New()
	t.Cleanup(pool.Close)

	_, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).To(HaveOccurred())
	g.Expect(err).NotTo(MatchError(talosclient.ErrUntrusted), "nobody listens")

	serve(t, &talos{}, cert, &ca)
	g.Eventually(func() error {
		_, err := pool.Secure(t.Context(), address, creds)
		return err
	}).Should(Succeed())
	_, err = pool.Secure(t.Context(), address, strange)
	g.Expect(err).To(MatchError(talosclient.ErrUntrusted))
}

func TestWatchTellsThePresentStatusAndEachChange(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, creds := ca.issue(g)
	api := &talos{resources: state.WrapCore(namespaced.NewState(inmem.Build))}
	g.Expect(api.resources.Create(t.Context(), stage(talosruntime.MachineStageBooting))).To(Succeed())
	serve(t, api, cert, &ca)
	pool := talosclient.New()
	t.Cleanup(pool.Close)
	node, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).NotTo(HaveOccurred())

	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan string, 8), make(chan error, 1)
	go func() {
		ended <- node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) { seen <- status.Stage })
	}()
	g.Eventually(seen).Should(Receive(Equal(talosclient.StageBooting)))
	_, err = api.resources.UpdateWithConflicts(t.Context(), stage(talosruntime.MachineStageBooting).Metadata(), func(r resource.Resource) error {
		r.(*talosruntime.MachineStatus).TypedSpec().Stage = talosruntime.MachineStageRunning //nolint:forcetypeassert // Made above.
		return nil
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(seen).Should(Receive(Equal(talosclient.StageRunning)))
	cancel()
	g.Eventually(ended).Should(Receive(MatchError(context.Canceled)))
}

func TestCallsTranslateTalosAnswers(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, creds := ca.issue(g)
	api := &talos{}
	serve(t, api, cert, &ca)
	pool := talosclient.New()
	t.Cleanup(pool.Close)
	node, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).NotTo(HaveOccurred())

	err = node.ApplyConfiguration(t.Context(), []byte("x"))
	g.Expect(err).To(MatchError(talosclient.ErrInvalidConfiguration))
	g.Expect(err).To(MatchError(ContainSubstring("unknown keys found")))
	g.Expect(node.Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))

	for name, c := range map[string]struct {
		entries []*machine.FileInfo
		end     error
		exists  bool
		fails   bool
	}{
		"an absent directory is no data":      {end: status.Error(codes.Unknown, "lstat /var/lib/etcd/member: no such file or directory")},
		"the directory alone is no data":      {entries: []*machine.FileInfo{{Name: "/var/lib/etcd/member", RelativeName: "."}}},
		"a file below it is data":             {entries: []*machine.FileInfo{{Name: "/var/lib/etcd/member", RelativeName: "."}, {Name: "/var/lib/etcd/member/wal", RelativeName: "wal"}}, exists: true},
		"any other error is not an answer":    {end: status.Error(codes.Unavailable, "gone"), fails: true},
		"a service that is away is no answer": {end: status.Error(codes.Unavailable, "dial unix /system/run/machined/machine.sock: connect: no such file or directory"), fails: true},
		"an error of one entry is no answer":  {entries: []*machine.FileInfo{{Metadata: &common.Metadata{}, Error: "permission denied"}}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			api.entries, api.ls = c.entries, c.end
			exists, err := node.EtcdDataExists(t.Context())
			g.Expect(err != nil).To(Equal(c.fails))
			g.Expect(exists).To(Equal(c.exists))
		})
	}
}

func TestVolumesAreFoundWithoutAConfiguration(t *testing.T) {
	g := NewWithT(t)
	resources := state.WrapCore(namespaced.NewState(inmem.Build))
	missing := block.NewVolumeStatus(block.NamespaceName, "STATE")
	missing.TypedSpec().Phase = block.VolumePhaseMissing
	missing.TypedSpec().Type = block.VolumeTypePartition
	known := block.NewVolumeStatus(block.NamespaceName, "META")
	known.TypedSpec().Location, known.TypedSpec().ParentLocation, known.TypedSpec().PartitionIndex = "/dev/vda4", "/dev/vda", 4
	known.TypedSpec().Type = block.VolumeTypePartition
	known.TypedSpec().PartitionUUID, known.TypedSpec().UUID = "of META", "of the content"
	put := func(res resource.Resource) { g.Expect(resources.Create(t.Context(), res)).To(Succeed()) }
	put(missing)
	put(known)
	for label, filesystem := range map[string]string{"STATE": "xfs", "EPHEMERAL": "xfs", "META": "talosmeta", "": "iso9660", "u-data": ""} {
		found := block.NewDiscoveredVolume(block.NamespaceName, "part-"+label)
		found.TypedSpec().PartitionLabel, found.TypedSpec().Name, found.TypedSpec().DevPath = label, filesystem, "/dev/"+label
		found.TypedSpec().Type, found.TypedSpec().ParentDevPath, found.TypedSpec().PartitionIndex = "partition", "/dev/vda", 7
		found.TypedSpec().PartitionUUID = "of " + label
		put(found)
	}
	whole := block.NewDiscoveredVolume(block.NamespaceName, "vdb")
	whole.TypedSpec().Type, whole.TypedSpec().DevPath, whole.TypedSpec().Name, whole.TypedSpec().UUID = "disk", "/dev/vdb", "ext4", "of the content"
	put(whole)
	authority := newAuthority(g)
	cert, _ := authority.issue(g)
	serve(t, &talos{resources: resources}, cert, nil)
	pool := talosclient.New()
	t.Cleanup(pool.Close)
	node, err := pool.Maintenance(t.Context(), address, "")
	g.Expect(err).NotTo(HaveOccurred())
	found := func(label, filesystem string) talosclient.Volume {
		return talosclient.Volume{
			Discovered: true, ID: label, Type: "partition", Location: "/dev/" + label, ParentLocation: "/dev/vda", PartitionIndex: 7, UUID: "of " + label, Filesystem: filesystem,
		}
	}
	g.Expect(node.Volumes(t.Context())).To(ConsistOf(
		talosclient.Volume{ID: "STATE", Type: "partition", Phase: "missing", Filesystem: "none"},
		talosclient.Volume{ID: "META", Type: "partition", Phase: "waiting", Location: "/dev/vda4", ParentLocation: "/dev/vda", PartitionIndex: 4, UUID: "of META", Filesystem: "none"},
		found("STATE", "xfs"), found("EPHEMERAL", "xfs"), found("META", "talosmeta"), found("", "iso9660"), found("u-data", ""),
		talosclient.Volume{Discovered: true, Type: "disk", Location: "/dev/vdb", UUID: "of the content", Filesystem: "ext4"},
	))
}
