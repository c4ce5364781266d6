package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// bridge is the device of the stack's network.
const bridge = "capt-dev"

// Options are what the real stack is made of.
type Options struct {
	// Dir is its folder.
	Dir string
	// Source is the clone of the repository, Repository the local repository made by
	// "make local-repository" in it.
	Source, Repository string
	// Output is told what goes on, a line each.
	Output io.Writer
}

// Raise builds what is missing and raises the real stack. It needs root, and Docker
// or a machine that can have it.
func Raise(ctx context.Context, options Options) (_ *Stack, err error) {
	if reason := nodes.Reason(ctx); reason != "" {
		return nil, fmt.Errorf("there can be no development stack here: %s", reason)
	}
	fmt.Fprintln(options.Output, "==> building the parts that are missing")
	built, err := parts.Ensure(ctx, parts.Print(options.Output), slices.Concat(kindstack.Parts(), kindstack.PodParts(), nodes.Parts())...)
	if err != nil {
		return nil, err
	}
	files := filepath.Join(options.Dir, "files")
	if err := os.RemoveAll(files); err != nil {
		return nil, fmt.Errorf("removing the files of an earlier stack: %w", err)
	}
	fmt.Fprintln(options.Output, "==> starting Docker, a network and a registry")
	around, err := nodes.Up(ctx, nodes.Options{
		Run: Name, Bridge: bridge, Kind: Name, Dir: filepath.Join(files, "nodes"), Built: built, Output: options.Output,
	})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, around.Down(context.WithoutCancel(ctx)))
		}
	}()
	management, err := kindstack.Up(ctx, kindstack.Options{
		Name: Name, Nodes: around, Dir: files, Repository: options.Repository, Built: built, Output: options.Output,
		Pods: true,
	})
	if err != nil {
		return nil, err
	}
	session := &Session{
		Source: options.Source, Kubeconfig: management.Kubeconfig, Kubernetes: parts.KubernetesVersion,
		Bin: filepath.Join(options.Dir, "bin"), Environment: filepath.Join(options.Dir, "env"),
		Docker: around.Docker.Path, Kind: built.Path("kind"), Network: around.Network.Name,
	}
	err = session.writeTools(tools{
		clusterctl: management.Clusterctl.Path, config: management.Clusterctl.Config,
		kubectl: built.Path("kubectl"), kind: built.Path("kind"),
	})
	if err != nil {
		return nil, errors.Join(err, management.Down(context.WithoutCancel(ctx)))
	}
	return &Stack{Session: session, Down: func(ctx context.Context) error {
		fmt.Fprintln(options.Output, "==> taking the development stack down")
		return errors.Join(management.Down(ctx), around.Down(ctx), os.RemoveAll(files))
	}}, nil
}

// tools are the programs that people call.
type tools struct{ clusterctl, config, kubectl, kind string }

// thisProgram is readable also when its file is gone.
const thisProgram = "/proc/self/exe"

// writeTools makes the folder of the tools and the file of the environment.
func (s *Session) writeTools(tools tools) error {
	if err := errors.Join(os.RemoveAll(s.Bin), os.MkdirAll(s.Bin, 0o755)); err != nil {
		return fmt.Errorf("making the folder of the tools: %w", err)
	}
	scripts := map[string]string{
		"kubectl":    "exec " + quote(tools.kubectl) + ` "$@"`,
		"clusterctl": "CLUSTERCTL_DISABLE_VERSIONCHECK=true exec " + quote(tools.clusterctl) + " --config " + quote(tools.config) + ` "$@"`,
		"kind": fmt.Sprintf(`KIND_EXPERIMENTAL_PROVIDER=docker KIND_EXPERIMENTAL_DOCKER_NETWORK=%s exec %s "$@"`,
			quote(s.Network), quote(tools.kind)),
		"tilt": "TILT= exec " + quote(filepath.Join(s.Bin, "stack")) + ` tilt "$@"`,
	}
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(s.Bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			return fmt.Errorf("writing the tool %s: %w", name, err)
		}
	}
	// A copy, because what "go run" has built is removed when that ends.
	program, err := os.ReadFile(thisProgram)
	if err == nil {
		err = os.WriteFile(filepath.Join(s.Bin, "stack"), program, 0o755)
	}
	if err != nil {
		return fmt.Errorf("copying this program: %w", err)
	}
	environment := fmt.Sprintf("export KUBECONFIG=%s KUBERNETES_VERSION=%s TILT_DISABLE_ANALYTICS=1\nexport PATH=%s:\"$PATH\"\n",
		quote(s.Kubeconfig), quote(s.Kubernetes), quote(s.Bin))
	if err := os.WriteFile(s.Environment, []byte(environment), 0o644); err != nil {
		return fmt.Errorf("writing the environment of the development stack: %w", err)
	}
	return nil
}

// quote makes one word of the shell.
func quote(word string) string {
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
