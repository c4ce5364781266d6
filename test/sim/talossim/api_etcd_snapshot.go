package talossim

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"math"
	"math/rand/v2"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
)

const (
	// smallSnapshot is how large a snapshot is by default, and snapshotChunk how much of it
	// a message has.
	smallSnapshot = 256 << 10
	snapshotChunk = 32 << 10
)

// EtcdSnapshot streams what stands for the database of the machine's own etcd, with its
// checksum at the end. A learner has one, too (server/etcdserver/api/v3rpc/interceptor.go
// of etcd v3.6.16, newStreamInterceptor). As in Talos, an error once the first bytes are
// sent ends the stream as if it were complete
// (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go).
func (a *api) EtcdSnapshot(_ *machine.EtcdSnapshotRequest, stream machine.MachineService_EtcdSnapshotServer) error {
	if err := a.controlPlane("etcd snapshot"); err != nil {
		return err
	}
	var (
		faults Faults
		err    error
	)
	a.boot.sim.look(func() {
		_, err = a.local()
		faults = a.boot.machine.faults
	})
	if err != nil {
		return answered(stream.Context(), "failed reading etcd snapshot", err)
	}
	size := cmp.Or(faults.SnapshotBytes, smallSnapshot)
	given := Snapshot(a.settings.etcd, size)
	if faults.Snapshot != nil {
		other, err := faults.Snapshot()
		if err != nil {
			return fmt.Errorf("opening the snapshot: %w", err)
		}
		defer func() { _ = other.Close() }()
		given, size = other, math.MaxInt64
	}
	snapshot := io.LimitReader(given, cmp.Or(faults.SnapshotEnds, size))
	for chunk := make([]byte, snapshotChunk); ; {
		read, err := io.ReadFull(snapshot, chunk)
		if read == 0 {
			return nil
		}
		if err := stream.Send(&common.Data{Bytes: chunk[:read]}); err != nil {
			return fmt.Errorf("sending the snapshot: %w", err)
		}
		if faults.SnapshotHangs {
			<-stream.Context().Done()
			return stream.Context().Err() //nolint:wrapcheck // It is for the caller that is gone.
		}
		if err != nil {
			return nil //nolint:nilerr // It is the end.
		}
	}
}

// Snapshot is what the machines of an etcd cluster give as a snapshot of so many bytes:
// always the same, with the checksum of all before in the last 32 bytes, as etcd has it.
func Snapshot(cluster string, size int64) io.Reader {
	sum := sha256.New()
	data := io.LimitReader(rand.NewChaCha8(sha256.Sum256([]byte(cluster))), size-sha256.Size)

	return io.MultiReader(io.TeeReader(data, sum), &late{of: func() []byte { return sum.Sum(nil) }})
}

// late is data that is made when the first of it is read.
type late struct {
	of   func() []byte
	data []byte
	made bool
}

// Read implements io.Reader.
func (l *late) Read(into []byte) (int, error) {
	if !l.made {
		l.data, l.made = l.of(), true
	}
	if len(l.data) == 0 {
		return 0, io.EOF
	}
	read := copy(into, l.data)
	l.data = l.data[read:]

	return read, nil
}
