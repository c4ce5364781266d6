package main

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
	"regexp"
	"strings"
	"time"
)

// mutant is a change of the product in one place.
type mutant struct {
	// file is the changed file, below the root of the repository, and source what is
	// in it.
	file   string
	source []byte
	// start and end are the offsets of what is replaced, and text is what takes its
	// place.
	start, end int
	text       string
	// meaning says what the change does to users; empty for a mutant that a seed has
	// chosen.
	meaning string
}

func (m mutant) place() string {
	return fmt.Sprintf("%s:%d", m.file, 1+bytes.Count(m.source[:m.start], []byte("\n")))
}

// mutated is the whole file with the change.
func (m mutant) mutated() []byte {
	return append(append(bytes.Clone(m.source[:m.start]), m.text...), m.source[m.end:]...)
}

// lines are the changed lines before and after the change, each as one.
func (m mutant) lines() (before, after string) {
	from := bytes.LastIndexByte(m.source[:m.start], '\n') + 1
	rest := len(m.source) - m.end
	if i := bytes.IndexByte(m.source[m.end:], '\n'); i >= 0 {
		rest -= i
	}
	cut := func(source []byte) string {
		line := strings.Join(strings.Fields(string(source[from:len(source)-rest])), " ")
		return line[:min(len(line), 200)]
	}

	return cut(m.source), cut(m.mutated())
}

// errNoMutant says that a mutant does not compile.
var errNoMutant = errors.New("it does not compile")

// game plays mutants against the tests.
type game struct {
	root, work string
	timeout    time.Duration
	guards     map[string][]string
	// sound has the packages whose tests were run without a mutant, and how that ended.
	sound map[string]error
	out   io.Writer
}

// try reports what has killed a mutant; empty when it survives.
func (g *game) try(ctx context.Context, m mutant) (string, error) {
	changed, overlay := filepath.Join(g.work, "changed.go"), filepath.Join(g.work, "overlay.json")
	if err := os.WriteFile(changed, m.mutated(), 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(g.root, m.file): changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, list, 0o600); err != nil {
		return "", err
	}
	own := filepath.Dir(m.file)
	for _, pkg := range append([]string{own}, g.guards[own]...) {
		if err := g.check(ctx, pkg); err != nil {
			return "", err
		}
		output, err := g.test(ctx, pkg, "-overlay="+overlay)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err == nil:
			continue
		case bytes.Contains(output, []byte("[build failed]")), bytes.Contains(output, []byte("[setup failed]")):
			return "", fmt.Errorf("%w:\n%s", errNoMutant, output)
		}

		return killer(output) + " in " + pkg, nil
	}

	return "", nil
}

// check makes sure that the tests of a package pass without a mutant.
func (g *game) check(ctx context.Context, pkg string) error {
	err, known := g.sound[pkg]
	if !known {
		var output []byte
		if output, err = g.test(ctx, pkg); err != nil {
			err = fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", pkg, err, output)
		}
		g.sound[pkg] = err
	}

	return err
}

func (g *game) test(ctx context.Context, pkg string, more ...string) ([]byte, error) {
	args := append([]string{"test", "-p=2", "-vet=off", "-ldflags=-s -w", "-failfast", "-timeout=" + g.timeout.String()}, more...)
	command := exec.CommandContext(ctx, "go", append(args, ".")...) //nolint:gosec // The packages are those of the lists.
	command.Dir = filepath.Join(g.root, pkg)

	return command.CombinedOutput()
}

var (
	slow   = regexp.MustCompile(`panic: test timed out|\*\*\* Test killed`)
	failed = regexp.MustCompile(`--- FAIL: (\S+)|(?m:^((?:panic|fatal error): .*))`)
)

// killer is the test that has failed, or what has become of it.
func killer(output []byte) string {
	if slow.Match(output) {
		return "timeout"
	}
	if found := failed.FindSubmatch(output); found != nil {
		return string(found[1]) + string(found[2])
	}

	return "a failure: " + strings.Join(strings.Fields(string(output[max(0, len(output)-200):])), " ")
}
