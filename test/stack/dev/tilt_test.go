package dev

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/process"
)

var realTilt = flag.Bool("tilt", false, "run the real Tilt, which is built with a C compiler")

// nowhere is a kubeconfig of the development stack's name that leads nowhere.
const nowhere = `apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: CONTEXT, context: {cluster: nowhere, user: nobody}}]
users: [{name: nobody, user: {}}]
current-context: CONTEXT
`

// tilt is the real Tilt with a home of its own, and a cluster that does not answer.
type tilt struct {
	program string
	env     []string
}

func newTilt(t *testing.T, context string) *tilt {
	t.Helper()
	if !*realTilt {
		t.Skip("Tilt is built and run by make test-tilt only")
	}
	g := NewWithT(t)
	built, err := parts.Ensure(t.Context(), parts.Print(os.Stderr), "tilt")
	g.Expect(err).NotTo(HaveOccurred())
	home := t.TempDir()
	kubeconfig := filepath.Join(home, "kubeconfig")
	g.Expect(os.WriteFile(kubeconfig, []byte(strings.ReplaceAll(nowhere, "CONTEXT", context)), 0o600)).To(Succeed())
	out, err := exec.CommandContext(t.Context(), "go", "env", "-json", "GOCACHE", "GOMODCACHE", "GOPROXY").Output()
	g.Expect(err).NotTo(HaveOccurred())
	settings := map[string]string{}
	g.Expect(json.Unmarshal(out, &settings)).To(Succeed())
	env := []string{"HOME=" + home, "KUBECONFIG=" + kubeconfig, "PATH=" + os.Getenv("PATH"), "TILT_DISABLE_ANALYTICS=1"}
	for name, value := range settings {
		env = append(env, name+"="+value)
	}
	return &tilt{program: built.Path("tilt"), env: env}
}

func (r *tilt) run(t *testing.T, dir string, args ...string) (out, messages string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), r.program, args...) //nolint:gosec // the built tool
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, r.env, &stdout, &stderr
	err = cmd.Run()
	return stdout.String(), stderr.String(), err
}

// resource is one of a Tiltfile, as Tilt tells.
type resource struct {
	Name                 string
	Labels               map[string]string
	TriggerMode          int
	ResourceDependencies []string
	DeployTarget         struct {
		Deps          []string
		UpdateCmdSpec *command `json:"UpdateCmdSpec"`
		ApplyCmd      *command `json:"applyCmd"`
		DeleteCmd     *command `json:"deleteCmd"`
	}
}

type command struct {
	Args []string `json:"args"`
	Dir  string   `json:"dir"`
}

// manual is Tilt's number for resources that run only when somebody says so.
const manual = 2

