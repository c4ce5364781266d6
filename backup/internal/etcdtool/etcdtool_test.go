package etcdtool

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/capi-talos/capi-talos/test/support/etcds"
)

// programs is the folder with the programs of all releases.
var programs string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "etcd-"); err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(programs) }()
	if err := etcds.Programs(context.Background(), programs, Releases()...); err != nil {
		panic(err)
	}

	return m.Run()
}

const hidden = "nobody-may-read-this"

// write writes 21 keys, and deletes one of them.
func write(ctx context.Context, client *clientv3.Client) error {
	for i := range 20 {
		if _, err := client.Put(ctx, fmt.Sprintf("/registry/secrets/team/%d", i), hidden); err != nil {
			return err
		}
	}
	if _, err := client.Put(ctx, "/registry/cluster.x-k8s.io/machines/team/one", "{}"); err != nil {
		return err
	}
	_, err := client.Delete(ctx, "/registry/secrets/team/0")

	return err
}

// snapshotOf is a snapshot of a release, in a file.
func snapshotOf(t *testing.T, release string) string {
	t.Helper()
	g, folder := NewWithT(t), t.TempDir()
	data, err := etcds.Snapshot(t.Context(), programs, release, folder, write)
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(folder, "snapshot.db")
	g.Expect(os.WriteFile(file, data, 0o600)).To(Succeed())

	return file
}

func releaseOf(t *testing.T, version string) *Release {
	t.Helper()
	release, err := Programs{Folder: programs}.For(version)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return release
}

func TestReleases(t *testing.T) {
	for version, want := range map[string]string{"3.6.7": "3.6", "v3.6.16": "3.6", "3.7.1": "3.7", "3.7.0-rc.1": "3.7", "3.5.21": "", "3.8.0": "", "4.0.0": "", "": "", "latest": ""} {
		t.Run(version, func(t *testing.T) {
			g := NewWithT(t)
			release, err := Programs{Folder: "/etcd"}.For(version)
			if want == "" {
				g.Expect(err).To(MatchError(ErrRelease))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(release.Name).To(Equal(want))
			g.Expect(release.path("etcdutl")).To(Equal("/etcd/etcdutl-" + want))
		})
	}
}

// TestASnapshotIsServed as it was, and with a revision that is raised.
func TestASnapshotIsServed(t *testing.T) {
	for _, version := range Releases() {
		t.Run(version, func(t *testing.T) {
			g, snapshot, release := NewWithT(t), snapshotOf(t, version), releaseOf(t, version+".0")
			status, err := release.Status(t.Context(), snapshot)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(status.Revision).To(BeEquivalentTo(1 + 20 + 1 + 1))
			g.Expect(status.TotalKey).To(BeEquivalentTo(20))
			g.Expect(status.Version).To(HavePrefix(version))
			for _, bump := range []uint64{0, 1000} {
				server := serveRestored(t, release, snapshot, bump)
				defer server.Close()
				facts, err := server.Facts(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(facts.Keys).To(BeEquivalentTo(20))
				g.Expect(facts.Resources).To(Equal(map[string]int64{"secrets": 19, "cluster.x-k8s.io/machines": 1}))
				if bump == 0 {
					g.Expect(facts.Revision).To(Equal(status.Revision))
					continue
				}
				g.Expect(facts.Revision).To(BeNumerically(">", bump))
				_, err = server.client.Get(t.Context(), "/registry/secrets/team/1", clientv3.WithRev(status.Revision))
				g.Expect(err).To(MatchError(ContainSubstring("compacted")), "nobody reads what was before")
			}
		})
	}
}

// TestASnapshotThatIsNotWhole is refused, and nothing that it holds is told.
func TestASnapshotThatIsNotWhole(t *testing.T) {
	whole := snapshotOf(t, "3.6")
	data, err := os.ReadFile(whole)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	release := releaseOf(t, "3.6.0")
	for name, change := range map[string]func([]byte) []byte{
		"nothing":   func([]byte) []byte { return nil },
		"half":      func(data []byte) []byte { return data[:len(data)/2] },
		"no sum":    func(data []byte) []byte { return data[:len(data)-32] },
		"one flips": func(data []byte) []byte { data[len(data)/2] ^= 1; return data },
	} {
		t.Run(name, func(t *testing.T) {
			g, folder := NewWithT(t), t.TempDir()
			file := filepath.Join(folder, "snapshot.db")
			g.Expect(os.WriteFile(file, change(append([]byte{}, data...)), 0o600)).To(Succeed())
			err := release.Restore(t.Context(), file, RestoreOptions{DataDir: filepath.Join(folder, "data"), Name: "one", PeerURL: "https://127.0.0.1:2380"})
			g.Expect(err).To(MatchError(ErrSnapshot))
			g.Expect(err.Error()).NotTo(ContainSubstring(hidden))
		})
	}
	t.Run("no database", func(t *testing.T) {
		g := NewWithT(t)
		file := filepath.Join(t.TempDir(), "snapshot.db")
		g.Expect(os.WriteFile(file, []byte(hidden), 0o600)).To(Succeed())
		_, err := release.Status(t.Context(), file)
		g.Expect(err).To(MatchError(ErrSnapshot))
	})
}

// TestWhatIsNoFaultOfTheSnapshot is not taken for one.
func TestWhatIsNoFaultOfTheSnapshot(t *testing.T) {
	g := NewWithT(t)
	snapshot := snapshotOf(t, "3.6")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := releaseOf(t, "3.6.0").Status(ended, snapshot)
	g.Expect(err).To(MatchError(context.Canceled))
	g.Expect(err).NotTo(MatchError(ErrSnapshot))
	_, err = (&Release{Name: "3.6", folder: t.TempDir()}).Status(t.Context(), snapshot)
	g.Expect(err).To(MatchError(os.ErrNotExist))
	g.Expect(err).NotTo(MatchError(ErrSnapshot))
}

// TestNobodyElseIsServed: what an etcd serves on loopback is for its manager alone.
func TestNobodyElseIsServed(t *testing.T) {
	g, folder, release := NewWithT(t), t.TempDir(), releaseOf(t, "3.6.0")
	data := filepath.Join(folder, "data")
	g.Expect(release.Restore(t.Context(), snapshotOf(t, "3.6"), RestoreOptions{DataDir: data, Name: "one", PeerURL: "https://127.0.0.1:2380"})).To(Succeed())
	server, err := release.Serve(t.Context(), data, folder)
	g.Expect(err).NotTo(HaveOccurred())
	defer server.Close()
	other, err := clientv3.New(clientv3.Config{
		Endpoints: server.client.Endpoints(), Logger: zap.NewNop(), Context: t.Context(), TLS: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // G402: whoever it is does not care.
	})
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = other.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = other.Get(ctx, "/registry/secrets/team/1")
	g.Expect(err).To(HaveOccurred())
	_, err = server.Facts(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
}

// TestDataThatIsNone is not served, and is not waited for.
func TestDataThatIsNone(t *testing.T) {
	g, folder := NewWithT(t), t.TempDir()
	data := filepath.Join(folder, "data")
	g.Expect(os.MkdirAll(filepath.Join(data, "member", "snap"), 0o700)).To(Succeed())
	g.Expect(os.WriteFile(filepath.Join(data, "member", "snap", "db"), []byte(hidden), 0o600)).To(Succeed())
	_, err := releaseOf(t, "3.6.0").Serve(t.Context(), data, folder)
	g.Expect(err).To(MatchError(ErrSnapshot))
}
