package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// cleanUp removes what belongs to run $1 and, if $3 names it, ends the daemon
// and gives the network of the machine back, unless others have containers there.
// Containers of kind carry a label of kind's with the name $2.
const cleanUp = `
for filter in "label=` + labelRun + `=$1" "label=io.x-k8s.kind.cluster=$2"; do
	containers=$(docker ps --all --quiet --filter "$filter") && [ -n "$containers" ] && docker rm --force --volumes $containers
done
networks=$(docker network ls --quiet --filter "label=` + labelRun + `=$1") && [ -n "$networks" ] && docker network rm $networks
for rule in "iptables DOCKER-USER" "ip6tables FORWARD"; do
	set -- "$1" "$2" "$3" $rule
	$4 -S $5 | grep -- "--comment ` + barrierComment + `$1 " | sed 's/^-A/-D/' | while read -r line; do $4 $line; done
done
if [ -n "$3" ] && [ -z "$(docker ps --quiet)" ]; then
	kill "$3"
	while kill -0 "$3" 2>/dev/null; do sleep 0.2; done
` + restoreNetwork + `
fi
`

// Janitor cleans up after this process, should that die without doing so.
type Janitor struct {
	run, kind string
	daemon    string
	path      string
	cmd       *exec.Cmd
	alive     io.WriteCloser
}

// NewJanitor removes what an earlier run of that name left behind, and waits
// for the end of this process in order to do the same. kind is the name of the
// run's cluster of kind; it may have none. also is what the shell does then
// beyond that.
func (d *Daemon) NewJanitor(ctx context.Context, run, kind, also string) (*Janitor, error) {
	j := &Janitor{run: run, kind: kind, path: d.Path}
	if err := j.clean(ctx); err != nil {
		return nil, err
	}
	env := os.Environ()
	if d.own != nil {
		j.daemon, env = strconv.Itoa(d.own.process.Pid), d.own.before.env()
	}
	// A line says that all is clean; the end of the pipe without one, that this
	// process is gone.
	j.cmd = exec.Command("sh", j.args("read -r line && exit 0\n"+cleanUp+also, j.daemon)...) //nolint:gosec,noctx // It outlives this process.
	j.cmd.Env = env
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var err error
	if j.alive, err = j.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("starting the janitor: %w", err)
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the janitor: %w", err)
	}
	return j, nil
}

func (j *Janitor) args(script, daemon string) []string {
	// No kind is called "-".
	kind := j.kind
	if kind == "" {
		kind = "-"
	}
	return []string{"-c", script, "janitor", j.run, kind, daemon}
}

// Clean removes what belongs to the run and sends the janitor away. It may be
// called twice.
func (j *Janitor) Clean(ctx context.Context) error {
	err := j.clean(ctx)
	if j.alive == nil {
		return err
	}
	_, writeErr := io.WriteString(j.alive, "clean\n")
	closeErr := j.alive.Close()
	j.alive = nil
	return errors.Join(err, writeErr, closeErr, j.cmd.Wait())
}

func (j *Janitor) clean(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "sh", j.args(cleanUp+"exit 0\n", "")...) //nolint:gosec // a fixed script
	var messages strings.Builder
	cmd.Stderr = &messages
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("cleaning up after run %s: %w: %s", j.run, err, messages.String())
	}
	if j.left(ctx) {
		return fmt.Errorf("cleaning up after run %s: something is left: %s", j.run, messages.String())
	}
	return nil
}

// left reports whether there still are containers of the run.
func (j *Janitor) left(ctx context.Context) bool {
	out, err := exec.CommandContext(ctx, j.path, "ps", "--all", "--quiet", "--filter", "label="+RunLabel(j.run)).Output() //nolint:gosec // the user's tool
	return err != nil || len(out) > 0
}
