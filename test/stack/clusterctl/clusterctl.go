// Package clusterctl runs the real clusterctl against a local repository, with
// nothing of the user's own configuration and without asking the outside.
package clusterctl

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// ReleaseVersion is the version of our providers in the local repository that
// "make local-repository" lays out.
const ReleaseVersion = "v0.1.0"

// stopDelay is how long clusterctl may take to end when it is told to.
const stopDelay = 10 * time.Second

// Parts are the parts that New needs.
func Parts() []string {
	return []string{"clusterctl", "capi-components", "cert-manager-crds"}
}

// Options are what a Tool is made of.
type Options struct {
	// Dir is a folder for the tool's home, configuration and repository.
	Dir string
	// Built are the parts listed by Parts.
	Built parts.Built
	// Kubeconfig is the management cluster's.
	Kubeconfig string
	// Repository is the local repository of our providers; empty means that
	// only Cluster API's core provider is there.
	Repository string
	// CertManager is the manifest that is installed as cert-manager. Empty
	// means its kinds alone, which is enough where no Pod runs.
	CertManager string
}

// Tool is a configured clusterctl.
type Tool struct {
	// Path is the program.
	Path string
	// Config is the configuration file.
	Config string
	// Env is the environment that it needs, as KEY=value.
	Env []string

	// ours are the providers that the repository has.
	ours []providers.Provider
}

// New lays out the core provider's part of the repository and writes the
// configuration.
func New(options Options) (*Tool, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the folder of clusterctl: %w", err)
	}
	core := filepath.Join(dir, "repository", "cluster-api", parts.ClusterAPIVersion)
	if err := os.CopyFS(core, os.DirFS(options.Built.Dir("capi-components"))); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("laying out the core provider's repository: %w", err)
	}
	tool := &Tool{
		Path:   options.Built.Path("clusterctl"),
		Config: filepath.Join(dir, "clusterctl.yaml"),
		Env: []string{
			"HOME=" + filepath.Join(dir, "home"),
			"XDG_CONFIG_HOME=" + filepath.Join(dir, "home", ".config"),
			"PATH=" + os.Getenv("PATH"),
			"KUBECONFIG=" + options.Kubeconfig,
			"CLUSTERCTL_DISABLE_VERSIONCHECK=true",
			"NO_PROXY=*",
		},
	}
	content, err := tool.configuration(options, core)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "home"), 0o755); err != nil {
		return nil, fmt.Errorf("making the home of clusterctl: %w", err)
	}
	if err := os.WriteFile(tool.Config, content, 0o600); err != nil {
		return nil, fmt.Errorf("writing the configuration of clusterctl: %w", err)
	}
	return tool, nil
}

func (t *Tool) configuration(options Options, core string) ([]byte, error) {
	type entry struct {
		Name string `json:"name"`
		Type string `json:"type"`
		URL  string `json:"url"`
	}
	type certManager struct {
		URL     string `json:"url"`
		Version string `json:"version"`
	}
	entries := []entry{{Name: "cluster-api", Type: "CoreProvider", URL: filepath.Join(core, "core-components.yaml")}}
	if options.Repository != "" {
		repository, err := filepath.Abs(options.Repository)
		if err != nil {
			return nil, fmt.Errorf("finding the local repository: %w", err)
		}
		if t.ours, err = offered(repository); err != nil {
			return nil, err
		}
		for _, provider := range t.ours {
			entries = append(entries, entry{Name: provider.Argument(), Type: provider.Kind(), URL: components(repository, provider)})
		}
	}
	manifest, err := t.certManager(options)
	if err != nil {
		return nil, err
	}
	content, err := yaml.Marshal(struct {
		Providers   []entry     `json:"providers"`
		CertManager certManager `json:"cert-manager"`
	}{entries, certManager{URL: manifest, Version: parts.CertManagerVersion}})
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration of clusterctl: %w", err)
	}
	return content, nil
}

// certManager puts cert-manager's manifest where clusterctl looks for one of
// that version.
func (t *Tool) certManager(options Options) (string, error) {
	manifest := options.CertManager
	if manifest == "" {
		manifest = options.Built.Path("cert-manager-crds", "cert-manager-crds.yaml")
	}
	content, err := os.ReadFile(manifest)
	if err != nil {
		return "", fmt.Errorf("reading the manifest of cert-manager: %w", err)
	}
	folder := filepath.Join(filepath.Dir(t.Config), "repository", "cert-manager", parts.CertManagerVersion)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("making the repository of cert-manager: %w", err)
	}
	path := filepath.Join(folder, "cert-manager.yaml")
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", fmt.Errorf("writing the manifest of cert-manager: %w", err)
	}
	return path, nil
}

// offered are those of our providers that the repository has. That of an older release
// has fewer of them.
func offered(repository string) ([]providers.Provider, error) {
	ours, err := parts.Providers()
	if err != nil {
		return nil, err
	}
	ours = slices.DeleteFunc(ours, func(provider providers.Provider) bool {
		_, err := os.Stat(components(repository, provider))
		return err != nil
	})
	if len(ours) == 0 {
		return nil, fmt.Errorf("looking into the local repository %s (make local-repository): it has no provider of %s", repository, ReleaseVersion)
	}
	return ours, nil
}

// components is the component file of a provider in the repository.
func components(repository string, provider providers.Provider) string {
	return filepath.Join(repository, provider.Label, ReleaseVersion, provider.ComponentsFile)
}

// ProviderArgs are the arguments that name the providers of the repository, as
// "init" and "init list-images" take them. Without "-" clusterctl installs the bootstrap
// and the control plane provider of kubeadm.
func (t *Tool) ProviderArgs() []string {
	args := []string{"--core", "cluster-api:" + parts.ClusterAPIVersion}
	if len(t.ours) == 0 {
		return append(args, "--bootstrap", "-", "--control-plane", "-", "--infrastructure", "-")
	}
	for _, provider := range t.ours {
		args = append(args, "--"+provider.Flag(), provider.Argument()+":"+ReleaseVersion)
	}
	return args
}

// Arguments are what a flag of "init" is given for all of our providers of that type that
// the repository has: talos:v0.1.0 for the flag bootstrap.
func (t *Tool) Arguments(flag string) []string {
	var arguments []string
	for _, provider := range t.ours {
		if provider.Flag() == flag {
			arguments = append(arguments, provider.Argument()+":"+ReleaseVersion)
		}
	}
	return arguments
}

// Init installs the providers of the repository.
func (t *Tool) Init(ctx context.Context, args ...string) error {
	_, err := t.Run(ctx, nil, slices.Concat([]string{"init"}, t.ProviderArgs(), args)...)
	return err
}

// Generate prints the manifests of a cluster. The variables are those of the
// template.
func (t *Tool) Generate(ctx context.Context, name string, variables map[string]string, args ...string) ([]byte, error) {
	return t.Run(ctx, variables, append([]string{"generate", "cluster", name}, args...)...)
}

// Run runs clusterctl with the arguments and further environment variables,
// and returns what it prints. What it says on its error output is in the error
// when it fails.
func (t *Tool) Run(ctx context.Context, variables map[string]string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, t.Path, append(args, "--config", t.Config)...) //nolint:gosec // the built tool
	cmd.Env = slices.Clone(t.Env)
	for name, value := range variables {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running clusterctl %s: %w\n%s", args[0], err, strings.TrimSpace(messages.String()))
	}
	return out.Bytes(), nil
}
