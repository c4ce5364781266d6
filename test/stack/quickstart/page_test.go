package quickstart

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/parts"
)

func TestBlocksAreTheShellCommandsOfAPage(t *testing.T) {
	g := NewWithT(t)
	blocks, err := Blocks([]byte("# Title\n\ntext\n\n```sh\none\n# no heading\n\n```\n\n```yaml\n# nothing\na: b\n```\n\n## Next\n\n```sh\ntwo \\\n  three\n```\n"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blocks).To(Equal([]Block{
		{Line: 6, Heading: "Title", Commands: "one\n# no heading\n\n"},
		{Line: 19, Heading: "Next", Commands: "two \\\n  three\n"},
	}))
}

func TestPagesThatCannotBeTypedAreRefused(t *testing.T) {
	for behaviour, test := range map[string]struct{ page, message string }{
		"no commands":     {"# Title\n```yaml\na: b\n```\n", "there are no shell commands"},
		"an open block":   {"```sh\none\n", "the last one does not end"},
		"an empty page":   {"", "there are no shell commands"},
		"an open listing": {"```sh\none\n```\n```yaml\n", "the last one does not end"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			_, err := Blocks([]byte(test.page))
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.message)))
		})
	}
}

func TestReplacementsMustBeOnThePageOnce(t *testing.T) {
	blocks := []Block{{Commands: "get a\n"}, {Commands: "get b\nget b\n"}}
	for behaviour, test := range map[string]struct {
		said, message string
		want          string
	}{
		"replaces":               {said: "a", want: "get x\n"},
		"refuses what is twice":  {said: "get b", message: `replacing "get b", because of a test: it is on the page 2 times`},
		"refuses what is not on": {said: "c", message: "it is on the page 0 times"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			changed, err := Replace(blocks, []Replacement{{Said: test.said, Typed: "x", Why: "of a test"}})
			if test.message != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.message)))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(changed[0].Commands).To(Equal(test.want))
			g.Expect(blocks[0].Commands).To(Equal("get a\n"), "the page stays what it is")
		})
	}
}

// typed runs commands in a shell and returns what is printed.
func typed(t *testing.T, ctx context.Context, blocks []Block) (took []Took, output string, err error) {
	t.Helper()
	var out bytes.Buffer
	took, err = Run(ctx, blocks, Options{Dir: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}, Output: &out})
	return took, out.String(), err
}

func TestBlocksShareOneShell(t *testing.T) {
	g := NewWithT(t)
	took, output, err := typed(t, t.Context(), []Block{
		{Heading: "First", Commands: "export A=1\ncat > file <<EOF\n$A and\nEOF\nsleep 100 > log 2>&1 &\n"},
		{Heading: "Second", Commands: "cat file; cat; kill $!\nprintf 'no end'"},
		{Heading: "Third", Commands: "echo done"},
	})
	g.Expect(err).NotTo(HaveOccurred(), output)
	g.Expect(output).To(HaveSuffix("==> Second\ncat file; cat; kill $!\nprintf 'no end'\n1 and\nno end\n==> Third\necho done\ndone\n"))
	g.Expect(took).To(HaveExactElements(HaveField("Block.Heading", "First"), HaveField("Block.Heading", "Second"), HaveField("Block.Heading", "Third")))
	var table bytes.Buffer
	Table(&table, took)
	g.Expect(table.String()).To(ContainSubstring("| Second (line 0) | 0."))
}

func TestTheFirstFailureEndsTheShell(t *testing.T) {
	for behaviour, test := range map[string]struct{ commands, message string }{
		"a command that fails": {"false\ntouch later", "typing the commands at line 7 (Broken): exit status 1"},
		"an early end":         {"exit 0", "the shell has ended before the last of them"},
		"no shell commands":    {"if", "typing the commands"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			_, output, err := typed(t, t.Context(), []Block{{Line: 3, Commands: "true"}, {Line: 7, Heading: "Broken", Commands: test.commands}, {Line: 9, Commands: "echo after"}})
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(output).NotTo(ContainSubstring("echo after"))
		})
	}
}

// until ends a context once something was printed.
type until struct {
	bytes.Buffer

	text string
	end  context.CancelFunc
}

func (u *until) Write(text []byte) (int, error) {
	count, err := u.Buffer.Write(text)
	if strings.Contains(u.String(), u.text) {
		u.end()
	}
	return count, err
}

func TestNothingIsLeftWhenTimeIsUp(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	output := &until{text: "\nready", end: cancel}
	_, err := Run(ctx, []Block{{Line: 1, Heading: "Long", Commands: "sleep 1000 &\necho $!\nprintf 'rea'; echo dy\nsleep 1000"}},
		Options{Dir: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}, Output: output})
	g.Expect(err).To(MatchError(ContainSubstring("line 1 (Long)")))
	before, _, _ := strings.Cut(output.String(), output.text)
	background, err := strconv.Atoi(before[strings.LastIndex(before, "\n")+1:])
	g.Expect(err).NotTo(HaveOccurred(), output.String())
	// A process that has ended, and that nobody has asked about yet, has no arguments.
	g.Eventually(func() string {
		arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", background))
		return string(arguments)
	}).Should(BeEmpty())
}

