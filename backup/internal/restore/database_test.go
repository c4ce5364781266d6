package restore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/test/support/etcds"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

const pods = 10

// write writes Pods.
func write(ctx context.Context, client *clientv3.Client) error {
	for i := range pods {
		if _, err := client.Put(ctx, fmt.Sprintf("/registry/pods/team/%d", i), "{}"); err != nil {
			return err
		}
	}

	return nil
}

// newArchive is an empty one.
func newArchive(t *testing.T) *archive.Archive {
	t.Helper()
	const bucket = "backups"
	g := NewWithT(t)
	if found, err := server.BucketExists(t.Context(), bucket); err != nil || !found {
		g.Expect(server.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{})).To(Succeed())
	}
	opened, err := store.Open(store.Config{
		Endpoint: server.Endpoint, Bucket: bucket, PathStyle: true, CA: server.CA, Guard: egress.Guard{AllowLocal: true}, Attempts: 1,
		Credentials: credentials.Value{AccessKeyID: s3server.AccessKey, SecretAccessKey: s3server.SecretKey},
	}, time.Now)
	g.Expect(err).NotTo(HaveOccurred())
	found, err := archive.Of(archive.Cluster{Namespace: "team", Name: "prod", Identity: "0123abcd"}, opened, fmt.Sprintf("%x", t.Name()))
	g.Expect(err).NotTo(HaveOccurred())

	return found
}

// backup stores a backup of a snapshot, and returns who can read it.
func backup(t *testing.T, in *archive.Archive, etcdVersion string, snapshot []byte) (*archive.Manifest, *age.X25519Identity) {
	t.Helper()
	g := NewWithT(t)
	key, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	manifest, err := in.Write(t.Context(), archive.Manifest{Name: "one", UID: "one", EtcdVersion: etcdVersion, Tool: "test"}, "attempt", archive.Contents{
		Snapshot: io.NopCloser(bytes.NewReader(snapshot)), Recipients: []age.Recipient{key.Recipient()}, Ended: time.Now,
	})
	g.Expect(err).NotTo(HaveOccurred())

	return manifest, key
}

// newMaker has a scratch folder that is to be empty in the end.
func newMaker(t *testing.T) *Maker {
	t.Helper()
	g, folder := NewWithT(t), filepath.Join(t.TempDir(), "scratch")
	space, err := scratch.New(folder, 0)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(os.ReadDir(folder)).To(BeEmpty()) })

	return &Maker{Scratch: space, Programs: etcdtool.Programs{Folder: programs}}
}

// TestADatabaseIsMade of a backup, from which Talos makes an etcd: it has all keys, its
// revision is raised, and nobody reads what was before.
func TestADatabaseIsMade(t *testing.T) {
	for _, release := range etcdtool.Releases() {
		t.Run(release, func(t *testing.T) {
			g, ctx, folder := NewWithT(t), t.Context(), t.TempDir()
			snapshot, err := etcds.Snapshot(ctx, programs, release, folder, write)
			g.Expect(err).NotTo(HaveOccurred())
			in, maker := newArchive(t), newMaker(t)
			manifest, key := backup(t, in, release+".0", snapshot)
			const seen = 3 * Bump
			first, err := maker.Make(ctx, in, manifest, []age.Identity{key}, 0, nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(first.Revision).To(BeEquivalentTo(Bump + 1 + pods))
			looked, err := maker.Make(ctx, in, manifest, []age.Identity{key}, seen, nil)
			g.Expect(err).NotTo(HaveOccurred())

			file, data := filepath.Join(folder, "sent.db"), filepath.Join(folder, "restored")
			made, err := maker.Make(ctx, in, manifest, []age.Identity{key}, looked.Revision-Bump, func(database io.Reader) error {
				into, err := os.Create(file)
				if err != nil {
					return err
				}
				_, err = io.Copy(into, database)
				return errors.Join(err, into.Close())
			})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(made).To(Equal(looked))
			g.Expect(made.Revision).To(BeEquivalentTo(Bump + seen))
			size, err := os.Stat(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(size.Size()%512).To(BeZero(), "etcdutl takes a remainder of 32 bytes for a checksum")

			// As Talos does with what it was sent.
			output, err := exec.CommandContext(ctx, filepath.Join(programs, "etcdutl-"+release), "snapshot", "restore", file, "--skip-hash-check", //nolint:gosec // G204: it is a program of the test bed.
				"--data-dir="+data, "--name=node", "--initial-cluster=node="+peerURL, "--initial-advertise-peer-urls="+peerURL).CombinedOutput()
			g.Expect(err).NotTo(HaveOccurred(), string(output))
			of, err := maker.Programs.For(release + ".0")
			g.Expect(err).NotTo(HaveOccurred())
			served, err := of.Serve(ctx, data, folder)
			g.Expect(err).NotTo(HaveOccurred())
			defer served.Close()
			facts, err := served.Facts(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(facts.Keys).To(BeEquivalentTo(pods))
			g.Expect(facts.Revision).To(BeNumerically(">=", made.Revision))
		})
	}
}

// TestABackupThatCannotBeRestored says why, and nothing is sent.
func TestABackupThatCannotBeRestored(t *testing.T) {
	g := NewWithT(t)
	snapshot, err := etcds.Snapshot(t.Context(), programs, "3.6", t.TempDir(), write)
	g.Expect(err).NotTo(HaveOccurred())
	in := newArchive(t)
	manifest, key := backup(t, in, "3.6.12", snapshot)
	other, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	newer, flipped := *manifest, *manifest
	newer.EtcdVersion = "3.9.0"
	flipped.Data.PlainSHA256 = "00"
	for name, tc := range map[string]struct {
		of   *archive.Manifest
		with age.Identity
		want error
	}{
		"for somebody else":  {manifest, other, pipeline.ErrIdentity},
		"of an unknown etcd": {&newer, key, etcdtool.ErrRelease},
		"something else":     {&flipped, key, pipeline.ErrStored},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newMaker(t).Make(t.Context(), in, tc.of, []age.Identity{tc.with}, 0, func(io.Reader) error { panic("it is sent") })
			NewWithT(t).Expect(err).To(MatchError(tc.want))
		})
	}

	refused := errors.New("the node is away")
	_, err = newMaker(t).Make(t.Context(), in, manifest, []age.Identity{key}, 0, func(io.Reader) error { return refused })
	g.Expect(err).To(MatchError(refused))
}
