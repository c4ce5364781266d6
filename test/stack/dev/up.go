package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// look is how often a stack that comes or goes is looked at.
const look = 200 * time.Millisecond

// Up makes sure that there is a stack in the folder, and waits until it is ready.
// When there is none, the command is started, which must Serve, in the background;
// what it says is copied to output.
func Up(ctx context.Context, dir string, command []string, output io.Writer) (*Session, error) {
	log := filepath.Join(dir, logFile)
	keeper, err := keeperOf(dir)
	if err != nil {
		return nil, err
	}
	started := background{}
	if keeper == 0 {
		if started, err = start(dir, command); err != nil {
			return nil, err
		}
	} else if session, err := readSession(dir); err == nil {
		return session, nil
	}
	session, err := await(ctx, dir, started, &tail{path: log, to: output})
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%w\nthe log of the development stack is %s", err, log)
	}
	return session, err
}

// background is a process that was started here to keep a stack. The zero value is
// none.
type background struct {
	pid   int
	ended <-chan struct{}
}

// await waits for the session of a stack, and for the end of a process that was
// started for it while another one was at it: it would raise a second stack if the
// first were taken down before it gives up.
func await(ctx context.Context, dir string, started background, said *tail) (*Session, error) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		keeper, err := keeperOf(dir)
		if err != nil {
			return nil, err
		}
		if keeper == started.pid || started.ended == nil {
			session, err := readSession(dir)
			if err == nil {
				return session, said.copy()
			}
			if !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
		}
		if keeper == 0 && started.ended == nil {
			return nil, errors.Join(failed(dir), said.copy())
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the development stack goes on to come up, until make dev-down: %w", ctx.Err())
		case <-started.ended:
			// Another one that is at it is waited for.
			started = background{}
		case <-ticker.C:
			if err := said.copy(); err != nil {
				return nil, err
			}
		}
	}
}

// failed is the error of a stack that has not come up.
func failed(dir string) error {
	if err := failure(dir); err != nil {
		return fmt.Errorf("the development stack has not come up: %w", err)
	}
	return errors.New("the development stack has not come up: its process was killed")
}

// start starts the process that keeps the stack. It belongs to no terminal, and
// outlives this one.
func start(dir string, command []string) (background, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return background{}, fmt.Errorf("making the folder of the development stack: %w", err)
	}
	if err := forget(dir); err != nil {
		return background{}, err
	}
	log, err := os.Create(filepath.Join(dir, logFile))
	if err != nil {
		return background{}, fmt.Errorf("making the log of the development stack: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // It is this program, and ended by Down.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return background{}, fmt.Errorf("starting the development stack: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		// How it has ended, it says in its folder.
		_ = cmd.Wait()
		close(ended)
	}()
	return background{pid: cmd.Process.Pid, ended: ended}, nil
}

// Down takes the stack in the folder down and waits until it is gone. It tells
// whether there was one.
func Down(ctx context.Context, dir string, output io.Writer) (bool, error) {
	keeper, err := keeperOf(dir)
	if err != nil || keeper == 0 {
		return false, err
	}
	said := &tail{path: filepath.Join(dir, logFile), to: output}
	if err := said.skip(); err != nil {
		return true, err
	}
	if err := syscall.Kill(keeper, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return true, fmt.Errorf("ending the development stack: %w", err)
	}
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		left, err := keeperOf(dir)
		if err = errors.Join(err, said.copy()); err != nil || left != keeper {
			return true, errors.Join(err, failure(dir))
		}
		select {
		case <-ctx.Done():
			return true, fmt.Errorf("waiting for the end of the development stack: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// tail copies what is added to a file.
type tail struct {
	path   string
	to     io.Writer
	offset int64
}

// skip leaves out what is there.
func (t *tail) skip() error {
	info, err := os.Stat(t.path)
	if err != nil {
		return fmt.Errorf("looking at the log: %w", err)
	}
	t.offset = info.Size()
	return nil
}

func (t *tail) copy() error {
	file, err := os.Open(t.path)
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	defer func() { _ = file.Close() }()
	count, err := io.Copy(t.to, io.NewSectionReader(file, t.offset, 1<<62))
	t.offset += count
	if err != nil {
		return fmt.Errorf("copying the log: %w", err)
	}
	return nil
}
