package parts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// heartbeat is how often a build that goes on is reported.
const heartbeat = 10 * time.Second

// tailBytes is how much of a failed build's output goes into the error.
const tailBytes = 2000

// stopDelay is how long a tool that was told to end may take for it.
const stopDelay = 10 * time.Second

// Workspace is what a part's Build works with.
type Workspace struct {
	// Part is the part that is built.
	Part Part
	// Module is the folder of its wrapper module. It must not be changed.
	Module string
	// Out is the folder that becomes the part.
	Out string
	// Scratch is an empty folder for the build, removed after it.
	Scratch string
	// Needs are the parts that this one needs.
	Needs Built

	log      *buildLog
	packages atomic.Int64
}

func (b *Builder) build(ctx context.Context, step step, needs Built, report *reporter) error {
	folder := filepath.Dir(step.target)
	temp, err := os.MkdirTemp(folder, unfinished)
	if err != nil {
		return fmt.Errorf("making a folder for the build: %w", err)
	}
	defer func() { _ = removeAll(temp) }()

	space := &Workspace{
		Part:    step.part,
		Module:  filepath.Join(b.Modules, step.part.Module),
		Out:     filepath.Join(temp, "out"),
		Scratch: filepath.Join(temp, "scratch"),
		Needs:   needs,
	}
	space.log = &buildLog{packages: &space.packages}
	for _, dir := range []string{space.Out, space.Scratch} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("making a folder for the build: %w", err)
		}
	}
	stop := b.beat(space, report)
	err = space.make(ctx)
	stop()
	if err != nil {
		return err
	}
	if err := os.Rename(space.Out, step.target); err != nil {
		return fmt.Errorf("moving it into the cache: %w", err)
	}
	return nil
}

// beat reports the build until the function that it returns is called.
func (b *Builder) beat(space *Workspace, report *reporter) func() {
	done := make(chan struct{})
	var group sync.WaitGroup
	report.say(Building, 0)
	group.Go(func() {
		ticker := b.Clock.NewTicker(heartbeat)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C():
				report.say(Building, int(space.packages.Load()))
			}
		}
	})
	return func() { close(done); group.Wait() }
}

func (w *Workspace) make(ctx context.Context) error {
	for _, command := range w.Part.Commands {
		if err := w.GoBuild(ctx, w.Module, command.Package, command.Binary); err != nil {
			return err
		}
	}
	if w.Part.Build == nil {
		return nil
	}
	return w.Part.Build(ctx, w)
}

// GoBuild builds one package of the module in the folder, with the part's
// flags, into a file of Out.
func (w *Workspace) GoBuild(ctx context.Context, module, pkg, file string) error {
	args := []string{
		"build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly",
		"-ldflags", strings.TrimSpace("-s -w " + w.Part.LDFlags),
		"-o", filepath.Join(w.Out, file),
	}
	if len(w.Part.Tags) > 0 {
		args = append(args, "-tags", strings.Join(w.Part.Tags, ","))
	}
	return w.Run(ctx, module, "go", append(args, pkg)...)
}

// ModuleDir downloads a module that the wrapper module requires and returns
// the folder of its sources, which must not be changed.
func (w *Workspace) ModuleDir(ctx context.Context, path string) (string, error) {
	cmd := w.command(ctx, w.Module, "go", "mod", "download", "-json", path)
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); jsonErr != nil {
		return "", fmt.Errorf("downloading module %s: %w", path, errors.Join(err, jsonErr))
	}
	if err != nil || module.Error != "" {
		return "", fmt.Errorf("downloading module %s: %s: %w", path, module.Error, err)
	}
	return module.Dir, nil
}

// Run runs a program in a folder. What it prints goes to the log of the build,
// whose end is in the error.
func (w *Workspace) Run(ctx context.Context, dir, name string, args ...string) error {
	return w.run(ctx, w.log, dir, name, args...)
}

// Output runs a program in a folder and returns what it prints.
func (w *Workspace) Output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	var out bytes.Buffer
	err := w.run(ctx, &out, dir, name, args...)
	return out.Bytes(), err
}

func (w *Workspace) run(ctx context.Context, out io.Writer, dir, name string, args ...string) error {
	cmd := w.command(ctx, dir, name, args...)
	cmd.Stdout, cmd.Stderr = out, w.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w\n%s", filepath.Base(name), err, w.log.tail())
	}
	return nil
}

// command prepares a program that ends, with its children, when the context
// does. Flags of the user that would change the result are taken out.
func (w *Workspace) command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // the programs stand in the table
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	cmd.Env = append(cmd.Env, w.Part.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	return cmd
}

// buildLog keeps what the tools print and counts the packages that Go names
// while it compiles.
type buildLog struct {
	mu       sync.Mutex
	text     bytes.Buffer
	packages *atomic.Int64
}

// Write appends to the log.
func (l *buildLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(p) {
		if !bytes.ContainsAny(bytes.TrimSpace(line), " :") {
			l.packages.Add(1)
		}
	}
	return l.text.Write(p)
}

func (l *buildLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.Bytes()
	if len(text) > tailBytes {
		text = text[len(text)-tailBytes:]
	}
	return string(text)
}
