package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/test/support/etcds"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

const bucket = "backups"

var (
	server   *s3server.Server
	programs string
	now      = time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "etcd-"); err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(programs) }()
	if err := etcds.Programs(context.Background(), programs, etcdtool.Releases()...); err != nil {
		panic(err)
	}

	return s3server.Main(m, &server)
}

func write(ctx context.Context, client *clientv3.Client) error {
	for i := range 10 {
		if _, err := client.Put(ctx, fmt.Sprintf("/registry/pods/team/%d", i), "{}"); err != nil {
			return err
		}
	}

	return nil
}

// backup stores a backup of a snapshot.
func backup(t *testing.T, in *archive.Archive, name, etcdVersion string, snapshot []byte, recipients ...age.Recipient) *archive.Manifest {
	t.Helper()
	draft := archive.Manifest{Name: name, UID: name, TalosVersion: "v1.13.9", KubernetesVersion: "v1.36.3", EtcdVersion: etcdVersion, Begun: now, Tool: "test"}
	contents := archive.Contents{Snapshot: io.NopCloser(bytes.NewReader(snapshot)), Recipients: recipients, Ended: func() time.Time { return now }}
	if len(recipients) > 0 {
		contents.Secrets = []byte("secret: nobody-may-read-this")
	}
	manifest, err := in.Write(t.Context(), draft, "attempt", contents)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return manifest
}

// newArchive is an empty one.
func newArchive(t *testing.T) *archive.Archive {
	t.Helper()
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

func newVerifier(t *testing.T) *Verifier {
	t.Helper()
	space, err := scratch.New(filepath.Join(t.TempDir(), "scratch"), 0)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return &Verifier{Scratch: space, Programs: etcdtool.Programs{Folder: programs}}
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return key
}

func TestLevels(t *testing.T) {
	for _, release := range etcdtool.Releases() {
		t.Run(release, func(t *testing.T) {
			g, in, verifier, key := NewWithT(t), newArchive(t), newVerifier(t), identity(t)
			snapshot, err := etcds.Snapshot(t.Context(), programs, release, t.TempDir(), write)
			g.Expect(err).NotTo(HaveOccurred())
			for name, recipients := range map[string][]age.Recipient{"clear": nil, "sealed": {key.Recipient()}} {
				manifest := backup(t, in, name, release+".0", snapshot, recipients...)
				for level, want := range map[backupv1.VerificationLevel]*Report{
					backupv1.VerificationDigest:   {Level: backupv1.VerificationDigest},
					backupv1.VerificationSnapshot: {Level: backupv1.VerificationSnapshot, Etcd: release, Revision: 11, Keys: 10},
					backupv1.VerificationRestore:  {Level: backupv1.VerificationRestore, Etcd: release, Revision: 11, Keys: 10, Resources: map[string]int64{"pods": 10}},
				} {
					report, err := verifier.Verify(t.Context(), level, in, manifest, []age.Identity{key})
					g.Expect(err).NotTo(HaveOccurred())
					if level != backupv1.VerificationDigest {
						g.Expect(report.Hash).NotTo(BeZero())
						g.Expect(report.Bytes).To(BeNumerically(">", 0))
					}
					report.Hash, report.Bytes = 0, 0
					g.Expect(report).To(Equal(want))
				}
			}
		})
	}
}

// TestWhatIsNotSound: data that etcd does not take is found at the levels that look into it,
// though its digests are right.
func TestWhatIsNotSound(t *testing.T) {
	g, in, verifier, key := NewWithT(t), newArchive(t), newVerifier(t), identity(t)
	snapshot, err := etcds.Snapshot(t.Context(), programs, "3.6", t.TempDir(), write)
	g.Expect(err).NotTo(HaveOccurred())
	sound := backup(t, in, "sound", "3.6.0", snapshot, key.Recipient())
	_, err = verifier.Verify(t.Context(), backupv1.VerificationSnapshot, in, sound, nil)
	g.Expect(err).To(MatchError(pipeline.ErrIdentity))
	_, err = verifier.Verify(t.Context(), backupv1.VerificationSnapshot, in, sound, []age.Identity{identity(t)})
	g.Expect(err).To(MatchError(pipeline.ErrIdentity), "somebody else's key")

	newer := backup(t, in, "newer", "3.9.0", snapshot)
	_, err = verifier.Verify(t.Context(), backupv1.VerificationSnapshot, in, newer, nil)
	g.Expect(err).To(MatchError(etcdtool.ErrRelease))
	_, err = verifier.Verify(t.Context(), backupv1.VerificationDigest, in, newer, nil)
	g.Expect(err).NotTo(HaveOccurred())

	// Pages of the database are lost, and the sum at the end is one of the rest.
	broken := backup(t, in, "broken", "3.6.0", summed(make([]byte, len(snapshot))))
	_, err = verifier.Verify(t.Context(), backupv1.VerificationDigest, in, broken, nil)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = verifier.Verify(t.Context(), backupv1.VerificationSnapshot, in, broken, nil)
	g.Expect(err).To(MatchError(etcdtool.ErrSnapshot))

	g.Expect(server.Change(t.Context(), bucket, fmt.Sprintf("%x/clusters/team/prod/0123abcd/sound/%s", t.Name(), sound.Secrets.Name), func(data []byte) []byte {
		data[len(data)/2] ^= 1
		return data
	})).To(Succeed())
	_, err = verifier.Verify(t.Context(), backupv1.VerificationSnapshot, in, sound, []age.Identity{key})
	g.Expect(err).To(MatchError(pipeline.ErrStored), "secrets are part of it")
}

// summed is some data with its sum at the end, as etcd has it.
func summed(data []byte) []byte {
	sum := sha256.Sum256(data)

	return append(data, sum[:]...)
}
