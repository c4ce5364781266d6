package management

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// The names of the managers in Managers.Get.
const (
	Core           = "core"
	Bootstrap      = "bootstrap"
	ControlPlane   = "control-plane"
	Infrastructure = "infrastructure"
)

// StackOptions are what a whole management cluster is started with.
type StackOptions struct {
	// Dir is the folder for all of its files. Who calls Up removes it after
	// Stop.
	Dir string
	// Repository is the local repository made by "make local-repository". Empty
	// means that only Cluster API's core provider is installed.
	Repository string
	// Race builds our managers with the race detector. It needs a C compiler.
	Race bool
	// ManagerArgs are given to our managers beyond their manifests' arguments, by the name
	// of the provider.
	ManagerArgs map[string][]string
	// Variables are those of the providers' manifests, as KEY=value. They turn on
	// feature gates of Cluster API's core, for example CLUSTER_TOPOLOGY=true.
	Variables []string
	// Audit writes down who has asked the API server for what.
	Audit bool
	// Pods is that of Options.
	Pods bool
	// GCPercent is that of Options.
	GCPercent int
	// Output is told what goes on, a line each; nil means nobody.
	Output io.Writer
	// Clock is the real one when nil.
	Clock clock.Clock
}

// Stack is a management cluster with all managers running.
type Stack struct {
	*Cluster
	// Clusterctl is the tool that installed the providers.
	Clusterctl *clusterctl.Tool
	// Managers are Cluster API's core manager and, with a repository, ours.
	Managers *Managers
	// Built are the parts it is made of.
	Built parts.Built

	programs []Program
}

// StackParts are the parts that Up needs. Up builds what is missing of them.
func StackParts() []string {
	return slices.Concat(Parts(), []string{"kubectl", "capi-core"}, clusterctl.Parts(), parts.EtcdPrograms())
}

