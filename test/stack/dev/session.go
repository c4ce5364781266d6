// Package dev is the stack that people develop on: a management cluster in kind,
// with all providers, that stays up until somebody takes it down.
//
// A process of its own keeps it, so that what belongs to the stack (a registry, the
// settings of the machine) lives as long as it, and goes with it: Serve. Up and Down
// start and end that process.
package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// Name is the name of the cluster in kind and of its network. Context is how
// kubeconfigs call it.
const (
	Name    = "capi-talos-dev"
	Context = "kind-" + Name
)

const (
	lockFile    = "lock"
	sessionFile = "session.json"
	logFile     = "stack.log"
	// failureFile says why the stack has come down, if it should not have, or what
	// is left of it.
	failureFile = "failure"

	// lockTries is how often the lock is tried: those who only look hold it for a
	// moment.
	lockTries = 20
	lockRetry = 50 * time.Millisecond
)

// Session tells where everything of the stack is. It is written once all is ready.
type Session struct {
	// Source is the clone of the repository that the stack was started from.
	Source string `json:"source"`
	// Kubeconfig is an administrator's.
	Kubeconfig string `json:"kubeconfig"`
	// Bin is the folder with kubectl, clusterctl, kind, tilt and stack, as they must
	// be called here.
	Bin string `json:"bin"`
	// Environment is a file for the shell that sets KUBECONFIG and PATH.
	Environment string `json:"environment"`
	// Kubernetes is the version of Kubernetes whose images are at hand.
	Kubernetes string `json:"kubernetes"`
	// Docker and Kind are the programs, Network is that of the node.
	Docker  string `json:"docker"`
	Kind    string `json:"kind"`
	Network string `json:"network"`
}

// DefaultDir is the folder of the stack. There is one stack per user: its names in
// Docker are fixed.
func DefaultDir() (string, error) {
	cache, err := parts.CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "dev"), nil
}

// Current reads the session of the stack that is up in a folder.
func Current(dir string) (*Session, error) {
	keeper, err := keeperOf(dir)
	if err != nil {
		return nil, err
	}
	if keeper == 0 {
		return nil, errors.New("there is no development stack: start it with make dev-up")
	}
	session, err := readSession(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("the development stack is not ready yet: make dev-up waits for it")
	}
	return session, err
}

func readSession(dir string) (*Session, error) {
	content, err := os.ReadFile(filepath.Join(dir, sessionFile))
	if err != nil {
		return nil, fmt.Errorf("reading about the development stack: %w", err)
	}
	session := &Session{}
	if err := json.Unmarshal(content, session); err != nil {
		return nil, fmt.Errorf("reading about the development stack: %w", err)
	}
	return session, nil
}

func (s *Session) write(dir string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("writing about the development stack: %w", err)
	}
	// Whoever reads it finds it whole.
	fresh := filepath.Join(dir, sessionFile+".new")
	if err := os.WriteFile(fresh, content, 0o644); err != nil {
		return fmt.Errorf("writing about the development stack: %w", err)
	}
	return os.Rename(fresh, filepath.Join(dir, sessionFile))
}

// Env is the environment for programs that work with the stack.
func (s *Session) Env() []string {
	set := map[string]string{
		"KUBECONFIG": s.Kubeconfig, "KUBERNETES_VERSION": s.Kubernetes, "TILT_DISABLE_ANALYTICS": "1",
		"PATH": s.Bin + string(os.PathListSeparator) + os.Getenv("PATH"),
	}
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		_, ours := set[name]
		return ours
	})
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	return env
}

// Hints tell how to go on.
func (s *Session) Hints() string {
	return fmt.Sprintf(`The development stack is up. It stays until "make dev-down".

  export KUBECONFIG=%s

or, with its kubectl, clusterctl and kind too,

  . %s

then for example

  kubectl get pods -A
  kubectl label --overwrite namespace default pod-security.kubernetes.io/enforce=privileged
  clusterctl generate cluster dev --flavor container --kubernetes-version %s --worker-machine-count 1 | kubectl apply -f -
  clusterctl describe cluster dev

"make tilt-up" puts each file that you save into the cluster (docs/development.md).
`, s.Kubeconfig, s.Environment, s.Kubernetes)
}

// lock takes the lock of the process that keeps the stack. The kernel gives it up
// when that process ends.
func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the development stack: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the lock of the development stack: %w", err)
	}
	ticker := time.NewTicker(lockRetry)
	defer ticker.Stop()
	for try := 1; ; try++ {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if try == lockTries {
			_ = file.Close()
			return nil, fmt.Errorf("taking the lock of the development stack: another process keeps it: %w", err)
		}
		<-ticker.C
	}
	if err := errors.Join(file.Truncate(0), writeAt(file, strconv.Itoa(os.Getpid()))); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("writing who keeps the development stack: %w", err)
	}
	return file, nil
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// keeperOf is the process that keeps the stack; 0 when there is none.
func keeperOf(dir string) (int, error) {
	path := filepath.Join(dir, lockFile)
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("opening the lock of the development stack: %w", err)
	}
	defer func() { _ = file.Close() }()
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return 0, nil
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, fmt.Errorf("looking at the lock of the development stack: %w", err)
	}
	ticker := time.NewTicker(lockRetry)
	defer ticker.Stop()
	for try := 1; ; try++ {
		content, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("reading who keeps the development stack: %w", err)
		}
		pid, err := strconv.Atoi(string(content))
		if err == nil {
			return pid, nil
		}
		// One that has just taken the lock has not written yet who it is.
		if try == lockTries {
			return 0, fmt.Errorf("reading who keeps the development stack: %w", err)
		}
		<-ticker.C
	}
}

// Stack is a stack that was raised.
type Stack struct {
	// Session tells where it is.
	Session *Session
	// Down takes it down.
	Down func(context.Context) error
}

// Serve raises the stack and keeps it until the context ends; then it takes it
// down. There is one process at a time that does so in a folder.
func Serve(ctx context.Context, dir string, raise func(context.Context) (*Stack, error)) error {
	held, err := lock(dir)
	if err != nil {
		return err
	}
	defer func() { _ = held.Close() }()
	if err := forget(dir); err != nil {
		return err
	}
	err = keep(ctx, dir, raise)
	if err != nil {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, failureFile), []byte(err.Error()), 0o644))
	}
	return err
}

func keep(ctx context.Context, dir string, raise func(context.Context) (*Stack, error)) error {
	stack, err := raise(ctx)
	if err != nil {
		return err
	}
	err = stack.Session.write(dir)
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, os.RemoveAll(filepath.Join(dir, sessionFile)), stack.Down(context.WithoutCancel(ctx)))
}

// forget removes what an earlier stack has left behind about itself.
func forget(dir string) error {
	for _, name := range []string{sessionFile, failureFile} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("removing what an earlier stack has left: %w", err)
		}
	}
	return nil
}

// failure is why a stack that is gone has failed; nil when it has not.
func failure(dir string) error {
	content, err := os.ReadFile(filepath.Join(dir, failureFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading about the development stack: %w", err)
	}
	return errors.New(string(content))
}