func TestTheTiltfileHasALoopPerProviderAndButtons(t *testing.T) {
	g := NewWithT(t)
	out, messages, err := newTilt(t, Context).run(t, sources(t), "alpha", "tiltfile-result")
	g.Expect(err).NotTo(HaveOccurred(), messages)
	var result struct {
		Manifests    []resource
		AnalyticsOpt int
	}
	g.Expect(json.Unmarshal([]byte(out), &result)).To(Succeed())
	resources := map[string]resource{}
	for _, found := range result.Manifests {
		resources[found.Name] = found
	}
	for _, provider := range ours(t) {
		build, deploy := resources[provider.Name+"-build"], resources[provider.Name]
		binary := "out/tilt/" + provider.Folder
		g.Expect(build.DeployTarget.UpdateCmdSpec).NotTo(BeNil(), provider.Name)
		g.Expect(build.DeployTarget.UpdateCmdSpec.Args).To(ContainElements("go", "build", binary, "./cmd/"+provider.Folder))
		g.Expect(deploy.DeployTarget.ApplyCmd).NotTo(BeNil(), provider.Name)
		g.Expect(deploy.DeployTarget.ApplyCmd.Args).To(Equal([]string{"stack", "dev-deploy", provider.Folder, binary}))
		g.Expect(deploy.DeployTarget.DeleteCmd.Args).To(Equal([]string{"true"}), "providers stay when Tilt is told to go down")
		g.Expect(deploy.ResourceDependencies).To(Equal([]string{provider.Name + "-build"}))
		for _, one := range []resource{build, deploy} {
			g.Expect(one.Labels).To(Equal(map[string]string{provider.Name: provider.Name}), "one group per provider")
			g.Expect(one.TriggerMode).NotTo(Equal(manual))
		}
		coversItsImports(t, provider.Folder, build.DeployTarget.Deps)
	}
	for name, words := range map[string][]string{
		"create-cluster":   {"clusterctl generate cluster dev --flavor container --kubernetes-version " + parts.KubernetesVersion, "kubectl apply"},
		"describe-cluster": {"clusterctl describe cluster dev"},
		"delete-cluster":   {"kubectl delete cluster dev"},
	} {
		button := resources[name]
		g.Expect(button.TriggerMode).To(Equal(manual), name)
		g.Expect(button.Labels).To(HaveKey("clusters"), name)
		for _, word := range words {
			g.Expect(button.DeployTarget.UpdateCmdSpec.Args).To(ContainElement(ContainSubstring(word)), name)
		}
	}
	for _, provider := range ours(t) {
		g.Expect(resources["create-cluster"].ResourceDependencies).To(ContainElement(provider.Name), "the webhook is away while the manager is replaced")
	}
	const each, buttons = 2, 3
	g.Expect(resources).To(HaveLen(each*len(ours(t)) + buttons))
}

func TestTheTiltfileRefusesOtherClusters(t *testing.T) {
	g := NewWithT(t)
	_, messages, err := newTilt(t, "production").run(t, sources(t), "alpha", "tiltfile-result")
	g.Expect(err).To(HaveOccurred())
	g.Expect(messages).To(ContainSubstring("make tilt-up"))
}

// coversItsImports holds what is watched for a manager to what it is made of: all of
// it, and nothing else.
func coversItsImports(t *testing.T, folder string, watched []string) {
	t.Helper()
	g := NewWithT(t)
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.Dir}}{{end}}", "./cmd/"+folder) //nolint:gosec // our providers
	list.Dir = sources(t)
	out, err := list.Output()
	g.Expect(err).NotTo(HaveOccurred())
	used := map[string]bool{}
	for dir := range strings.FieldsSeq(string(out)) {
		if !strings.HasPrefix(dir, sources(t)+"/") {
			continue
		}
		index := slices.IndexFunc(watched, func(path string) bool { return dir == path || strings.HasPrefix(dir, path+"/") })
		g.Expect(index).NotTo(BeNumerically("<", 0), "%s is watched for %s", dir, folder)
		used[watched[index]] = true
	}
	for _, path := range watched {
		info, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		if info.IsDir() {
			g.Expect(used).To(HaveKey(path), "%s is watched for %s", path, folder)
		}
	}
}

