package talosclient

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// EtcdSnapshot implements Node.
func (n *node) EtcdSnapshot(ctx context.Context) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	chunks := &chunkCodec{CodecV2: encoding.GetCodecV2(proto.Name)}
	messages, err := n.Client.MachineClient.EtcdSnapshot(ctx, &machine.EtcdSnapshotRequest{}, grpc.ForceCodecV2(chunks))
	if err != nil {
		cancel()
		return nil, fmt.Errorf("beginning a snapshot of etcd: %w", err)
	}
	return &snapshotStream{messages: messages, cancel: cancel}, nil
}

// snapshotStream reads the chunks of a snapshot. The SDK's reader makes a message for each of
// them: garbage of the size of the database.
type snapshotStream struct {
	messages grpc.ClientStream
	cancel   context.CancelFunc
	chunk    common.Data
	unread   []byte
}

// Read implements io.Reader.
func (s *snapshotStream) Read(into []byte) (int, error) {
	for len(s.unread) == 0 {
		if err := s.messages.RecvMsg(&s.chunk); err != nil {
			return 0, err //nolint:wrapcheck // io.EOF must stay as it is.
		}
		// A proxy says so that it has lost the node. The SDK looks for it, too.
		if err := status.FromProto(s.chunk.GetMetadata().GetStatus()).Err(); err != nil { //nolint:staticcheck // SA1019: see above.
			return 0, err //nolint:wrapcheck // Callers read its code.
		}
		s.unread = s.chunk.GetBytes()
	}
	read := copy(into, s.unread)
	s.unread = s.unread[read:]
	return read, nil
}

// Close implements io.Closer: it ends the call.
func (s *snapshotStream) Close() error {
	s.cancel()
	return nil
}

// chunkCodec decodes the chunks of one stream, each into the memory of the one before.
type chunkCodec struct {
	encoding.CodecV2

	message []byte
}

// Unmarshal implements encoding.CodecV2.
func (c *chunkCodec) Unmarshal(data mem.BufferSlice, into any) error {
	chunk, ok := into.(*common.Data)
	if !ok {
		return c.CodecV2.Unmarshal(data, into)
	}
	c.message = slices.Grow(c.message[:0], data.Len())[:data.Len()]
	data.CopyTo(c.message)
	chunk.Metadata, chunk.Bytes = nil, chunk.Bytes[:0]
	return chunk.UnmarshalVT(c.message)
}
