package talosclient

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Bootstrap implements Node.
func (n *node) Bootstrap(ctx context.Context) error {
	return n.bootstrap(ctx, &machine.BootstrapRequest{})
}

// BootstrapFromSnapshot implements Node.
func (n *node) BootstrapFromSnapshot(ctx context.Context) error {
	return n.bootstrap(ctx, &machine.BootstrapRequest{RecoverEtcd: true, RecoverSkipHashCheck: true})
}

func (n *node) bootstrap(ctx context.Context, request *machine.BootstrapRequest) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	err := n.Client.Bootstrap(ctx, request)
	if status.Code(err) == codes.AlreadyExists {
		return ErrAlreadyBootstrapped
	}
	return bootstrapError("bootstrapping etcd", err)
}

// EtcdRecover implements Node.
func (n *node) EtcdRecover(ctx context.Context, database io.Reader) error {
	// The SDK leaves the call open when the database cannot be read on, and a call that is
	// ended keeps nothing on the node.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sent := &upload{Reader: database}
	_, err := n.Client.EtcdRecover(ctx, sent)
	if sent.failure != nil {
		return fmt.Errorf("reading a database of etcd: %w", sent.failure)
	}
	return bootstrapError("sending a database of etcd", err)
}

// bootstrapError tells the refusals of what begins an etcd from other errors.
func bootstrapError(doing string, err error) error {
	switch status.Code(err) {
	case codes.OK:
		return nil
	case codes.FailedPrecondition, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return fmt.Errorf("%w: %s", ErrBootstrapRefused, status.Convert(err).Message())
	default:
		return fmt.Errorf("%s: %w", doing, err)
	}
}

// upload is a database as the SDK can be given it (pkg/machinery/client/client.go,
// EtcdRecover): that drops bytes that come together with the end, and takes every error
// for the end that wraps io.EOF.
type upload struct {
	io.Reader
	// failure is why the database could not be read to its end.
	failure error
}

var errUnreadable = errors.New("the database cannot be read")

// Read implements io.Reader.
func (u *upload) Read(into []byte) (int, error) {
	read, err := u.Reader.Read(into)
	switch { // Only io.EOF itself is the end.
	case err == nil || err == io.EOF && read > 0:
		return read, nil
	case err == io.EOF:
		return 0, io.EOF
	}
	u.failure = err
	return read, errUnreadable
}
