package archive

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
)

// TestSizesThatNoBackupHas: who calculates with them is not to get other ones.
func TestSizesThatNoBackupHas(t *testing.T) {
	for _, size := range []int64{-1, math.MinInt64, maxBytes + 1, math.MaxInt64} {
		for name, change := range map[string]func(m *Manifest){
			"plain":          func(m *Manifest) { m.Data.PlainBytes = size },
			"stored":         func(m *Manifest) { m.Data.StoredBytes = size },
			"stored secrets": func(m *Manifest) { m.Secrets.StoredBytes = size },
		} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				g, at := NewWithT(t), place{cluster: someCluster, backup: "a", file: manifestFile}
				manifest := draft("a", "1")
				manifest.Format, manifest.Cluster = Format, someCluster
				manifest.Data, manifest.Secrets = File{Name: dataFile, PlainBytes: maxBytes, StoredBytes: 1}, &File{Name: secretsFile}
				read := func() error {
					text, err := json.Marshal(manifest)
					g.Expect(err).NotTo(HaveOccurred())
					_, err = readManifest(text, at)

					return err
				}
				g.Expect(read()).To(Succeed())
				change(&manifest)
				g.Expect(read()).To(MatchError(ErrManifest))
			})
		}
	}
}

// TestTheWordsOfAManifestAreNotRepeatedAtLength: an error is kept, and whose manifest it is about
// may have written a mebibyte.
func TestTheWordsOfAManifestAreNotRepeatedAtLength(t *testing.T) {
	long := strings.Repeat("x", maxManifest)
	for name, manifest := range map[string]Manifest{
		"format":    {Format: long},
		"name":      {Format: Format, Name: long},
		"cluster":   {Format: Format, Cluster: Cluster{Name: long}},
		"namespace": {Format: Format, Cluster: Cluster{Namespace: long}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			text, err := json.Marshal(manifest)
			g.Expect(err).NotTo(HaveOccurred())
			_, err = readManifest(text, place{cluster: someCluster, backup: "a", file: manifestFile})
			g.Expect(err).To(MatchError(ErrManifest))
			g.Expect(len(err.Error())).To(BeNumerically("<", 512))
		})
	}
}

// TestNoMoreIsUnpackedThanAManifestSays: scratch space was taken for as much.
func TestNoMoreIsUnpackedThanAManifestSays(t *testing.T) {
	g, key := NewWithT(t), identity(t)
	archive := archiveOf(t, someCluster, bucket(t, false))
	zeroes := make([]byte, 50<<20)
	sum := sha256.Sum256(zeroes)
	written, err := archive.Write(t.Context(), draft("a", "1"), "x", contents(append(zeroes, sum[:]...), key.Recipient()))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(written.Data.StoredBytes).To(BeNumerically("<", 1<<20), "it is a bomb")
	for _, claimed := range []int64{0, 1, 1000, 1 << 20} {
		claims, file := *written, filepath.Join(t.TempDir(), "snapshot.db")
		claims.Data.PlainBytes = claimed
		g.Expect(archive.Unpack(t.Context(), &claims, file, key)).To(MatchError(pipeline.ErrStored))
		found, err := os.Stat(file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.Size()).To(BeNumerically("<=", claimed))
	}
}
