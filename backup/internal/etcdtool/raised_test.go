package etcdtool

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// TestASnapshotAfterARestore: the next snapshot of an etcd that was restored with a raised
// revision has what that etcd serves, and so has what is made of it in turn.
func TestASnapshotAfterARestore(t *testing.T) {
	const bump = 1_000_000_000
	for _, version := range Releases() {
		t.Run(version, func(t *testing.T) {
			g, release, snapshot := NewWithT(t), releaseOf(t, version), snapshotOf(t, version)
			for range 2 {
				server := serveRestored(t, release, snapshot, bump)
				defer server.Close()
				_, err := server.client.Put(t.Context(), "/registry/secrets/team/later", hidden)
				g.Expect(err).NotTo(HaveOccurred())
				facts, err := server.Facts(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				snapshot = filepath.Join(t.TempDir(), "next.db")
				stream, err := server.client.Snapshot(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				data, err := io.ReadAll(stream)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(os.WriteFile(snapshot, data, 0o600)).To(Succeed())
				status, err := release.Status(t.Context(), snapshot)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(facts.Keys).To(BeEquivalentTo(21))
				g.Expect(facts.Match(status)).To(BeTrue(), "%+v serves %+v", facts, status)

				again := serveRestored(t, release, snapshot, 0)
				defer again.Close()
				facts, err = again.Facts(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(facts.Match(status)).To(BeTrue(), "%+v serves %+v", facts, status)
				for _, wrong := range []Facts{
					{Revision: facts.Revision - 1, Keys: facts.Keys}, {Revision: facts.Revision, Keys: facts.Keys - 1}, {Revision: facts.Revision, Keys: facts.Keys + 2},
				} {
					g.Expect(wrong.Match(status)).To(BeFalse(), "%+v", wrong)
				}
			}
		})
	}
}

// serveRestored serves a snapshot that was restored with its revision raised by bump.
func serveRestored(t *testing.T, release *Release, snapshot string, bump uint64) *Server {
	t.Helper()
	g, folder := NewWithT(t), t.TempDir()
	data := filepath.Join(folder, "data")
	g.Expect(release.Restore(t.Context(), snapshot, RestoreOptions{DataDir: data, Name: "a", PeerURL: "https://127.0.0.1:2380", Bump: bump})).To(Succeed())
	server, err := release.Serve(t.Context(), data, folder)
	g.Expect(err).NotTo(HaveOccurred())

	return server
}
