package talosclient

import (
	"bytes"
	"context"
	"io"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// sent is a stream of messages that were sent, each decoded as gRPC does.
type sent struct {
	grpc.ClientStream

	codec    *chunkCodec
	messages []*common.Data
}

func (s *sent) RecvMsg(into any) error {
	if len(s.messages) == 0 {
		return io.EOF
	}
	data, err := s.codec.Marshal(s.messages[0])
	if err != nil {
		return err
	}
	s.messages = s.messages[1:]
	// It comes in pieces.
	text := data.Materialize()
	half := len(text) / 2
	return s.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text[:half]), mem.SliceBuffer(text[half:])}, into)
}

func snapshotOf(messages ...*common.Data) io.ReadCloser {
	_, cancel := context.WithCancel(context.Background())
	return &snapshotStream{messages: &sent{codec: &chunkCodec{CodecV2: encoding.GetCodecV2(proto.Name)}, messages: messages}, cancel: cancel}
}

// TestASnapshotIsWhatItsChunksAre: each is decoded into the memory of the one before.
func TestASnapshotIsWhatItsChunksAre(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	long, short := bytes.Repeat([]byte("long"), 1000), []byte("short")
	snapshot := snapshotOf(&common.Data{Bytes: long}, &common.Data{}, &common.Data{Bytes: short}, &common.Data{Bytes: long})
	g.Expect(io.ReadAll(snapshot)).To(Equal(slices.Concat(long, short, long)))
	g.Expect(snapshot.Close()).To(Succeed())
}

// TestASnapshotThatANodeGivesUpIsNoWholeOne: what a proxy reports in a chunk is an error.
func TestASnapshotThatANodeGivesUpIsNoWholeOne(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	read, err := io.ReadAll(snapshotOf(&common.Data{Bytes: []byte("begun")}, &common.Data{Metadata: &common.Metadata{Status: status.New(codes.Unavailable, "no such node").Proto()}}))
	g.Expect(status.Code(err)).To(Equal(codes.Unavailable))
	g.Expect(read).To(Equal([]byte("begun")))
}
