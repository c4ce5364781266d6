package talossim_test

import (
	"context"
	"crypto/sha256"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// snapshot reads a snapshot of a machine with the rights of a role.
func (w *world) snapshot(ctx context.Context, m *talossim.Machine, role string) ([]byte, error) {
	node := w.secure(m, role)
	stream, err := node.EtcdSnapshot(ctx)
	w.Expect(err).NotTo(HaveOccurred(), "the stream tells what is wrong")
	data, err := io.ReadAll(stream)
	w.Expect(stream.Close()).To(Succeed())
	w.Expect(node.Close()).To(Succeed())

	return data, err
}

func TestASnapshotEndsWithItsChecksum(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	for _, size := range []int64{0, 1000, 32 << 10, 1 << 20} {
		m.Break(talossim.Faults{SnapshotBytes: size})
		data, err := w.snapshot(t.Context(), m, secrets.RoleEtcdBackup)
		w.Expect(err).NotTo(HaveOccurred())
		if size > 0 {
			w.Expect(data).To(HaveLen(int(size)))
		}
		sum := sha256.Sum256(data[:len(data)-sha256.Size])
		w.Expect(data[len(data)-sha256.Size:]).To(Equal(sum[:]))
	}
	// As Talos does, when it cannot read on.
	m.Break(talossim.Faults{SnapshotBytes: 1000, SnapshotEnds: 600})
	data, err := w.snapshot(t.Context(), m, secrets.RoleEtcdBackup)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(data).To(HaveLen(600))
}

func TestASnapshotIsForThoseWhoMakeBackups(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	_, err := w.snapshot(t.Context(), m, secrets.RoleReader)
	w.Expect(status.Code(err)).To(Equal(codes.PermissionDenied))
	worker := w.add()
	w.configure(worker, configgen.RoleWorker)
	_, err = w.snapshot(t.Context(), worker, secrets.RoleEtcdBackup)
	w.Expect(status.Code(err)).To(Equal(codes.Unimplemented))
}

func TestASnapshotThatHangsEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	m.Break(talossim.Faults{SnapshotHangs: true})
	node := w.secure(m, secrets.RoleEtcdBackup)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := node.EtcdSnapshot(ctx)
	w.Expect(err).NotTo(HaveOccurred())
	_, err = io.CopyN(io.Discard, stream, 1000)
	w.Expect(err).NotTo(HaveOccurred())
	cancel()
	_, err = io.Copy(io.Discard, stream)
	w.Expect(status.Code(err)).To(Equal(codes.Canceled))
	w.Expect(stream.Close()).To(Succeed())
}