func TestASavedFileBecomesANewManager(t *testing.T) {
	g := NewWithT(t)
	clone := cloneSources(t)
	tool := newTilt(t, Context)
	running, err := process.Start(process.Command{
		Name: "tilt", Path: tool.program, Args: []string{"up", "--stream", "--port=0", "bootstrap-build"},
		Env: tool.env, Dir: clone, Log: filepath.Join(t.TempDir(), "tilt.log"),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := running.Kill(); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(running.Log()); t.Failed() {
			t.Logf("%s%v", log, err)
		}
	})
	const cold, warm = 10 * time.Minute, 2 * time.Minute
	binary := filepath.Join(clone, "out", "tilt", "bootstrap")
	content := func() ([]byte, error) { return os.ReadFile(binary) }
	has := func(text string) OmegaMatcher {
		return WithTransform(func(content []byte) bool { return bytes.Contains(content, []byte(text)) }, BeTrue())
	}
	g.Eventually(content, cold).Should(has("capt-bootstrap-manager"))

	file, line, added := firstChange(t)
	path := filepath.Join(clone, file)
	code, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(bytes.Count(code, []byte(line))).To(Equal(1), "the page shows a line of %s", file)
	message := strings.Split(added, `"`)[1]
	g.Expect(content()).NotTo(has(message))
	saved := time.Now()
	g.Expect(os.WriteFile(path, bytes.Replace(code, []byte(line), []byte(line+added), 1), 0o600)).To(Succeed())
	g.Eventually(content, warm).Should(has(message))
	t.Logf("from a saved file to a new manager: %.1f s", time.Since(saved).Seconds())
	g.Expect(running.Kill()).To(Succeed())

	// The same once, as a test run of Tilt does it: it ends when all is done.
	g.Expect(os.Remove(binary)).To(Succeed())
	out, messages, err := tool.run(t, clone, "ci", "--port=0", "bootstrap-build")
	g.Expect(err).NotTo(HaveOccurred(), out+messages)
	g.Expect(content()).To(has(message))
}

// firstChange is the change that docs/development.md has its readers make: the file,
// a line of it, and the line that goes below.
func firstChange(t *testing.T) (file, line, added string) {
	t.Helper()
	g := NewWithT(t)
	page, err := os.ReadFile(filepath.Join(sources(t), "docs", "development.md"))
	g.Expect(err).NotTo(HaveOccurred())
	link := regexp.MustCompile(`\]\(\.\./([^)]+\.go)\)`).FindSubmatch(page)
	g.Expect(link).NotTo(BeNil())
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(page, -1)
	g.Expect(blocks).To(HaveLen(2))
	return string(link[1]), string(blocks[0][1]), string(blocks[1][1])
}

// upstream is an entry of a tilt-provider.yaml, as the Tiltfile of Cluster API's
// repository reads it.
type upstream struct {
	Name   string `json:"name"`
	Config struct {
		Context         string   `json:"context"`
		GoMain          string   `json:"go_main"`
		Image           string   `json:"image"`
		KustomizeFolder string   `json:"kustomize_folder"`
		Label           string   `json:"label"`
		LiveReloadDeps  []string `json:"live_reload_deps"`
	} `json:"config"`
}

func TestClusterAPIsTiltfileFindsOurProviders(t *testing.T) {
	g := NewWithT(t)
	folder := filepath.Join(sources(t), "config", "tilt")
	content, err := os.ReadFile(filepath.Join(folder, "tilt-provider.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	var entries []upstream
	g.Expect(yaml.UnmarshalStrict(content, &entries)).To(Succeed())
	g.Expect(entries).To(HaveLen(len(ours(t))))
	for index, entry := range entries {
		provider, config := ours(t)[index], entry.Config
		g.Expect(entry.Name).To(Equal("talos-" + provider.Name))
		g.Expect(config.Label).To(Equal(entry.Name))
		context := filepath.Join(folder, config.Context)
		g.Expect(context).To(Equal(filepath.Join(sources(t), "cmd", provider.Folder)), "each has a folder of its own for its binary")
		g.Expect(filepath.Join(context, config.GoMain)).To(BeARegularFile())
		manager, err := os.ReadFile(filepath.Join(sources(t), "config", provider.Folder, "manager", "manager.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(manager)).To(ContainSubstring("image: " + config.Image + ":"))
		g.Expect(filepath.Join(context, config.KustomizeFolder)).To(Equal(filepath.Join(sources(t), "config", provider.Folder, "default")))
		var watched []string
		for _, path := range config.LiveReloadDeps {
			watched = append(watched, filepath.Join(context, path))
		}
		g.Expect(watched).To(ContainElement(filepath.Join(context, "main.go")))
		coversItsImports(t, provider.Folder, append(watched, context))
	}
}
