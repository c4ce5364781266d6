package talosclient

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxListed bounds what a machine tells in answer to one call for a list, in bytes: many
// times what the largest machine has to tell. Whoever answers at the address of a host
// may be anybody, and must not fill the memory of a manager that serves others too.
const maxListed = 4 << 20

// boundLists is an interceptor that ends a list that does not end.
func boundLists(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	opened, err := open(ctx, desc, conn, method, options...)
	if err != nil || !strings.HasSuffix(method, "/List") {
		return opened, err
	}

	return &boundedList{ClientStream: opened, method: method}, nil
}

type boundedList struct {
	grpc.ClientStream
	method string
	told   int
}

// RecvMsg implements grpc.ClientStream.
func (b *boundedList) RecvMsg(message any) error {
	if err := b.ClientStream.RecvMsg(message); err != nil {
		return err
	}
	if received, ok := message.(proto.Message); ok {
		b.told += proto.Size(received)
	}
	if b.told > maxListed {
		return status.Errorf(codes.ResourceExhausted, "the machine answers %s with more than %d bytes", b.method, maxListed)
	}

	return nil
}
