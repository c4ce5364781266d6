package talosnode

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestSysctlsComeBack(t *testing.T) {
	g, root := NewWithT(t), t.TempDir()
	file := filepath.Join(root, "vm", "overcommit_memory")
	g.Expect(os.Mkdir(filepath.Dir(file), 0o755)).To(Succeed())
	g.Expect(os.WriteFile(file, []byte("0\n"), 0o644)).To(Succeed())

	before := readSysctls(root)
	g.Expect(os.WriteFile(file, []byte("1\n"), 0o644)).To(Succeed())
	g.Expect(before.Restore()).To(Succeed())
	g.Expect(os.ReadFile(file)).To(Equal([]byte("0\n")))

	g.Expect(os.WriteFile(file, []byte("1\n"), 0o644)).To(Succeed())
	g.Expect(exec.CommandContext(t.Context(), "sh", "-c", before.Script()).Run()).To(Succeed(), "a shell does the same") //nolint:gosec // The script is ours.
	g.Expect(os.ReadFile(file)).To(Equal([]byte("0\n")))
}
