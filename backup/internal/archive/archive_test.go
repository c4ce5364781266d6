package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/store"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

var (
	server  *s3server.Server
	buckets atomic.Int64

	someCluster = Cluster{Namespace: "team", Name: "prod", Identity: "0123abcd"}
	now         = time.Date(2026, time.November, 25, 12, 0, 0, 0, time.UTC)
	bundle      = []byte("cluster:\n    secret: nobody-may-read-this\n")
)

func TestMain(m *testing.M) { os.Exit(s3server.Main(m, &server)) }

// bucket makes a bucket, versioned or not.
func bucket(t *testing.T, versioned bool) store.Config {
	t.Helper()
	g := NewWithT(t)
	config := store.Config{
		Endpoint: server.Endpoint, Bucket: fmt.Sprintf("bucket-%d", buckets.Add(1)), PathStyle: true, CA: server.CA, Guard: egress.Guard{AllowLocal: true}, Attempts: 1,
		Credentials: credentials.Value{AccessKeyID: s3server.AccessKey, SecretAccessKey: s3server.SecretKey},
	}
	g.Expect(server.MakeBucket(t.Context(), config.Bucket, minio.MakeBucketOptions{})).To(Succeed())
	if versioned {
		g.Expect(server.EnableVersioning(t.Context(), config.Bucket)).To(Succeed())
	}

	return config
}

func open(t *testing.T, config store.Config) *store.Store {
	t.Helper()
	opened, err := store.Open(config, time.Now)
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return opened
}

func archiveOf(t *testing.T, cluster Cluster, config store.Config) *Archive {
	t.Helper()
	archive, err := Of(cluster, open(t, config), "some/prefix/")
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return archive
}

// snapshot is one as etcd gives it.
func snapshot(size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	sum := sha256.Sum256(data)

	return append(data, sum[:]...)
}

func contents(plain []byte, recipients ...age.Recipient) Contents {
	made := Contents{Snapshot: io.NopCloser(bytes.NewReader(plain)), Recipients: recipients, Ended: func() time.Time { return now }}
	if len(recipients) > 0 {
		made.Secrets = bundle
	}

	return made
}

func draft(name, uid string) Manifest {
	return Manifest{Name: name, UID: uid, TalosVersion: "v1.13.9", KubernetesVersion: "v1.36.3", EtcdVersion: "3.6.16", Member: "8e9e05c52164694d", RaftIndex: 42, Begun: now, Tool: "test"}
}

func identity(t *testing.T) *age.X25519Identity {
	t.Helper()
	key, err := age.GenerateX25519Identity()
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return key
}

func keys(t *testing.T, in *store.Store) []string {
	t.Helper()
	var all []string
	for object, err := range in.List(t.Context(), "") {
		NewWithT(t).Expect(err).ToNot(HaveOccurred())
		all = append(all, object.Key)
	}

	return all
}

func TestABackupComesBack(t *testing.T) {
	for _, versioned := range []bool{false, true} {
		t.Run(fmt.Sprint("versioned ", versioned), func(t *testing.T) {
			g := NewWithT(t)
			config, key := bucket(t, versioned), identity(t)
			archive, plain := archiveOf(t, someCluster, config), snapshot(300_000)
			written, err := archive.Write(t.Context(), draft("daily-1", "uid-1"), "attempt-1", contents(plain, key.Recipient()))
			g.Expect(err).ToNot(HaveOccurred())
			g.Expect(written.Codec).To(Equal(CodecZstdAge))
			g.Expect(written.Ended).To(Equal(now))
			g.Expect(keys(t, open(t, config))).To(ConsistOf(
				"some/prefix/clusters/team/prod/0123abcd/daily-1/data-attempt-1", "some/prefix/clusters/team/prod/0123abcd/daily-1/manifest.json",
				"some/prefix/clusters/team/prod/0123abcd/daily-1/secrets-attempt-1"))

			read, err := archive.Read(t.Context(), "daily-1")
			g.Expect(err).ToNot(HaveOccurred())
			g.Expect(read).To(Equal(written))
			g.Expect(archive.Check(t.Context(), read)).To(Succeed())
			back := &bytes.Buffer{}
			g.Expect(archive.Restore(t.Context(), read, back, key)).To(Succeed())
			g.Expect(bytes.Equal(back.Bytes(), plain)).To(BeTrue())
			g.Expect(archive.Secrets(t.Context(), read, key)).To(Equal(bundle))

			g.Expect(archive.Restore(t.Context(), read, io.Discard, identity(t))).To(MatchError(pipeline.ErrIdentity))
			g.Expect(archive.Restore(t.Context(), read, io.Discard)).To(MatchError(pipeline.ErrIdentity))
			_, err = archive.Secrets(t.Context(), read, identity(t))
			g.Expect(err).To(MatchError(pipeline.ErrIdentity))

			g.Expect(archive.Verified(t.Context(), "daily-1", now, map[string]string{"result": "sound"})).To(Succeed())
			g.Expect(archive.Names(t.Context())).To(Equal([]string{"daily-1"}))
			g.Expect(archive.Delete(t.Context(), "daily-1")).To(Succeed())
			g.Expect(archive.Delete(t.Context(), "daily-1")).To(Succeed(), "once more")
			g.Expect(keys(t, open(t, config))).To(BeEmpty())
		})
	}
}

