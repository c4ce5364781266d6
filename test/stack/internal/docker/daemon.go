package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

const (
	// startTimeout is how long the daemon may take to answer, stopTimeout how
	// long to end.
	startTimeout = time.Minute
	stopTimeout  = time.Minute
	pollInterval = 200 * time.Millisecond

	forwardingFile = "/proc/sys/net/ipv4/ip_forward"
)

// ownDaemon is a daemon that was started here. It is no child that dies with
// this process: its containers would be left without it.
type ownDaemon struct {
	process *os.Process
	done    chan struct{}
	log     string
	before  hostNetwork
}

// hostNetwork is what the daemon changes of this machine's network.
type hostNetwork struct {
	// policy is the policy of the chain FORWARD.
	policy string
	// forwarding is the content of forwardingFile.
	forwarding string
}

// startDaemon starts dockerd with what this machine needs.
func startDaemon(ctx context.Context, options Options, traits machine.Traits) (*ownDaemon, error) {
	before, err := lookAtNetwork(ctx)
	if err != nil {
		return nil, err
	}
	var args []string
	if options.Confined {
		// Names are looked up in the container itself, where nobody answers: what
		// Docker would ask is outside of this machine.
		args = append(args, "--dns", "127.0.0.1")
	}
	if !traits.SysResource {
		if options.Wrapper == "" {
			return nil, errors.New("starting Docker: this machine lacks CAP_SYS_RESOURCE, and there is no runtime wrapper")
		}
		args = append(args, "--oom-score-adjust", "0", "--add-runtime", "capi-talos="+options.Wrapper, "--default-runtime", "capi-talos")
	}
	log, err := os.Create(options.Log)
	if err != nil {
		return nil, fmt.Errorf("making the log of Docker: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command("dockerd", args...) //nolint:gosec,noctx // It is ended by stop, not by a context.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting dockerd: %w", err)
	}
	own := &ownDaemon{process: cmd.Process, done: make(chan struct{}), log: options.Log, before: before}
	go func() {
		_ = cmd.Wait()
		close(own.done)
	}()
	if err := own.await(ctx); err != nil {
		return nil, errors.Join(err, own.stop(context.WithoutCancel(ctx)))
	}
	return own, nil
}

// await waits until the daemon answers.
func (o *ownDaemon) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := answers(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-o.done:
			said, _ := os.ReadFile(o.log)
			return fmt.Errorf("starting dockerd: it has ended\n%s", tail(said))
		case <-ctx.Done():
			said, _ := os.ReadFile(o.log)
			return fmt.Errorf("waiting for dockerd: %w\n%s", err, tail(said))
		case <-ticker.C:
		}
	}
}

// stop ends the daemon and takes back what it changed of the network.
func (o *ownDaemon) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if err := o.process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("ending dockerd: %w", err)
	}
	select {
	case <-o.done:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the end of dockerd: %w", ctx.Err())
	}
	return o.before.restore(ctx)
}

func lookAtNetwork(ctx context.Context) (hostNetwork, error) {
	forwarding, err := os.ReadFile(forwardingFile)
	if err != nil {
		return hostNetwork{}, fmt.Errorf("reading whether packets are forwarded: %w", err)
	}
	out, err := exec.CommandContext(ctx, "iptables", "-S", "FORWARD").Output()
	if err != nil {
		return hostNetwork{}, fmt.Errorf("reading the packet filter: %w", err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return hostNetwork{policy: strings.TrimPrefix(first, "-P FORWARD "), forwarding: strings.TrimSpace(string(forwarding))}, nil
}

// restoreNetwork takes Docker's rules, chains and bridge away, and nobody
// else's. $policy and $forwarding are from before.
const restoreNetwork = `
iptables-save | grep -v -e DOCKER -e docker0 | iptables-restore && iptables -P FORWARD "$policy"
echo "$forwarding" > ` + forwardingFile + `
ip link delete docker0 2>/dev/null || true
`

func (h hostNetwork) env() []string {
	return append(os.Environ(), "policy="+h.policy, "forwarding="+h.forwarding)
}

func (h hostNetwork) restore(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "sh", "-ec", restoreNetwork)
	cmd.Env = h.env()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("giving the network of this machine back: %w: %s", err, out)
	}
	return nil
}

// tail is the end of what a program said.
func tail(out []byte) []byte {
	const enough = 1500
	return out[max(0, len(out)-enough):]
}
