package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/capi-talos/capi-talos/test/stack/dev"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// devServe is the command that keeps the development stack. People do not type it.
const devServe = "dev-serve"

// devUp raises the development stack, if there is none.
func devUp(ctx context.Context) error {
	dir, err := dev.DefaultDir()
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	session, err := dev.Up(ctx, dir, []string{program, devServe}, os.Stdout)
	if err != nil {
		return err
	}
	fmt.Println()
	fmt.Print(session.Hints())
	return nil
}

// devKeep raises the development stack and keeps it until it is told to end.
func devKeep(ctx context.Context) error {
	dir, err := dev.DefaultDir()
	if err != nil {
		return err
	}
	source, err := parts.SourceDir()
	if err != nil {
		return err
	}
	return dev.Serve(ctx, dir, func(ctx context.Context) (*dev.Stack, error) {
		return dev.Raise(ctx, dev.Options{
			Dir: dir, Source: source, Repository: filepath.Join(source, "out", "repository"), Output: os.Stdout,
		})
	})
}

// devDown takes the development stack down.
func devDown(ctx context.Context) error {
	dir, err := dev.DefaultDir()
	if err != nil {
		return err
	}
	found, err := dev.Down(ctx, dir, os.Stdout)
	if err != nil {
		return err
	}
	if !found {
		fmt.Println("There is no development stack.")
	}
	return nil
}

// devDeploy puts a manager into the development stack.
func devDeploy(ctx context.Context, args []string) error {
	const wanted = 2
	if len(args) != wanted {
		return errors.New("dev-deploy takes the folder of a provider and a program")
	}
	session, err := currentSession()
	if err != nil {
		return err
	}
	return dev.Deploy(ctx, session, args[0], args[1], os.Stdout, os.Stderr)
}

// runTilt becomes Tilt, in the folder of the sources and with the environment of the
// development stack. $TILT is one to take instead of ours.
func runTilt(ctx context.Context, args []string) error {
	session, err := currentSession()
	if err != nil {
		return err
	}
	source, err := parts.SourceDir()
	if err != nil {
		return err
	}
	if session.Source != source {
		return fmt.Errorf("the development stack is that of %s: run Tilt there, or make dev-down and dev-up", session.Source)
	}
	program, err := tiltProgram(ctx)
	if err != nil {
		return err
	}
	if err := os.Chdir(source); err != nil {
		return fmt.Errorf("entering the folder of the sources: %w", err)
	}
	return syscall.Exec(program, append([]string{"tilt"}, args...), session.Env()) //nolint:gosec // the user's choice
}

func tiltProgram(ctx context.Context) (string, error) {
	if name := os.Getenv("TILT"); name != "" {
		return exec.LookPath(name)
	}
	built, err := parts.Ensure(ctx, parts.Print(os.Stderr), "tilt")
	if err != nil {
		return "", err
	}
	return built.Path("tilt"), nil
}

func currentSession() (*dev.Session, error) {
	dir, err := dev.DefaultDir()
	if err != nil {
		return nil, err
	}
	return dev.Current(dir)
}
