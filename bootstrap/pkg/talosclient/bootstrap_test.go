package talosclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/utils/clock"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// upload is how a database has arrived at a node.
type upload struct {
	Content []byte
	// End is nil when the caller said that it was all.
	End error
}

// recovering is a node that takes databases, or refuses all calls.
type recovering struct {
	machine.UnimplementedMachineServiceServer
	refusal error
	uploads chan upload
}

func (r *recovering) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return &machine.VersionResponse{Messages: []*machine.Version{{Version: &machine.VersionInfo{Tag: "v1.13.9"}}}}, nil
}

func (r *recovering) Bootstrap(context.Context, *machine.BootstrapRequest) (*machine.BootstrapResponse, error) {
	return nil, r.refusal
}

func (r *recovering) EtcdRecover(stream grpc.ClientStreamingServer[common.Data, machine.EtcdRecoverResponse]) error {
	if r.refusal != nil {
		return r.refusal
	}
	taken := upload{}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			r.uploads <- taken
			return stream.SendAndClose(&machine.EtcdRecoverResponse{Messages: []*machine.EtcdRecover{{}}})
		}
		if err != nil {
			taken.End = err
			r.uploads <- taken
			return err
		}
		taken.Content = append(taken.Content, part.GetBytes()...)
	}
}

// recoveringNode is a connection to such a node, whose calls are counted.
func recoveringNode(t *testing.T) (talosclient.Node, *recovering, *talosclient.Metrics) {
	t.Helper()
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, creds := ca.issue(g)
	api, metrics := &recovering{uploads: make(chan upload, 1)}, talosclient.NewMetrics(clock.RealClock{})
	serveWith(t, cert, &ca, func(options ...grpc.ServerOption) *grpc.Server {
		server := grpc.NewServer(options...)
		machine.RegisterMachineServiceServer(server, api)
		return server
	})
	pool := talosclient.New(talosclient.WithMetrics(metrics))
	t.Cleanup(pool.Close)
	node, err := pool.Secure(t.Context(), address, creds)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = node.Close() })
	return node, api, metrics
}

func TestADatabaseArrivesWhole(t *testing.T) {
	g := NewWithT(t)
	node, api, metrics := recoveringNode(t)
	for _, size := range []int{0, 1, 4096, 300_000} {
		database := bytes.Repeat([]byte("etcd"), size/4+1)[:size]
		for name, reader := range map[string]io.Reader{
			"the end comes alone":               bytes.NewReader(database),
			"the end comes with the last bytes": iotest.DataErrReader(bytes.NewReader(database)),
			"in small parts":                    iotest.HalfReader(bytes.NewReader(database)),
		} {
			g.Expect(node.EtcdRecover(t.Context(), reader)).To(Succeed())
			taken := <-api.uploads
			g.Expect(taken.End).NotTo(HaveOccurred())
			g.Expect(bytes.Equal(taken.Content, database)).To(BeTrue(), "%d bytes, %s: %d arrived", size, name, len(taken.Content))
		}
	}
	g.Expect(testutil.CollectAndCompare(metrics, strings.NewReader(`
# HELP capi_talos_talos_requests_total Calls of the Talos API, by gRPC method and by the code of the answer.
# TYPE capi_talos_talos_requests_total counter
capi_talos_talos_requests_total{code="OK",method="machine.MachineService/EtcdRecover"} 12
capi_talos_talos_requests_total{code="OK",method="machine.MachineService/Version"} 1
`), requests)).To(Succeed())
}

// TestADatabaseThatCannotBeReadIsNotAllOfIt: the call is ended, and never completed.
func TestADatabaseThatCannotBeReadIsNotAllOfIt(t *testing.T) {
	g := NewWithT(t)
	node, api, _ := recoveringNode(t)
	for _, failure := range []error{
		errors.New("the store is gone"), io.ErrUnexpectedEOF, fmt.Errorf("connection lost: %w", io.EOF),
		status.Error(codes.PermissionDenied, "of another node"),
	} {
		err := node.EtcdRecover(t.Context(), io.MultiReader(strings.NewReader("etcd"), iotest.ErrReader(failure)))
		g.Expect(err).To(MatchError(failure))
		g.Expect(errors.Is(err, talosclient.ErrBootstrapRefused)).To(BeFalse(), "the node has refused nothing")
		g.Expect(<-api.uploads).To(HaveField("End", HaveOccurred()), "%v", failure)
	}
}

// TestADatabaseIsSentAsLongAsItTakes: only the caller ends the call.
func TestADatabaseIsSentAsLongAsItTakes(t *testing.T) {
	g := NewWithT(t)
	node, api, _ := recoveringNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	endless, writer := io.Pipe()
	t.Cleanup(func() { _ = writer.Close() })
	ended := make(chan error, 1)
	go func() { ended <- node.EtcdRecover(ctx, endless) }()
	_, err := writer.Write([]byte("etcd"))
	g.Expect(err).NotTo(HaveOccurred())
	cancel()
	g.Eventually(api.uploads).Should(Receive(HaveField("End", HaveOccurred())))
	go func() { _, _ = writer.Write([]byte("etcd")) }() // Reading goes on until something comes.
	g.Eventually(ended).Should(Receive(HaveOccurred()))
}

func TestWhatRefusesABootstrap(t *testing.T) {
	node, api, _ := recoveringNode(t)
	for code, refused := range map[codes.Code]bool{
		codes.FailedPrecondition: true, codes.Unimplemented: true, codes.PermissionDenied: true, codes.Unauthenticated: true,
		codes.Unavailable: false, codes.Unknown: false, codes.DeadlineExceeded: false, codes.Internal: false,
	} {
		t.Run(code.String(), func(t *testing.T) {
			g := NewWithT(t)
			api.refusal = status.Error(code, "Talos' words")
			for _, err := range []error{
				node.Bootstrap(t.Context()), node.BootstrapFromSnapshot(t.Context()),
				node.EtcdRecover(t.Context(), bytes.NewReader(make([]byte, 300_000))),
			} {
				g.Expect(err).To(MatchError(ContainSubstring("Talos' words")))
				g.Expect(errors.Is(err, talosclient.ErrBootstrapRefused)).To(Equal(refused))
			}
		})
	}
	g := NewWithT(t)
	api.refusal = status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	g.Expect(node.Bootstrap(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
	g.Expect(node.BootstrapFromSnapshot(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
}
