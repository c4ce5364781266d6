// Package process runs programs that must not outlive the program that started
// them.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"k8s.io/utils/clock"
)

// DefaultGrace is how long a process may take to end after SIGTERM.
const DefaultGrace = 20 * time.Second

// Command says what to run.
type Command struct {
	// Name is the name for people, in errors and as the log file's name.
	Name string
	// Path is the program.
	Path string
	// Args are its arguments.
	Args []string
	// Env is its whole environment, as KEY=value.
	Env []string
	// Dir is its working folder; empty means the caller's.
	Dir string
	// Log is the file that its output is appended to. The folder is made.
	Log string
	// Clock measures the grace of Stop; nil means the real one.
	Clock clock.Clock
}

// Process is a program that was started.
//
// It is in a process group of its own, so that a Ctrl-C in the terminal does
// not reach it, and the kernel kills it when the starting process dies.
type Process struct {
	command Command
	pid     int
	exited  chan struct{}

	mu       sync.Mutex
	expected bool
	err      error
}

// Start starts a program.
func Start(command Command) (*Process, error) {
	if command.Clock == nil {
		command.Clock = clock.RealClock{}
	}
	if err := os.MkdirAll(filepath.Dir(command.Log), 0o755); err != nil {
		return nil, fmt.Errorf("making the log folder of %s: %w", command.Name, err)
	}
	log, err := os.OpenFile(command.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", command.Name, err)
	}
	p := &Process{command: command, exited: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(log, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", command.Name, err)
	}
	return p, nil
}

// run starts the program and waits for it on one thread, because the kernel
// counts the end of the starting thread as the parent's death.
func (p *Process) run(log *os.File, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() { _ = log.Close() }()

	// The process is ended by Stop and Kill, not by a context.
	cmd := exec.Command(p.command.Path, p.command.Args...) //nolint:gosec,noctx // programs of the test bed
	cmd.Env, cmd.Dir = p.command.Env, p.command.Dir
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = cmd.Process.Pid
	started <- nil
	err := cmd.Wait()

	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.expected {
		p.err = fmt.Errorf("%s ended by itself: %w; its log is %s", p.command.Name, ended(err), p.command.Log)
	}
	close(p.exited)
}

func ended(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// PID is the number of the process.
func (p *Process) PID() int { return p.pid }

// Log is the file that holds its output.
func (p *Process) Log() string { return p.command.Log }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running reports whether the process lives.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Err is set when the process has ended though nobody asked for it.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stop asks the process to end, waits for that, and kills it when it takes
// longer than the grace or the context ends. To stop a process that has ended
// is no error.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.exited:
		return nil
	case <-p.command.Clock.After(grace):
	case <-ctx.Done():
	}
	return p.Kill()
}

// Kill ends the process and its children at once and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.exited
	return nil
}

func (p *Process) signal(signal syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.Running() {
		return nil
	}
	p.expected = true
	if err := syscall.Kill(-p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to %s: %w", signal, p.command.Name, err)
	}
	return nil
}
