package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// TestClustersAreApart: with names that begin as others do. Nothing of one is read, deleted
// or collected as the other's.
func TestClustersAreApart(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	clusters := []Cluster{
		someCluster, {Namespace: "team", Name: "prod", Identity: "0123abcde"}, {Namespace: "team", Name: "prod-2", Identity: "0123abcd"},
		{Namespace: "team-prod", Name: "prod", Identity: "0123abcd"}, {Namespace: "te", Name: "am", Identity: "prod"}, {Namespace: "team", Name: "p", Identity: "rod"},
	}
	for i, cluster := range clusters {
		_, err := archiveOf(t, cluster, config).Write(t.Context(), draft("a", fmt.Sprint(i)), "x", contents(snapshot(1000)))
		g.Expect(err).ToNot(HaveOccurred())
	}
	for namespace, count := range map[string]int{"team": 4, "team-prod": 1, "te": 1, "t": 0} {
		var all []Found
		for found, err := range All(t.Context(), open(t, config), "some/prefix", namespace) {
			g.Expect(err).ToNot(HaveOccurred())
			g.Expect(found.Cluster.Namespace).To(Equal(namespace))
			all = append(all, found)
		}
		g.Expect(all).To(HaveLen(count), namespace)
	}
	for _, err := range All(t.Context(), open(t, config), "some/prefix", "team/prod") {
		g.Expect(err).To(MatchError(ContainSubstring("cannot be a folder")))
	}
	g.Expect(Probe("/some/prefix/", "team")).To(Equal("some/prefix/clusters/team/probe"))
	_, err := Probe("", "..")
	g.Expect(err).To(MatchError(ContainSubstring("cannot be a folder")))
	for i, cluster := range clusters {
		archive := archiveOf(t, cluster, config)
		g.Expect(archive.Names(t.Context())).To(Equal([]string{"a"}))
		collectAll(t, archive)
		g.Expect(archive.Delete(t.Context(), "a")).To(Succeed())
		g.Expect(keys(t, open(t, config))).To(HaveLen(2 * (len(clusters) - i - 1)))
	}
	for _, cluster := range []Cluster{
		{Namespace: "team/prod", Name: "a", Identity: "b"}, {Namespace: "..", Name: "a", Identity: "b"}, {Namespace: "a", Name: "", Identity: "b"}, {Namespace: "a", Name: "b", Identity: "C"},
	} {
		_, err := Of(cluster, nil, "")
		g.Expect(err).To(MatchError(ContainSubstring("cannot be a folder")))
	}
	archive := archiveOf(t, someCluster, config)
	for _, name := range []string{"", "..", "a/b", "../x"} {
		g.Expect(archive.Delete(t.Context(), name)).To(MatchError(ContainSubstring("cannot be a folder")))
	}
}

// TestAHiddenBackupIsLeftAlone: somebody has deleted its manifest in a bucket that keeps
// versions. It is no backup, and can be had back.
func TestAHiddenBackupIsLeftAlone(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, true)
	archive := archiveOf(t, someCluster, config)
	_, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(snapshot(1000)))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(server.RemoveObject(t.Context(), config.Bucket, "some/prefix/clusters/team/prod/0123abcd/a/manifest.json", minio.RemoveObjectOptions{})).To(Succeed())
	g.Expect(archive.Names(t.Context())).To(BeEmpty())
	collectAll(t, archive)
	g.Expect(keys(t, open(t, config))).To(HaveLen(3))
	// With its name, all of it goes.
	g.Expect(archive.Delete(t.Context(), "a")).To(Succeed())
	g.Expect(keys(t, open(t, config))).To(BeEmpty())
}

// forgetful is a store whose lists lack a key, as those of some servers do for a while.
type forgetful struct {
	Store

	key string
}

func (f forgetful) List(ctx context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for object, err := range f.Store.List(ctx, prefix) {
			if object.Key != f.key && !yield(object, err) {
				return
			}
		}
	}
}

// TestAListThatLacksAManifestCostsNoBackup: the manifest itself is asked for.
func TestAListThatLacksAManifestCostsNoBackup(t *testing.T) {
	g := NewWithT(t)
	config, plain := bucket(t, false), snapshot(1000)
	archive := archiveOf(t, someCluster, config)
	written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(plain))
	g.Expect(err).ToNot(HaveOccurred())
	const folder = "some/prefix/clusters/team/prod/0123abcd/a/"
	_, err = server.PutObject(t.Context(), config.Bucket, folder+"data-y", strings.NewReader("half"), 4, minio.PutObjectOptions{})
	g.Expect(err).ToNot(HaveOccurred())
	lacking, err := Of(someCluster, forgetful{Store: open(t, config), key: folder + manifestFile}, "some/prefix/")
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(lacking.Names(t.Context())).To(BeEmpty())
	collectAll(t, lacking)
	g.Expect(archive.Check(t.Context(), written)).To(Succeed())
	g.Expect(keys(t, open(t, config))).To(HaveLen(2), "what an attempt has left is gone")
}

