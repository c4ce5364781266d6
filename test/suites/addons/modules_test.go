package addons

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
)

// published is a chart that other people publish inside their Go module.
type published struct {
	// module is the module, folder where the chart is in it, and from and to are the
	// versions of the module of which one is upgraded to the other.
	module, folder, from, to string
	// versionIsSet reports whether the chart gets the version of the module when it is
	// packed, as its Chart.yaml says.
	versionIsSet bool
}

// load loads the chart of a version of the module. Go verifies the module by its checksum
// data base.
func (p published) load(t *testing.T, version string) *chart.Chart {
	t.Helper()
	g := NewWithT(t)
	command := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", p.module+"@"+version) //nolint:gosec // The suite names them.
	// Outside of any module: none shall require it.
	command.Dir = t.TempDir()
	said, err := command.Output()
	var downloaded struct{ Dir, Error string }
	g.Expect(json.Unmarshal(said, &downloaded)).To(Succeed(), string(said))
	g.Expect(err).NotTo(HaveOccurred(), downloaded.Error)
	loaded, err := loader.LoadDir(filepath.Join(downloaded.Dir, p.folder))
	g.Expect(err).NotTo(HaveOccurred())
	if p.versionIsSet {
		loaded.Metadata.Version, loaded.Metadata.AppVersion = version, version
	}

	return loaded
}

// packed is the archive of a chart, as helm package makes it.
func packed(t *testing.T, loaded *chart.Chart) []byte {
	t.Helper()
	g := NewWithT(t)
	file, err := chartutil.Save(loaded, t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	archive, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())

	return archive
}
