package store

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7/pkg/signer"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// room is for what a full store takes, and nothing larger.
const room = 4 * partSize

// TestAFullStore says so, keeps nothing of what it has not taken, and takes the next upload once
// there is room: versitygw on a file system that is full, and MinIO with a bucket that has a
// quota.
func TestAFullStore(t *testing.T) {
	if !*onServers {
		t.Log("not run: this builds MinIO, and mounts a file system; ask for it with make test-stores")
		return
	}
	t.Run("versitygw", func(t *testing.T) {
		g, folder := NewWithT(t), t.TempDir()
		g.Expect(syscall.Mount("tmpfs", folder, "tmpfs", 0, fmt.Sprintf("size=%d", room))).To(Succeed(), "this needs root")
		t.Cleanup(func() { g.Expect(syscall.Unmount(folder, 0)).To(Succeed()) })
		full, err := s3server.Start(t.Context(), folder)
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { g.Expect(full.Stop()).To(Succeed()) })
		expectFull(t, bucketAt(t, full), room, func() {})

		// Something else is in the way.
		ballast := filepath.Join(folder, "ballast")
		g.Expect(os.WriteFile(ballast, make([]byte, room-partSize), 0o600)).To(Succeed())
		expectFull(t, bucketAt(t, full), partSize, func() { g.Expect(os.Remove(ballast)).To(Succeed()) })
	})
	t.Run("MinIO", func(t *testing.T) {
		g := NewWithT(t)
		full, err := s3server.StartMinIO(t.Context(), t.TempDir())
		g.Expect(err).NotTo(HaveOccurred())
		t.Cleanup(func() { g.Expect(full.Stop()).To(Succeed()) })
		config := bucketAt(t, full)
		limit := func(quota int) {
			body := fmt.Appendf(nil, `{"quota":%d,"quotatype":"hard"}`, quota)
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, full.Endpoint+"/minio/admin/v3/set-bucket-quota?bucket="+config.Bucket, bytes.NewReader(body))
			g.Expect(err).NotTo(HaveOccurred())
			request.Header.Set("X-Amz-Content-Sha256", sha256Of(body))
			transport, err := config.transport()
			g.Expect(err).NotTo(HaveOccurred())
			response, err := transport.RoundTrip(signer.SignV4(*request, s3server.AccessKey, s3server.SecretKey, "", defaultRegion))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(response.Body.Close()).To(Succeed())
			g.Expect(response.StatusCode).To(Equal(http.StatusOK))
		}
		limit(partSize / 2)
		expectFull(t, config, partSize, func() { limit(room) })
	})
}

// expectFull uploads more than there is room for, makes room, and uploads what fits.
func expectFull(t *testing.T, config Config, bytes int64, makeRoom func()) {
	t.Helper()
	g, store := NewWithT(t), open(t, config)
	data, _ := random(bytes)
	_, err := store.Upload(t.Context(), "too-large", "attempt", data)
	g.Expect(ReasonOf(err)).To(Equal(Full), "%v", err)
	g.Expect(keys(t, store)).To(BeEmpty())
	nothingUnfinished(t, store)
	makeRoom()
	data, _ = random(partSize)
	object, err := store.Upload(t.Context(), "fits", "attempt", data)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(store.Delete(t.Context(), object.Key, object.VersionID)).To(Succeed())
}
