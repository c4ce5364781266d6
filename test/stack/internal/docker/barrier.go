package docker

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
)

// Barrier keeps what containers send inside this machine: packets that would
// leave it are dropped and counted. It is for machines where nothing can be
// pulled, so whatever tries to leave is a mistake.
type Barrier struct {
	comment string
	rules   []rule
}

type rule struct {
	tool, chain string
	match       []string
}

// barrierComment marks the rules of a run in the packet filter.
const barrierComment = "barrier-of-"

// Confine puts the barrier of a run up. What an earlier run of that name left of
// it is replaced.
func Confine(ctx context.Context, run string) (*Barrier, error) {
	uplink, err := machine.Uplink()
	if err != nil {
		return &Barrier{}, nil //nolint:nilerr // Where there is no way out, none needs to be closed.
	}
	match := []string{"-o", uplink, "-m", "comment", "--comment", barrierComment + run, "-j", "DROP"}
	barrier := &Barrier{comment: barrierComment + run, rules: []rule{{"iptables", "DOCKER-USER", match}, {"ip6tables", "FORWARD", match}}}
	if err := barrier.Lift(ctx); err != nil {
		return nil, err
	}
	for _, rule := range barrier.rules {
		if err := rule.run(ctx, "-I"); err != nil {
			return nil, fmt.Errorf("keeping packets inside this machine: %w", err)
		}
	}
	return barrier, nil
}

// Dropped is the number of packets that tried to leave.
func (b *Barrier) Dropped(ctx context.Context) (int, error) {
	dropped := 0
	for _, rule := range b.rules {
		out, err := exec.CommandContext(ctx, rule.tool, "-L", rule.chain, "-n", "-v", "-x").Output() //nolint:gosec // fixed arguments
		if err != nil {
			return 0, fmt.Errorf("reading the counters of the packet filter: %w", err)
		}
		count, err := packets(string(out), b.comment)
		if err != nil {
			return 0, err
		}
		dropped += count
	}
	return dropped, nil
}

// packets finds the counter of our rule in a listing.
func packets(listing, comment string) (int, error) {
	for line := range strings.Lines(listing) {
		if fields := strings.Fields(line); len(fields) > 0 && slices.Contains(fields, comment) {
			return strconv.Atoi(fields[0])
		}
	}
	return 0, errors.New("looking for the barrier in the packet filter: it is gone")
}

// Lift takes the barrier down. It may be called twice.
func (b *Barrier) Lift(ctx context.Context) error {
	for _, rule := range b.rules {
		for rule.run(ctx, "-C") == nil {
			if err := rule.run(ctx, "-D"); err != nil {
				return fmt.Errorf("taking the barrier down: %w", err)
			}
		}
	}
	return nil
}

func (r rule) run(ctx context.Context, action string) error {
	out, err := exec.CommandContext(ctx, r.tool, append([]string{action, r.chain}, r.match...)...).CombinedOutput() //nolint:gosec // fixed arguments
	if err != nil {
		return fmt.Errorf("%s %s %s: %w: %s", r.tool, action, r.chain, err, out)
	}
	return nil
}
