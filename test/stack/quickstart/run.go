package quickstart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/utils/clock"
)

// stopDelay is how long the shell may take to end when it is told to.
const stopDelay = 10 * time.Second

// Options say where commands are typed.
type Options struct {
	// Dir is the folder that the shell is in, Env its whole environment.
	Dir string
	Env []string
	// Output gets what is typed, and what it prints.
	Output io.Writer
	// Clock is the real one when nil.
	Clock clock.PassiveClock
}

// Took tells how long a block took.
type Took struct {
	Block Block
	Took  time.Duration
}

// marker begins the lines by which the shell tells where it is. The rest is the
// number of a block.
const marker = "\x1fblock "

// Run types blocks into one shell, which ends at the first command that fails; the
// error names its block then. What blocks have left in the background ends with it.
func Run(ctx context.Context, blocks []Block, options Options) ([]Took, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	watch := &watch{blocks: blocks, options: options}
	cmd := exec.CommandContext(ctx, "sh", "-e")
	cmd.Dir, cmd.Env = options.Dir, options.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script(blocks)), watch, watch
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = stopDelay
	err := cmd.Run()
	if cmd.Process != nil {
		// The group is gone where nothing was left.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	watch.flush()
	if err != nil {
		if at := watch.current; at != nil {
			return watch.took, fmt.Errorf("typing the commands at line %d (%s): %w", at.Line, at.Heading, err)
		}
		return nil, fmt.Errorf("starting the shell: %w", err)
	}
	if len(watch.took) != len(blocks) {
		return watch.took, errors.New("typing the commands: the shell has ended before the last of them")
	}
	return watch.took, nil
}

// script is all blocks for one shell. Each is a compound command, which the shell
// reads as a whole before it begins: else programs could read the rest as input.
func script(blocks []Block) string {
	var all strings.Builder
	for number, block := range blocks {
		fmt.Fprintf(&all, "printf '%s%%d\\n' %d\n{\n%s\n} </dev/null\n", "\\037block ", number, block.Commands)
	}
	fmt.Fprintf(&all, "printf '%s%%d\\n' %d\n", "\\037block ", len(blocks))
	return all.String()
}

// watch copies what the shell prints, and takes the time at its markers.
type watch struct {
	blocks  []Block
	options Options
	line    bytes.Buffer
	current *Block
	since   time.Time
	took    []Took
}

// Write implements io.Writer. exec calls it from one goroutine.
func (w *watch) Write(text []byte) (int, error) {
	for line := range bytes.Lines(text) {
		w.line.Write(line)
		if bytes.HasSuffix(line, []byte("\n")) {
			w.flush()
		}
	}
	return len(text), nil
}

// flush handles what there is of a line.
func (w *watch) flush() {
	defer w.line.Reset()
	// What a command prints last need not end with a line.
	before, number, found := strings.Cut(w.line.String(), marker)
	index, err := strconv.Atoi(strings.TrimSpace(number))
	if !found || err != nil {
		fmt.Fprint(w.options.Output, w.line.String())
		return
	}
	if before != "" {
		fmt.Fprintln(w.options.Output, before)
	}
	if w.current != nil {
		w.took = append(w.took, Took{Block: *w.current, Took: w.options.Clock.Since(w.since)})
	}
	w.current, w.since = nil, w.options.Clock.Now()
	if index < len(w.blocks) {
		w.current = &w.blocks[index]
		fmt.Fprintf(w.options.Output, "==> %s\n%s\n", w.current.Heading, strings.TrimSpace(w.current.Commands))
	}
}

// Table prints how long the blocks took.
func Table(output io.Writer, took []Took) {
	fmt.Fprintln(output, "| step | seconds |\n|---|---|")
	for _, one := range took {
		fmt.Fprintf(output, "| %s (line %d) | %.1f |\n", one.Block.Heading, one.Block.Line, one.Took.Seconds())
	}
}