// Up starts a management cluster, installs the providers with clusterctl and
// starts their managers. When it fails, all is stopped again.
func Up(ctx context.Context, options StackOptions) (_ *Stack, err error) {
	if options.Output == nil {
		options.Output = io.Discard
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	s := &Stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
		}
	}()
	steps := []struct {
		what string
		do   func() error
	}{
		{"building the parts that are missing", func() (err error) {
			wanted := StackParts()
			if options.Pods {
				wanted = append(wanted, PodParts()...)
			}
			s.Built, err = parts.Ensure(ctx, parts.Print(options.Output), wanted...)
			return err
		}},
		{"building our managers", func() (err error) {
			s.programs, err = programsOf(ctx, s.Built, options)
			return err
		}},
		{"starting etcd, kube-apiserver, kube-controller-manager", func() (err error) {
			s.Cluster, err = Start(ctx, Options{
				Dir: options.Dir, Built: s.Built, Audit: options.Audit, Clock: options.Clock,
				Pods: options.Pods, GCPercent: options.GCPercent,
			})
			return err
		}},
		{"clusterctl init", func() error { return s.init(ctx, options) }},
		{"starting the managers", func() (err error) {
			if s.Managers, err = s.NewManagers(ctx, s.programs...); err != nil {
				return err
			}
			return s.Managers.Start(ctx)
		}},
	}
	for _, step := range steps {
		if err := timed(options, step.what, step.do); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// timed says what it does, and how long it took.
func timed(options StackOptions, what string, do func() error) error {
	fmt.Fprintf(options.Output, "==> %s\n", what)
	start := options.Clock.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintf(options.Output, "    done (%.1f s)\n", options.Clock.Since(start).Seconds())
	return nil
}

func (s *Stack) init(ctx context.Context, options StackOptions) error {
	var err error
	s.Clusterctl, err = clusterctl.New(clusterctl.Options{
		Dir:        filepath.Join(s.Dir, "clusterctl"),
		Built:      s.Built,
		Kubeconfig: s.Kubeconfig,
		Repository: options.Repository,
	})
	if err != nil {
		return err
	}
	s.Clusterctl.Env = append(s.Clusterctl.Env, options.Variables...)
	return s.Clusterctl.Init(ctx)
}

// Twin prepares a second manager of one that runs, with the same rights and ports
// of its own. Webhooks stay with the first. It does not start it; who does stops
// it.
func (s *Stack) Twin(ctx context.Context, name string) (*Manager, error) {
	i := slices.IndexFunc(s.programs, func(program Program) bool { return program.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("making a twin of manager %s: there is none", name)
	}
	program := s.programs[i]
	program.Name += "-twin"
	twin, _, err := s.newManager(ctx, program)
	return twin, err
}

// Check fails when a process of the stack has ended by itself.
func (s *Stack) Check() error {
	return errors.Join(s.Cluster.Check(), s.Managers.Check())
}

// Stop ends the managers, then the control plane. It may be called more than
// once. Logs and data stay.
func (s *Stack) Stop(ctx context.Context) error {
	var failures []error
	if s.Managers != nil {
		failures = append(failures, s.Managers.Stop(ctx))
	}
	if s.Cluster != nil {
		failures = append(failures, s.Cluster.Stop(ctx))
	}
	return errors.Join(failures...)
}

// programsOf lists the managers, after building ours.
func programsOf(ctx context.Context, built parts.Built, options StackOptions) ([]Program, error) {
	programs := []Program{{
		Name:       Core,
		Deployment: client.ObjectKey{Namespace: "capi-system", Name: "capi-controller-manager"},
		Path:       built.Path("capi-core", "manager"),
	}}
	if options.Repository == "" {
		return programs, nil
	}
	folder, err := BuildManagers(ctx, filepath.Join(options.Dir, "bin"), options.Race)
	if err != nil {
		return nil, err
	}
	ours, err := parts.Providers()
	if err != nil {
		return nil, err
	}
	for _, provider := range ours {
		args, err := built.ArgsBeside(provider, filepath.Join(options.Dir, "backup"))
		if err != nil {
			return nil, err
		}
		programs = append(programs, Program{
			Name:       provider.Name,
			Deployment: client.ObjectKey{Namespace: provider.Namespace(), Name: provider.Deployment()},
			Path:       filepath.Join(folder, provider.Folder),
			Args:       append(args, options.ManagerArgs[provider.Name]...),
		})
	}
	return programs, nil
}

// BuildManagers builds our managers from this repository's sources into a folder, each
// under the name of its provider's folder. What they are compiled of comes
// from Go's own build cache, and what was built last from out/managers: go links what has
// changed since. Without the race detector they are static.
func BuildManagers(ctx context.Context, folder string, race bool) (string, error) {
	source, err := parts.SourceDir()
	if err != nil {
		return "", err
	}
	if folder, err = filepath.Abs(folder); err != nil {
		return "", fmt.Errorf("finding the folder for our managers: %w", err)
	}
	ours, err := parts.Providers()
	if err != nil {
		return "", err
	}
	last := filepath.Join(source, "out", "managers")
	args, cgo := []string{"build", "-buildvcs=false", "-mod=readonly", "-o", folder + "/"}, "0"
	if race {
		args, cgo = append(args, "-race"), "1"
		last += "-race"
	}
	for _, provider := range ours {
		args = append(args, "./cmd/"+provider.Folder)
	}
	cmd := exec.CommandContext(ctx, "go", args...) //nolint:gosec // our own programs
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOFLAGS=", "GOWORK=off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("making the folder for our managers: %w", err)
	}
	for _, provider := range ours {
		// There may be none, or on another file system.
		_ = os.Link(filepath.Join(last, provider.Folder), filepath.Join(folder, provider.Folder))
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building our managers: %w\n%s", err, out)
	}
	keepManagers(folder, last, ours)
	return folder, nil
}

// keepManagers keeps managers for whoever builds them next, in place of older ones, which
// may run. Where that cannot be, they are linked anew.
func keepManagers(folder, last string, ours []providers.Provider) {
	if os.MkdirAll(last, 0o755) != nil {
		return
	}
	scratch, err := os.MkdirTemp(last, "")
	if err != nil {
		return
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	for _, provider := range ours {
		if made := filepath.Join(scratch, provider.Folder); os.Link(filepath.Join(folder, provider.Folder), made) == nil {
			_ = os.Rename(made, filepath.Join(last, provider.Folder))
		}
	}
}

// stopDelay is how long a tool that was told to end may take for it.
const stopDelay = 10 * time.Second