func TestABackupInTheClearHasNoSecrets(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	archive, plain := archiveOf(t, someCluster, config), snapshot(1000)
	secret := contents(plain)
	secret.Secrets = bundle
	_, err := archive.Write(t.Context(), draft("a", "1"), "x", secret)
	g.Expect(err).To(MatchError(pipeline.ErrNoRecipient))
	g.Expect(keys(t, open(t, config))).To(BeEmpty())
	written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(plain))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(written.Codec).To(Equal(CodecZstd))
	back := &bytes.Buffer{}
	g.Expect(archive.Restore(t.Context(), written, back)).To(Succeed())
	g.Expect(bytes.Equal(back.Bytes(), plain)).To(BeTrue())
	_, err = archive.Secrets(t.Context(), written, identity(t))
	g.Expect(err).To(MatchError(ContainSubstring("has no secrets")))
}

// TestWhatIsWrittenTwice: the same backup is found again, and another one of its name is
// refused.
func TestWhatIsWrittenTwice(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	archive := archiveOf(t, someCluster, config)
	first, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(snapshot(1000)))
	g.Expect(err).ToNot(HaveOccurred())
	again, err := archive.Write(t.Context(), draft("a", "1"), "y", contents(snapshot(2000)))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(again).To(Equal(first))
	_, err = archive.Write(t.Context(), draft("a", "2"), "z", contents(snapshot(1000)))
	g.Expect(store.ReasonOf(err)).To(Equal(store.Exists))
	g.Expect(keys(t, open(t, config))).To(HaveLen(2))
}

// TestASnapshotThatFailsIsNoBackup: it ends early, with an error or without.
func TestASnapshotThatFailsIsNoBackup(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	archive, plain := archiveOf(t, someCluster, config), snapshot(100_000)
	early := contents(plain[:50_000])
	_, err := archive.Write(t.Context(), draft("a", "1"), "x", early)
	g.Expect(err).To(MatchError(pipeline.ErrTrailer))
	for _, gone := range []error{errors.New("the node is gone"), io.ErrUnexpectedEOF, fmt.Errorf("stream: %w", io.EOF)} {
		early.Snapshot = io.NopCloser(io.MultiReader(bytes.NewReader(plain[:50_000]), iotest.ErrReader(gone)))
		_, err = archive.Write(t.Context(), draft("a", "1"), "x", early)
		g.Expect(err).To(MatchError(gone))
	}
	g.Expect(keys(t, open(t, config))).To(BeEmpty())
	g.Expect(open(t, config).Unfinished(t.Context(), "")).To(BeEmpty())
}

