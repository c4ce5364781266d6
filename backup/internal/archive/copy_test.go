package archive

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// copyOf copies the newest versions of all objects of a bucket, as mc mirror and rclone do.
func copyOf(t *testing.T, from store.Config, versioned bool) store.Config {
	t.Helper()
	g, into := NewWithT(t), bucket(t, versioned)
	for object := range server.ListObjectsIter(t.Context(), from.Bucket, minio.ListObjectsOptions{Recursive: true}) {
		g.Expect(object.Err).NotTo(HaveOccurred())
		body, err := server.GetObject(t.Context(), from.Bucket, object.Key, minio.GetObjectOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = server.PutObject(t.Context(), into.Bucket, object.Key, body, object.Size, minio.PutObjectOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(body.Close()).To(Succeed())
	}

	return into
}

// TestACopyOfABucketHasTheSameBackups: though the versions of its objects are others.
func TestACopyOfABucketHasTheSameBackups(t *testing.T) {
	for _, versioned := range [][2]bool{{true, true}, {true, false}, {false, true}, {false, false}} {
		t.Run(fmt.Sprintf("versioned %t, and the copy %t", versioned[0], versioned[1]), func(t *testing.T) {
			t.Parallel()
			g, key, plain := NewWithT(t), identity(t), snapshot(10_000)
			from := bucket(t, versioned[0])
			_, err := archiveOf(t, someCluster, from).Write(t.Context(), draft("a", "1"), "x", contents(plain, key.Recipient()))
			g.Expect(err).NotTo(HaveOccurred())
			into := copyOf(t, from, versioned[1])
			archive := archiveOf(t, someCluster, into)
			read, err := archive.Read(t.Context(), "a")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(archive.Check(t.Context(), read)).To(Succeed())
			whole(g, archive, read, plain, key)

			// What another make of server calls a version is none here.
			for _, foreign := range []string{"3HL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "0"} {
				elsewhere := *read
				elsewhere.Data.VersionID = foreign
				g.Expect(archive.Check(t.Context(), &elsewhere)).To(Succeed(), foreign)
			}

			// Its digest is what decides, here as there.
			folder := "some/prefix/clusters/team/prod/0123abcd/a/"
			for _, file := range []string{read.Data.Name, read.Secrets.Name} {
				g.Expect(server.Change(t.Context(), into.Bucket, folder+file, bytes.ToUpper)).To(Succeed())
			}
			g.Expect(archive.Check(t.Context(), read)).To(MatchError(pipeline.ErrStored))
			g.Expect(archive.Restore(t.Context(), read, io.Discard, key)).To(MatchError(pipeline.ErrStored))
			_, err = archive.Secrets(t.Context(), read, key)
			g.Expect(err).To(MatchError(pipeline.ErrStored))
		})
	}
}
