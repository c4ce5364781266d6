package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

// newImage makes an image with a program, a second name of it, and a link.
func newImage(g *WithT, dir string) *Image {
	tree := NewTree(filepath.Join(dir, "root"))
	tree.Write("/bin/program", "#!", Program)
	tree.Link("/bin/linked", "program")
	g.Expect(os.Link(tree.Path("/bin/program"), tree.Path("/bin/second"))).To(Succeed())
	g.Expect(Write(tree, filepath.Join(dir, "out"), "registry.local/a/b:v1", Config{Entrypoint: []string{"/bin/program"}, User: "1:1"})).To(Succeed())
	image, err := Open(filepath.Join(dir, "out"))
	g.Expect(err).NotTo(HaveOccurred())
	return image
}

// entries reads an archive.
func entries(g *WithT, archive io.Reader) (map[string]*tar.Header, map[string][]byte) {
	headers, contents := map[string]*tar.Header{}, map[string][]byte{}
	reader := tar.NewReader(archive)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return headers, contents
		}
		g.Expect(err).NotTo(HaveOccurred())
		content, err := io.ReadAll(reader)
		g.Expect(err).NotTo(HaveOccurred())
		headers[header.Name], contents[header.Name] = header, content
	}
}

func TestArchiveHoldsTheImage(t *testing.T) {
	g := NewWithT(t)
	image := newImage(g, t.TempDir())
	var archive bytes.Buffer
	g.Expect(image.Archive(&archive)).To(Succeed())
	_, contents := entries(g, &archive)

	var manifest []struct{ RepoTags []string }
	g.Expect(json.Unmarshal(contents["manifest.json"], &manifest)).To(Succeed())
	g.Expect(manifest).To(HaveLen(1))
	g.Expect(manifest[0].RepoTags).To(Equal([]string{"registry.local/a/b:v1"}))
	g.Expect(digestOf(contents[configFile])).To(Equal(image.ID()))
	g.Expect(digestOf(contents[layerFile])).To(Equal(image.layer.Digest))

	headers, files := entries(g, bytes.NewReader(contents[layerFile]))
	g.Expect(files).To(HaveKeyWithValue("bin/program", []byte("#!")))
	g.Expect(headers["bin/program"].FileInfo().Mode().Perm()).To(Equal(Program))
	g.Expect(headers["bin/linked"].Linkname).To(Equal("program"))
	g.Expect(headers["bin/second"].Typeflag).To(BeEquivalentTo(tar.TypeLink), "a file with two names is there once")
}

func TestTheSameFilesMakeTheSameImage(t *testing.T) {
	g := NewWithT(t)
	g.Expect(newImage(g, t.TempDir()).ID()).To(Equal(newImage(g, t.TempDir()).ID()))
}

func TestTreeKeepsTheFirstError(t *testing.T) {
	g := NewWithT(t)
	tree := NewTree(t.TempDir())
	tree.Write("/file", "text", Data)
	tree.Replace("/file", "other", "new")
	tree.Copy("/does/not/exist", "/copy", Data)
	g.Expect(Write(tree, t.TempDir(), "x:y", Config{})).To(MatchError(ContainSubstring(`"other" is not in it`)))
}

func TestSplit(t *testing.T) {
	for name, want := range map[string][3]string{
		"registry.k8s.io/pause:3.10":         {"registry.k8s.io", "pause", "3.10"},
		"ghcr.io/siderolabs/kubelet:v1.36.3": {"ghcr.io", "siderolabs/kubelet", "v1.36.3"},
		"localhost/a":                        {"localhost", "a", "latest"},
		"library/busybox":                    {"", "library/busybox", "latest"},
	} {
		t.Run(name, func(t *testing.T) {
			host, repository, tag := split(name)
			NewWithT(t).Expect([3]string{host, repository, tag}).To(Equal(want))
		})
	}
}