// TestASilentNodeIsNotWaitedFor: when the store has failed meanwhile.
func TestASilentNodeIsNotWaitedFor(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	config.Wrap = func(server http.RoundTripper) http.RoundTripper {
		return tripper(func(request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodPost {
				return nil, errors.New("no route to host")
			}
			return server.RoundTrip(request)
		})
	}
	silent, _ := io.Pipe()
	_, err := archiveOf(t, someCluster, config).Write(t.Context(), draft("a", "1"), "x", Contents{Snapshot: silent, Ended: func() time.Time { return now }})
	g.Expect(store.ReasonOf(err)).To(Equal(store.Unavailable))
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

// dying lets a manager die at its n-th request: before the server gets it, or after it has
// done what it was asked for.
func dying(config store.Config, n int64, after bool, requests *atomic.Int64) store.Config {
	config.Wrap = func(server http.RoundTripper) http.RoundTripper {
		return tripper(func(request *http.Request) (*http.Response, error) {
			number := requests.Add(1)
			if n > 0 && (number > n || number == n && !after) {
				return nil, errors.New("the manager is dead")
			}
			response, err := server.RoundTrip(request)
			if err == nil && n > 0 && number == n {
				return nil, errors.Join(errors.New("the manager is dead"), response.Body.Close())
			}
			return response, err
		})
	}

	return config
}

// TestAManagerThatDiesAnywhere: at each request of a backup. There never is a manifest
// without its data, the next attempt succeeds, and what the first one has left is
// collected.
func TestAManagerThatDiesAnywhere(t *testing.T) {
	for _, versioned := range []bool{false, true} {
		var requests atomic.Int64
		key, plain := identity(t), snapshot(100_000)
		config := bucket(t, versioned)
		_, err := archiveOf(t, someCluster, dying(config, 0, false, &requests)).Write(t.Context(), draft("a", "1"), "whole", contents(plain, key.Recipient()))
		NewWithT(t).Expect(err).ToNot(HaveOccurred())
		for n := range requests.Load() {
			for _, after := range []bool{false, true} {
				t.Run(fmt.Sprintf("versioned %t, request %d, after it %t", versioned, n+1, after), func(t *testing.T) {
					t.Parallel()
					g := NewWithT(t)
					config, requests := bucket(t, versioned), &atomic.Int64{}
					_, _ = archiveOf(t, someCluster, dying(config, n+1, after, requests)).Write(t.Context(), draft("a", "1"), "first", contents(plain, key.Recipient()))
					g.Expect(requests.Load()).To(BeNumerically(">", n))

					archive := archiveOf(t, someCluster, config)
					if found, err := archive.Read(t.Context(), "a"); store.ReasonOf(err) != store.NotFound {
						g.Expect(err).ToNot(HaveOccurred())
						g.Expect(archive.Check(t.Context(), found)).To(Succeed())
					}
					written, err := archive.Write(t.Context(), draft("a", "1"), "second", contents(plain, key.Recipient()))
					g.Expect(err).ToNot(HaveOccurred())
					whole(g, archive, written, plain, key)
					collectAll(t, archive)
					whole(g, archive, written, plain, key)
					g.Expect(keys(t, open(t, config))).To(HaveLen(3))
					g.Expect(open(t, config).Unfinished(t.Context(), "")).To(BeEmpty())
				})
			}
		}
	}
}

// TestADeletionThatDiesAnywhere: there never is a manifest without its data, and the next
// deletion goes on.
func TestADeletionThatDiesAnywhere(t *testing.T) {
	key := identity(t)
	stored := func(t *testing.T) store.Config {
		t.Helper()
		config := bucket(t, true)
		_, err := archiveOf(t, someCluster, config).Write(t.Context(), draft("a", "1"), "x", contents(snapshot(1000), key.Recipient()))
		NewWithT(t).Expect(err).ToNot(HaveOccurred())

		return config
	}
	var requests atomic.Int64
	NewWithT(t).Expect(archiveOf(t, someCluster, dying(stored(t), 0, false, &requests)).Delete(t.Context(), "a")).To(Succeed())
	for n := range requests.Load() {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("request %d, after it %t", n+1, after), func(t *testing.T) {
				t.Parallel()
				g := NewWithT(t)
				config, requests := stored(t), &atomic.Int64{}
				g.Expect(archiveOf(t, someCluster, dying(config, n+1, after, requests)).Delete(t.Context(), "a")).ToNot(Succeed())
				archive := archiveOf(t, someCluster, config)
				if found, err := archive.Read(t.Context(), "a"); store.ReasonOf(err) != store.NotFound {
					g.Expect(err).ToNot(HaveOccurred())
					g.Expect(archive.Check(t.Context(), found)).To(Succeed())
				}
				g.Expect(archive.Delete(t.Context(), "a")).To(Succeed())
				g.Expect(keys(t, open(t, config))).To(BeEmpty())
			})
		}
	}
}

