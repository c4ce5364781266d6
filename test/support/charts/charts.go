// Package charts packs Helm charts for tests.
package charts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"slices"
)

// Chart are the files of a chart but Chart.yaml, by their path: templates/a.yaml.
type Chart map[string]string

// Pack packs a chart of the name demo into an archive, which is the same each time.
func (c Chart) Pack(version string) []byte {
	const name = "demo"
	files := maps.Clone(c)
	if files == nil {
		files = Chart{}
	}
	if files["Chart.yaml"] == "" {
		files["Chart.yaml"] = fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\n", name, version)
	}
	packed := &bytes.Buffer{}
	compressed := gzip.NewWriter(packed)
	archive := tar.NewWriter(compressed)
	for _, path := range slices.Sorted(maps.Keys(files)) {
		// Writing to memory does not fail.
		_ = archive.WriteHeader(&tar.Header{Name: name + "/" + path, Mode: 0o644, Size: int64(len(files[path]))})
		_, _ = archive.Write([]byte(files[path]))
	}
	_ = archive.Close()
	_ = compressed.Close()

	return packed.Bytes()
}
