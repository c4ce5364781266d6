package dev

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

const (
	// serveDir makes this test program keep a stack in that folder. serveFails says
	// how it fails.
	serveDir, serveFails = "CAPI_TALOS_TEST_SERVE", "CAPI_TALOS_TEST_FAILS"
	// serversSuffix makes the name of the folder where each process that keeps a
	// stack, or waits to, has a file.
	serversSuffix = ".servers"
)

func TestMain(m *testing.M) {
	dir := os.Getenv(serveDir)
	if dir == "" {
		os.Exit(m.Run())
	}
	here := filepath.Join(dir+serversSuffix, fmt.Sprint(os.Getpid()))
	if err := errors.Join(os.MkdirAll(filepath.Dir(here), 0o755), os.WriteFile(here, nil, 0o600)); err != nil {
		panic(err)
	}
	err := serve(dir)
	if err := errors.Join(err, os.Remove(here)); err != nil {
		os.Exit(1)
	}
}

// serve keeps a stack that is nothing but a session.
func serve(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return Serve(ctx, dir, func(context.Context) (*Stack, error) {
		fmt.Println("raising")
		switch os.Getenv(serveFails) {
		case "raise":
			return nil, errors.New("no more disk")
		case "killed":
			return nil, syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return &Stack{
			Session: &Session{Kubeconfig: "/kubeconfig", Kubernetes: fmt.Sprint(os.Getpid())},
			Down: func(context.Context) error {
				fmt.Println("taking down")
				if os.Getenv(serveFails) == "down" {
					return errors.New("a container is left")
				}
				return nil
			},
		}, nil
	})
}

// serving is a folder, and the command that keeps a stack there.
func serving(t *testing.T, fails string) (dir string, command []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "dev")
	t.Setenv(serveDir, dir)
	t.Setenv(serveFails, fails)
	t.Cleanup(func() {
		if _, err := Down(context.WithoutCancel(t.Context()), dir, &bytes.Buffer{}); err != nil && fails == "" {
			t.Error(err)
		}
	})
	return dir, []string{os.Args[0]}
}

func TestUpLeavesAStackThatDownTakesAway(t *testing.T) {
	g := NewWithT(t)
	dir, command := serving(t, "")
	_, err := Current(dir)
	g.Expect(err).To(MatchError(ContainSubstring("make dev-up")))

	var said bytes.Buffer
	first, err := Up(t.Context(), dir, command, &said)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(said.String()).To(Equal("raising\n"))
	g.Expect(first.Hints()).To(And(ContainSubstring("export KUBECONFIG=/kubeconfig"), ContainSubstring("make dev-down")))

	said.Reset()
	second, err := Up(t.Context(), dir, command, &said)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second).To(Equal(first), "it is the same process that keeps it")
	g.Expect(said.String()).To(BeEmpty())
	g.Expect(Current(dir)).To(Equal(first))

	g.Expect(Down(t.Context(), dir, &said)).To(BeTrue())
	g.Expect(said.String()).To(Equal("taking down\n"))
	g.Expect(Down(t.Context(), dir, &said)).To(BeFalse(), "nothing is left")
	_, err = Current(dir)
	g.Expect(err).To(HaveOccurred())

	third, err := Up(t.Context(), dir, command, &said)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(third).NotTo(Equal(first))
}

func TestTwoAtOnceGetOneStack(t *testing.T) {
	g := NewWithT(t)
	dir, command := serving(t, "")
	type result struct {
		session *Session
		err     error
	}
	results := make(chan result)
	const callers = 2
	for range callers {
		go func() {
			session, err := Up(t.Context(), dir, command, &bytes.Buffer{})
			results <- result{session, err}
		}()
	}
	first, second := <-results, <-results
	g.Expect(errors.Join(first.err, second.err)).NotTo(HaveOccurred())
	g.Expect(first.session).To(Equal(second.session))
	g.Expect(os.ReadDir(dir+serversSuffix)).To(HaveLen(1), "the other process would wait for the end of this one, and take its place")
}

func TestUpSaysWhyThereIsNoStack(t *testing.T) {
	for behaviour, test := range map[string]struct{ fails, message string }{
		"it has failed":  {"raise", "the development stack has not come up: no more disk\nthe log of the development stack is "},
		"it was killed":  {"killed", "the development stack has not come up: its process was killed"},
		"cannot be told": {"", "no-such-program"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			g := NewWithT(t)
			dir, command := serving(t, test.fails)
			if test.fails == "" {
				command = []string{"/no-such-program"}
			}
			_, err := Up(t.Context(), dir, command, &bytes.Buffer{})
			g.Expect(err).To(MatchError(ContainSubstring(test.message)))
			g.Expect(Down(t.Context(), dir, &bytes.Buffer{})).To(BeFalse())
		})
	}
}

func TestDownSaysWhatIsLeft(t *testing.T) {
	g := NewWithT(t)
	dir, command := serving(t, "down")
	_, err := Up(t.Context(), dir, command, &bytes.Buffer{})
	g.Expect(err).NotTo(HaveOccurred())
	found, err := Down(t.Context(), dir, &bytes.Buffer{})
	g.Expect(found).To(BeTrue())
	g.Expect(err).To(MatchError("a container is left"))
}

func TestUpCanBeInterruptedAndTheStackComesUp(t *testing.T) {
	g := NewWithT(t)
	dir, command := serving(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Up(ctx, dir, command, &bytes.Buffer{}); err != nil {
		g.Expect(err).To(MatchError(context.Canceled))
	}
	g.Eventually(func() error { _, err := Current(dir); return err }).Should(Succeed())
}