// whole expects that a backup can be restored.
func whole(g Gomega, archive *Archive, manifest *Manifest, plain []byte, key age.Identity) {
	back := &bytes.Buffer{}
	g.Expect(archive.Restore(context.Background(), manifest, back, key)).To(Succeed())
	g.Expect(bytes.Equal(back.Bytes(), plain)).To(BeTrue())
	g.Expect(archive.Secrets(context.Background(), manifest, key)).To(Equal(bundle))
}

// Names returns the names of the backups of the cluster, as a list has them.
func (a *Archive) Names(ctx context.Context) ([]string, error) {
	folders, err := a.list(ctx, a.folder)
	if err != nil {
		return nil, err
	}
	var names []string
	for name, files := range folders {
		if files.isBackup() {
			names = append(names, name)
		}
	}
	slices.Sort(names)

	return names, nil
}

// collectAll collects as if a day had passed.
func collectAll(t *testing.T, archive *Archive) {
	t.Helper()
	_, err := archive.Collect(t.Context(), time.Now().Add(24*time.Hour), nil)
	NewWithT(t).Expect(err).ToNot(HaveOccurred())
}

// TestAManifestThatMayBeThereKeepsItsData: the answer about it is lost, and so is the
// question whether it is there, but the server can be asked again at once.
func TestAManifestThatMayBeThereKeepsItsData(t *testing.T) {
	g := NewWithT(t)
	config, plain := bucket(t, true), snapshot(1000)
	var put, lost atomic.Bool
	wrapped := config
	wrapped.Wrap = func(server http.RoundTripper) http.RoundTripper {
		return tripper(func(request *http.Request) (*http.Response, error) {
			isManifest := strings.HasSuffix(request.URL.Path, manifestFile)
			if isManifest && put.Load() && !lost.Swap(true) {
				return nil, errors.New("connection reset by peer")
			}
			response, err := server.RoundTrip(request)
			if err == nil && isManifest && request.Method == http.MethodPut {
				put.Store(true)
				return nil, errors.Join(errors.New("connection reset by peer"), response.Body.Close())
			}
			return response, err
		})
	}
	_, err := archiveOf(t, someCluster, wrapped).Write(t.Context(), draft("a", "1"), "x", contents(plain))
	g.Expect(store.ReasonOf(err)).To(Equal(store.Unavailable))
	g.Expect(lost.Load()).To(BeTrue())
	archive := archiveOf(t, someCluster, config)
	written, err := archive.Write(t.Context(), draft("a", "1"), "y", contents(plain))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(archive.Check(t.Context(), written)).To(Succeed())
}

// TestTwoManagersAtOnce: both store the same backup. One wins, both know it, and nothing
// else is left.
func TestTwoManagersAtOnce(t *testing.T) {
	g := NewWithT(t)
	config, plain := bucket(t, true), snapshot(100_000)
	var found [2]*Manifest
	var failed [2]error
	var both sync.WaitGroup
	for i := range found {
		archive := archiveOf(t, someCluster, config)
		both.Go(func() {
			found[i], failed[i] = archive.Write(t.Context(), draft("a", "1"), fmt.Sprint("manager-", i), contents(plain))
		})
	}
	both.Wait()
	g.Expect(errors.Join(failed[:]...)).ToNot(HaveOccurred())
	g.Expect(found[0]).To(Equal(found[1]))
	g.Expect(keys(t, open(t, config))).To(HaveLen(2))
}

