package scratch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestScratch(t *testing.T) {
	g, root := NewWithT(t), t.TempDir()
	g.Expect(os.MkdirAll(filepath.Join(root, "space", "backup-1", "member"), 0o700)).To(Succeed())
	space, err := New(filepath.Join(root, "space"), 10)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.ReadDir(filepath.Join(root, "space"))).To(BeEmpty(), "what a former process has left goes")

	for _, percent := range []int{-1, 101} {
		_, err := New(filepath.Join(root, "space"), percent)
		g.Expect(err).To(MatchError(ContainSubstring("0 to 100 can")))
	}

	// A tenth of the filesystem is kept for others.
	space.room = func(string) (uint64, uint64, error) { return 300, 2000, nil }
	_, _, err = space.Take(t.Context(), 101)
	g.Expect(err).To(MatchError(ErrShort))
	g.Expect(err).To(MatchError(ContainSubstring("101 bytes are needed, and of the 300 that are free in " + space.folder + " 200 are kept for the node")))
	_, _, err = space.Take(t.Context(), -1)
	g.Expect(err).To(MatchError(ErrShort))

	space.room = func(string) (uint64, uint64, error) { return 199, 2000, nil }
	_, _, err = space.Take(t.Context(), 0)
	g.Expect(err).To(MatchError(ErrShort), "and it is not touched where there is less already")
	space.room = func(string) (uint64, uint64, error) { return 300, 2000, nil }
	folder, leave, err := space.Take(t.Context(), 100)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(filepath.Join(folder, "snapshot.db"), nil, 0o600)).To(Succeed())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = space.Take(ended, 1)
	g.Expect(err).To(MatchError(context.Canceled), "one at a time")
	leave()
	g.Expect(folder).NotTo(BeADirectory())

	broken := errors.New("no such device")
	space.room = func(string) (uint64, uint64, error) { return 0, 0, broken }
	_, _, err = space.Take(t.Context(), 1)
	g.Expect(err).To(MatchError(broken))
	space.room = room
	_, leave, err = space.Take(t.Context(), 1)
	g.Expect(err).NotTo(HaveOccurred(), "who got none leaves his turn")
	leave()
}
