package dev

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/process"
)

var wholeLoop = flag.Bool("loop", false, "go through the development loop in kind, which takes Docker")

// TestTheDailyLoop does what docs/development.md says, in a clone, with its commands.
// It runs with -loop ("make test-dev").
func TestTheDailyLoop(t *testing.T) {
	if !*wholeLoop {
		t.Skip("the loop in kind is gone through by make test-dev only")
	}
	g := NewWithT(t)
	loop := &loop{clone: cloneSources(t)}
	dir, err := DefaultDir()
	g.Expect(err).NotTo(HaveOccurred())
	_, err = Current(dir)
	g.Expect(err).To(HaveOccurred(), "a development stack of somebody's is up: make dev-down")
	loop.environment = filepath.Join(dir, "env")
	began := time.Now()
	t.Cleanup(func() {
		if out, err := loop.shell(context.WithoutCancel(t.Context()), "make dev-down"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	loop.must(t, "make dev-up")
	t.Logf("from make dev-up to a management cluster: %.0f s", time.Since(began).Seconds())

	tilt, err := process.Start(process.Command{
		Name: "make tilt-up", Path: "/bin/sh", Args: []string{"-c", "exec make tilt-up"}, Env: os.Environ(), Dir: loop.clone,
		Log: filepath.Join(t.TempDir(), "tilt.log"),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if err := tilt.Stop(context.WithoutCancel(t.Context()), process.DefaultGrace); err != nil {
			t.Error(err)
		}
		if log, err := os.ReadFile(tilt.Log()); t.Failed() {
			t.Logf("%s%v", log, err)
		}
	})
	const patience, poll = 15 * time.Minute, time.Second
	// The image first: what has rolled out before is the manager of make dev-up, and
	// its webhook is about to go.
	for _, provider := range ours(t) {
		g.Eventually(func() (string, error) {
			return loop.shell(t.Context(), fmt.Sprintf("kubectl --namespace %[1]s get deployment %[2]s -o jsonpath='{.spec.template.spec.containers[0].image}'; kubectl --namespace %[1]s rollout status deployment %[2]s --timeout=10s >&2", provider.Namespace(), provider.Deployment()))
		}, patience, poll).Should(MatchRegexp(`:dev-\w+$`), provider.Name)
	}
	loop.trigger(t, "create-cluster")
	g.Eventually(func() (string, error) {
		return loop.shell(t.Context(), "kubectl wait cluster dev --for=condition=Available --timeout=10s")
	}, patience, poll).Should(ContainSubstring("condition met"))
	t.Logf("from make dev-up to a Ready container cluster, with Tilt: %.0f s", time.Since(began).Seconds())

	file, line, added := firstChange(t)
	path := filepath.Join(loop.clone, file)
	code, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	saved := time.Now()
	g.Expect(os.WriteFile(path, bytes.Replace(code, []byte(line), []byte(line+added), 1), 0o600)).To(Succeed())
	g.Eventually(func() (string, error) {
		return loop.shell(t.Context(), fmt.Sprintf("kubectl --namespace %s logs deployment/%s --tail=-1", ours(t)[0].Namespace(), ours(t)[0].Deployment()))
	}, patience, poll).Should(ContainSubstring(strings.Split(added, `"`)[1]))
	t.Logf("from a saved file to the new line in the log: %.1f s", time.Since(saved).Seconds())

	loop.trigger(t, "delete-cluster")
	g.Eventually(func() (string, error) {
		return loop.shell(t.Context(), "kubectl get clusters,machines,talosmachines --ignore-not-found")
	}, patience, poll).Should(BeEmpty())
}

// loop goes through the steps in a clone.
type loop struct{ clone, environment string }

// shell runs commands in the clone, with the environment of the stack once there is
// one, and returns what they print.
func (l *loop) shell(ctx context.Context, commands string) (string, error) {
	cmd := exec.CommandContext(ctx, "sh", "-ec", `if [ -e "$1" ]; then . "$1"; fi; `+commands, "sh", l.environment) //nolint:gosec // commands of this test
	cmd.Dir = l.clone
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", commands, err, messages.String())
	}
	return out.String(), nil
}

func (l *loop) must(t *testing.T, commands string) {
	t.Helper()
	out, err := l.shell(t.Context(), commands)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), out)
}

// trigger presses a button.
func (l *loop) trigger(t *testing.T, button string) {
	t.Helper()
	l.must(t, "tilt trigger "+button)
}

// cloneSources copies the sources, without what is built in them.
func cloneSources(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	from, to := sources(t), t.TempDir()
	g.Expect(filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir() && (name == ".git" || name == "out" || entry.Name() == ".tiltbuild"):
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case !entry.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), content, info.Mode().Perm())
	})).To(Succeed())
	return to
}
