package talosclient_test

import (
	"testing"

	cosiv1 "github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/protobuf/server"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// endless are resources whose lists have no end.
type endless struct {
	*server.State
	item  *cosiv1.ListResponse
	ended chan error
}

func (e *endless) List(_ *cosiv1.ListRequest, stream grpc.ServerStreamingServer[cosiv1.ListResponse]) error {
	for {
		if err := stream.Send(e.item); err != nil {
			e.ended <- err
			return err
		}
	}
}

// TestAMachineThatTellsWithoutEndIsLeft: its words would fill the memory of the manager.
func TestAMachineThatTellsWithoutEndIsLeft(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	pair, _ := newAuthority(g).issue(g)
	const reads = 16
	api := &endless{
		State: server.NewState(state.WrapCore(namespaced.NewState(inmem.Build))), ended: make(chan error, reads),
		item: &cosiv1.ListResponse{Resource: &cosiv1.Resource{
			Metadata: &cosiv1.Metadata{Namespace: "ns", Type: "Any", Id: "id", Version: "1", Phase: "running"},
			Spec:     &cosiv1.Spec{YamlSpec: "a: " + string(make([]byte, 1<<16))},
		}},
	}
	serveWith(t, pair, nil, func(options ...grpc.ServerOption) *grpc.Server {
		srv := grpc.NewServer(options...)
		machine.RegisterMachineServiceServer(srv, &talos{})
		cosiv1.RegisterStateServer(srv, api)
		return srv
	})
	pool := talosclient.New()
	defer pool.Close()
	node, err := pool.Maintenance(ctx, address, "")
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { g.Expect(node.Close()).To(Succeed()) }()
	_, err = node.Hardware(ctx)
	g.Expect(status.Code(err)).To(Equal(codes.ResourceExhausted), "%v", err)
	g.Eventually(api.ended).Should(Receive())
}
