package archive

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	. "github.com/onsi/gomega"
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