// TestADeletionBeginsWithTheManifest, and not with the data where a list lacks the manifest: a
// backup would be left without its data.
func TestADeletionBeginsWithTheManifest(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	archive := archiveOf(t, someCluster, config)
	written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(snapshot(1000)))
	g.Expect(err).ToNot(HaveOccurred())
	lacking, err := Of(someCluster, forgetful{Store: open(t, config), key: "some/prefix/clusters/team/prod/0123abcd/a/" + manifestFile}, "some/prefix/")
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(lacking.Delete(t.Context(), "a")).To(MatchError(errNotListed))
	g.Expect(archive.Check(t.Context(), written)).To(Succeed())
	g.Expect(archive.Delete(t.Context(), "a")).To(Succeed())
	g.Expect(keys(t, open(t, config))).To(BeEmpty())
	g.Expect(archive.Delete(t.Context(), "a")).To(Succeed(), "there is none")
}

// blind is a store that says of each object that is read that there is none.
type blind struct{ Store }

func (blind) GetSmall(context.Context, string, string, int64) ([]byte, store.Object, error) {
	return nil, store.Object{}, store.NewError(store.NotFound, "reading", errors.New("no such key"))
}

// TestAManifestThatIsListedOnlyKeepsItsData: what belongs to it is not known.
func TestAManifestThatIsListedOnlyKeepsItsData(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	_, err := archiveOf(t, someCluster, config).Write(t.Context(), draft("a", "1"), "x", contents(snapshot(1000)))
	g.Expect(err).ToNot(HaveOccurred())
	archive, err := Of(someCluster, blind{open(t, config)}, "some/prefix/")
	g.Expect(err).ToNot(HaveOccurred())
	_, err = archive.Collect(t.Context(), time.Now().Add(24*time.Hour), nil)
	g.Expect(store.ReasonOf(err)).To(Equal(store.NotFound))
	g.Expect(keys(t, open(t, config))).To(HaveLen(2))
}

// TestTheDataOfABackupThatIsToBeThereStays: somebody has deleted its manifest in a bucket that
// keeps no versions. What attempts have left of others goes.
func TestTheDataOfABackupThatIsToBeThereStays(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	archive := archiveOf(t, someCluster, config)
	for _, name := range []string{"a", "b"} {
		_, err := archive.Write(t.Context(), draft(name, "1"), "x", contents(snapshot(1000)))
		g.Expect(err).ToNot(HaveOccurred())
		g.Expect(server.RemoveObject(t.Context(), config.Bucket, "some/prefix/clusters/team/prod/0123abcd/"+name+"/manifest.json", minio.RemoveObjectOptions{})).To(Succeed())
	}
	collected, err := archive.Collect(t.Context(), time.Now().Add(24*time.Hour), map[string]bool{"a": true})
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(collected).To(Equal(Collected{Files: 1}))
	g.Expect(keys(t, open(t, config))).To(Equal([]string{"some/prefix/clusters/team/prod/0123abcd/a/data-x"}))
}

// TestALockedBackupStaysWhole: its manifest can't be deleted, and so nothing is.
func TestALockedBackupStaysWhole(t *testing.T) {
	g := NewWithT(t)
	config := bucket(t, false)
	config.Bucket += "-locking"
	g.Expect(server.MakeBucket(t.Context(), config.Bucket, minio.MakeBucketOptions{ObjectLocking: true})).To(Succeed())
	config.Lock = &store.Lock{Mode: minio.Compliance, For: time.Hour}
	archive, plain := archiveOf(t, someCluster, config), snapshot(1000)
	written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(plain))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(store.ReasonOf(archive.Delete(t.Context(), "a"))).To(Equal(store.Locked))
	g.Expect(archive.Check(t.Context(), written)).To(Succeed())
	// What an attempt has left is locked as well, and collected later.
	_, err = archive.Write(t.Context(), draft("b", "2"), "y", contents(plain[:500]))
	g.Expect(err).To(MatchError(pipeline.ErrTrailer))
	collectAll(t, archive)
	g.Expect(archive.Names(t.Context())).To(Equal([]string{"a"}))
}

// endless lists objects without an end, and these have none.
type endless struct{ Store }

// Get gives zeroes.
func (endless) Get(_ context.Context, key, _ string) (io.ReadCloser, store.Object, error) {
	return io.NopCloser(zeroes{}), store.Object{Key: key}, nil
}

type zeroes struct{}

func (zeroes) Read(into []byte) (int, error) {
	clear(into)

	return len(into), nil
}

func (endless) List(_ context.Context, prefix string) iter.Seq2[store.Object, error] {
	return func(yield func(store.Object, error) bool) {
		for yield(store.Object{Key: prefix + "data-x"}, nil) {
		}
	}
}

// TestNothingWithoutAnEndIsReadToIt: neither a list, which is kept in memory, nor a file.
func TestNothingWithoutAnEndIsReadToIt(t *testing.T) {
	g := NewWithT(t)
	archive, err := Of(someCluster, endless{}, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(archive.Delete(t.Context(), "a")).To(MatchError(ContainSubstring("more than 100000 files")))
	g.Expect(archive.Check(t.Context(), &Manifest{Name: "a", Data: File{Name: "data-x", StoredBytes: 1000}})).To(MatchError(pipeline.ErrStored))
}