// quickStart are the blocks of the page.
func quickStart(t *testing.T) []Block {
	t.Helper()
	g := NewWithT(t)
	source, err := parts.SourceDir()
	g.Expect(err).NotTo(HaveOccurred())
	page, err := os.ReadFile(filepath.Join(source, "docs", "quick-start.md"))
	g.Expect(err).NotTo(HaveOccurred())
	blocks, err := Blocks(page)
	g.Expect(err).NotTo(HaveOccurred())
	return blocks
}

func TestThePageIsShellAndItsReplacementsAreOnIt(t *testing.T) {
	g := NewWithT(t)
	blocks := quickStart(t)
	ours, err := parts.Providers()
	g.Expect(err).NotTo(HaveOccurred())
	changed, err := Replace(blocks, offline(substitutes{}, ours))
	g.Expect(err).NotTo(HaveOccurred())
	for _, all := range [][]Block{blocks, changed} {
		check := exec.CommandContext(t.Context(), "sh", "-n")
		check.Stdin = bytes.NewBufferString(script(all))
		out, err := check.CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
	}
}

func TestThePageTakesTheVersionsOfTheTestBed(t *testing.T) {
	g := NewWithT(t)
	var all strings.Builder
	for _, block := range quickStart(t) {
		all.WriteString(block.Commands)
	}
	g.Expect(all.String()).To(ContainSubstring("--kubernetes-version " + parts.KubernetesVersion + " "))
	g.Expect(all.String()).To(ContainSubstring("TALOS_VERSION=" + parts.TalosVersion[:strings.LastIndex(parts.TalosVersion, ".")] + "\n"))
}

// clusterctlConfig is what clusterctl reads.
type clusterctlConfig struct {
	CertManager struct {
		URL     string `json:"url"`
		Version string `json:"version"`
	} `json:"cert-manager"`
	Providers []struct {
		Name string `json:"name"`
		Type string `json:"type"`
		URL  string `json:"url"`
	} `json:"providers"`
}

func TestThePageConfiguresClusterctl(t *testing.T) {
	ours, err := parts.Providers()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for behaviour, test := range map[string]struct {
		replacements []Replacement
		want         []string
	}{
		"as people type it": {nil, []string{
			"talos BootstrapProvider https://github.com/capi-talos/capi-talos/releases/v0.1.0/bootstrap-components.yaml",
			"talos ControlPlaneProvider https://github.com/capi-talos/capi-talos/releases/v0.1.0/control-plane-components.yaml",
			"talos InfrastructureProvider https://github.com/capi-talos/capi-talos/releases/v0.1.0/infrastructure-components.yaml",
			"talos AddonProvider https://github.com/capi-talos/capi-talos/releases/v0.1.0/addon-components.yaml",
			"talos-backup AddonProvider https://github.com/capi-talos/capi-talos/releases/v0.1.0/backup-components.yaml",
		}},
		"where nothing can be downloaded": {offline(substitutes{repository: "/r", core: "/core.yaml", certManager: "/cert.yaml"}, ours), []string{
			"cluster-api CoreProvider /core.yaml",
			"talos BootstrapProvider /r/bootstrap-talos/v0.1.0/bootstrap-components.yaml",
			"talos ControlPlaneProvider /r/control-plane-talos/v0.1.0/control-plane-components.yaml",
			"talos InfrastructureProvider /r/infrastructure-talos/v0.1.0/infrastructure-components.yaml",
			"talos AddonProvider /r/addon-talos/v0.1.0/addon-components.yaml",
			"talos-backup AddonProvider /r/addon-talos-backup/v0.1.0/backup-components.yaml",
		}},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			blocks, err := Replace(quickStart(t), test.replacements)
			g.Expect(err).NotTo(HaveOccurred())
			dir := t.TempDir()
			const configuration = 1
			_, err = Run(t.Context(), blocks[configuration:configuration+1], Options{Dir: dir, Env: []string{"PATH=" + os.Getenv("PATH")}, Output: &bytes.Buffer{}})
			g.Expect(err).NotTo(HaveOccurred())
			content, err := os.ReadFile(filepath.Join(dir, "clusterctl.yaml"))
			g.Expect(err).NotTo(HaveOccurred())
			config := clusterctlConfig{}
			g.Expect(yaml.UnmarshalStrict(content, &config)).To(Succeed())
			var found []string
			for _, provider := range config.Providers {
				found = append(found, provider.Name+" "+provider.Type+" "+provider.URL)
			}
			g.Expect(found).To(Equal(test.want))
			if test.replacements != nil {
				g.Expect(config.CertManager.URL).To(Equal("/cert.yaml"))
				g.Expect(config.CertManager.Version).To(Equal(parts.CertManagerVersion))
			}
		})
	}
}
