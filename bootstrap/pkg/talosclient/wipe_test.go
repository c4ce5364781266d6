package talosclient

import (
	"context"
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/api/storage"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wiper keeps what it was told to wipe.
type wiper struct {
	machine.MachineServiceClient
	storage.StorageServiceClient
	reset *machine.ResetRequest
	wipe  *storage.BlockDeviceWipeRequest
	end   error
}

func (w *wiper) Reset(_ context.Context, request *machine.ResetRequest, _ ...grpc.CallOption) (*machine.ResetResponse, error) {
	w.reset = request
	if w.end != nil {
		return nil, w.end
	}
	return &machine.ResetResponse{}, nil
}

func (w *wiper) BlockDeviceWipe(_ context.Context, request *storage.BlockDeviceWipeRequest, _ ...grpc.CallOption) (*storage.BlockDeviceWipeResponse, error) {
	w.wipe = request
	if w.end != nil {
		return nil, w.end
	}
	return &storage.BlockDeviceWipeResponse{}, nil
}

func (w *wiper) node() *node {
	return &node{conn: &conn{Client: &client.Client{MachineClient: w, StorageClient: w}}}
}

func TestDisksAreWipedBesidePartitions(t *testing.T) {
	g, w := NewWithT(t), &wiper{}
	g.Expect(w.node().Reset(t.Context(), ResetOptions{SystemLabels: []string{"EPHEMERAL", "STATE"}, UserDisks: []string{"/dev/vdb"}})).To(Succeed())
	g.Expect(w.reset).To(And(
		HaveField("Reboot", true), HaveField("Graceful", false), HaveField("Mode", machine.ResetRequest_ALL), HaveField("UserDisksToWipe", []string{"/dev/vdb"}),
		HaveField("SystemPartitionsToWipe", HaveExactElements(
			And(HaveField("Label", "EPHEMERAL"), HaveField("Wipe", true)), And(HaveField("Label", "STATE"), HaveField("Wipe", true)),
		)),
	))
}

// TestPartitionsAreWipedUnderTalosChecks: those for a device in use are never skipped.
func TestPartitionsAreWipedUnderTalosChecks(t *testing.T) {
	g, w := NewWithT(t), &wiper{}
	g.Expect(w.node().WipeDevices(t.Context(), []string{"/dev/vdb1", "/dev/nvme0n1p2"})).To(Succeed())
	are := func(device string) OmegaMatcher {
		return And(HaveField("Device", device), HaveField("DropPartition", true), HaveField("Method", storage.BlockDeviceWipeDescriptor_FAST),
			HaveField("SkipVolumeCheck", false), HaveField("SkipSecondaryCheck", false))
	}
	g.Expect(w.wipe.GetDevices()).To(HaveExactElements(are("vdb1"), are("nvme0n1p2")))
}

func TestARefusalIsToldFromSilence(t *testing.T) {
	for code, refused := range map[codes.Code]bool{
		codes.Unknown: true, codes.FailedPrecondition: true, codes.PermissionDenied: true,
		codes.Unavailable: false, codes.DeadlineExceeded: false, codes.Canceled: false,
	} {
		t.Run(code.String(), func(t *testing.T) {
			g, w := NewWithT(t), &wiper{end: status.Error(code, "Talos' words")}
			for _, err := range []error{
				w.node().Reset(t.Context(), ResetOptions{}), w.node().WipeDevices(t.Context(), []string{"/dev/vdb1"}), refusal(fmt.Errorf("wrapped: %w", w.end)),
			} {
				g.Expect(err).To(MatchError(ContainSubstring("Talos' words")))
				g.Expect(errors.Is(err, ErrRefused)).To(Equal(refused))
			}
		})
	}
	NewWithT(t).Expect(errors.Is(refusal(errors.New("no transport")), ErrRefused)).To(BeFalse())
}
