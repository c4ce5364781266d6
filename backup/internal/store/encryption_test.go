package store

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"io"
	"testing"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/encrypt"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// onServers asks for what needs MinIO, which takes minutes to build, or root (make test-stores).
var onServers = flag.Bool("servers", false, "test what needs MinIO, or root")

// TestEncryptionByTheServer: with a key that it has, one of its key management, and one that
// is sent with each request.
func TestEncryptionByTheServer(t *testing.T) {
	if !*onServers {
		t.Log("not run: this builds MinIO, ask for it with make test-stores")
		return
	}
	g := NewWithT(t)
	encrypting, err := s3server.StartMinIO(t.Context(), t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(encrypting.Stop()).To(Succeed()) })
	managed, err := encrypt.NewSSEKMS(s3server.KMSKey, nil)
	g.Expect(err).NotTo(HaveOccurred())
	ours, err := encrypt.NewSSEC(bytes.Repeat([]byte{1}, 32))
	g.Expect(err).NotTo(HaveOccurred())
	other, err := encrypt.NewSSEC(bytes.Repeat([]byte{2}, 32))
	g.Expect(err).NotTo(HaveOccurred())
	for name, with := range map[string]struct {
		encryption encrypt.ServerSide
		header     string
	}{"server-key": {encrypt.NewSSE(), "AES256"}, "managed-key": {managed, "aws:kms"}, "customer-key": {ours, ""}} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			config := bucketAt(t, encrypting)
			config.Encryption = with.encryption
			store := open(t, config)
			_, err := store.Check(t.Context(), "probe", true)
			g.Expect(err).NotTo(HaveOccurred())
			data, sum := random(3*partSize + 7)
			object, err := store.Upload(t.Context(), "large", "attempt", data)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = store.Put(t.Context(), "small", []byte("small"))
			g.Expect(err).NotTo(HaveOccurred())
			back, _, err := store.Get(t.Context(), "large", object.VersionID)
			g.Expect(err).NotTo(HaveOccurred())
			read, err := io.ReadAll(back)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(back.Close()).To(Succeed())
			g.Expect(sha256.Sum256(read)).To(Equal(sum()))
			small, _, err := store.GetSmall(t.Context(), "small", "", 100)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(small)).To(Equal("small"))

			found, err := encrypting.StatObject(t.Context(), config.Bucket, "large", minio.StatObjectOptions{})
			if with.header != "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(found.Metadata.Get("X-Amz-Server-Side-Encryption")).To(Equal(with.header))
			} else {
				g.Expect(err).To(HaveOccurred(), "nobody reads it without the key")
				config.Encryption = other
				_, _, err = open(t, config).GetSmall(t.Context(), "small", "", 100)
				g.Expect(ReasonOf(err)).NotTo(Or(BeEmpty(), Equal(NotFound)), "nor with another one")
			}
			g.Expect(keys(t, store)).To(HaveLen(2))
			for object, err := range store.List(t.Context(), "") {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(store.Delete(t.Context(), object.Key, object.VersionID)).To(Succeed())
			}
			g.Expect(keys(t, store)).To(BeEmpty())
			nothingUnfinished(t, store)
		})
	}
}