// TestWhatIsDifferentIsFound: in the data, in the secrets, and in the manifest.
func TestWhatIsDifferentIsFound(t *testing.T) {
	g := NewWithT(t)
	config, key, plain := bucket(t, false), identity(t), snapshot(10_000)
	archive := archiveOf(t, someCluster, config)
	written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(plain, key.Recipient()))
	g.Expect(err).ToNot(HaveOccurred())
	folder := "some/prefix/clusters/team/prod/0123abcd/a/"
	g.Expect(server.Change(t.Context(), config.Bucket, folder+"data-x", func(data []byte) []byte { data[len(data)/2] ^= 1; return data })).To(Succeed())
	g.Expect(archive.Check(t.Context(), written)).To(MatchError(pipeline.ErrStored))
	g.Expect(archive.Restore(t.Context(), written, io.Discard, key)).To(MatchError(pipeline.ErrStored))
	g.Expect(server.Change(t.Context(), config.Bucket, folder+"secrets-x", func(data []byte) []byte { return data[:len(data)-1] })).To(Succeed())
	_, err = archive.Secrets(t.Context(), written, key)
	g.Expect(err).To(MatchError(pipeline.ErrStored))
	for old, other := range map[string]string{
		`"name": "a"`: `"name": "b"`, `"name": "prod"`: `"name": "stage"`, `"identity": "0123abcd"`: `"identity": "4567"`, `"format": "capi-talos.backup/v1"`: `"format": "v9"`,
		`"name": "data-x"`: `"name": "../../other/data-x"`, `{`: ``,
	} {
		g.Expect(server.Change(t.Context(), config.Bucket, folder+manifestFile, func(data []byte) []byte {
			g.Expect(string(data)).To(ContainSubstring(old))
			return bytes.Replace(data, []byte(old), []byte(other), 1)
		})).To(Succeed())
		_, err = archive.Read(t.Context(), "a")
		g.Expect(err).To(MatchError(ErrManifest), other)
		_, err = archive.Collect(t.Context(), time.Now().Add(24*time.Hour), nil)
		g.Expect(err).To(MatchError(ErrManifest), "nothing is collected where it is not known what belongs to a backup")
		g.Expect(server.Change(t.Context(), config.Bucket, folder+manifestFile, func(data []byte) []byte {
			if other == "" {
				return append([]byte(old), data...)
			}
			return bytes.Replace(data, []byte(other), []byte(old), 1)
		})).To(Succeed())
	}
	g.Expect(keys(t, open(t, config))).To(HaveLen(3))
}

// TestFilesThatAreGone do not come back: the backup is damaged, whichever it is.
func TestFilesThatAreGone(t *testing.T) {
	for _, file := range []string{"data-x", "secrets-x"} {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			config, key := bucket(t, false), identity(t)
			archive := archiveOf(t, someCluster, config)
			written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(snapshot(10_000), key.Recipient()))
			g.Expect(err).ToNot(HaveOccurred())
			g.Expect(server.RemoveObject(t.Context(), config.Bucket, "some/prefix/clusters/team/prod/0123abcd/a/"+file, minio.RemoveObjectOptions{})).To(Succeed())
			g.Expect(archive.Check(t.Context(), written)).To(MatchError(pipeline.ErrStored))
			if file == "data-x" {
				g.Expect(archive.Restore(t.Context(), written, io.Discard, key)).To(MatchError(pipeline.ErrStored))
				return
			}
			_, err = archive.Secrets(t.Context(), written, key)
			g.Expect(err).To(MatchError(pipeline.ErrStored))
		})
	}
}

// TestNothingSecretIsReadable: in anything that the store has.
func TestNothingSecretIsReadable(t *testing.T) {
	g := NewWithT(t)
	config, key := bucket(t, false), identity(t)
	plain := []byte(strings.Repeat("nobody-may-read-this ", 1000))
	sum := sha256.Sum256(plain)
	_, err := archiveOf(t, someCluster, config).Write(t.Context(), draft("a", "1"), "x", contents(append(plain, sum[:]...), key.Recipient()))
	g.Expect(err).ToNot(HaveOccurred())
	in := open(t, config)
	for _, name := range keys(t, in) {
		data, _, err := in.GetSmall(t.Context(), name, "", 1<<20)
		g.Expect(err).ToNot(HaveOccurred())
		g.Expect(string(data)).ToNot(Or(ContainSubstring("nobody-may-read-this"), ContainSubstring(key.String())))
	}
}
