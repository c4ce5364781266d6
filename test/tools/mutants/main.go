// The mutants program changes the product in one place at a time, and reports
// whether the tests notice. The places are chosen by a seed, or named in a file. No
// file of the tree is changed: go test gets the changed one as an overlay.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sampled are the packages in which places are chosen by a seed: what decides about
// etcd, keys and disks.
var sampled = []string{
	"controlplane/internal/plan", "bootstrap/pkg/etcd", "bootstrap/pkg/secrets", "bootstrap/pkg/talosclient",
	"infrastructure/internal/taloshost/wipe", "infrastructure/internal/claim", "infrastructure/internal/taloshost",
}

// guards are the packages whose tests are to notice what those of a package itself do
// not, the cheapest first.
var guards = map[string][]string{
	"controlplane/internal/plan":             {"controlplane/internal/controllers"},
	"bootstrap/pkg/etcd":                     {"controlplane/internal/plan", "controlplane/internal/controllers"},
	"bootstrap/pkg/secrets":                  {"bootstrap/internal/controllers"},
	"bootstrap/pkg/talosclient":              {"test/sim/talossim"},
	"infrastructure/internal/taloshost/wipe": {"infrastructure/internal/controllers"},
	"infrastructure/internal/claim":          {"infrastructure/internal/backends/metal"},
	"infrastructure/internal/taloshost":      {"infrastructure/internal/backends/metal", "infrastructure/internal/controllers"},
	"infrastructure/internal/quorum":         {"infrastructure/internal/backends/metal", "infrastructure/internal/controllers"},
}

// maxSurvivors is the share of mutants, in percent, that may survive.
const maxSurvivors = 15

func main() {
	root := flag.String("root", "../..", "The root of the repository.")
	seed := flag.Uint64("seed", 1, "The seed that chooses the places.")
	count := flag.Int("count", 60, "The number of mutants.")
	named := flag.String("named", "", "A file with named mutants, to be played instead.")
	only := flag.String("only", "", "Plays all those instead whose place (file:line) has this in it.")
	timeout := flag.Duration("timeout", 15*time.Minute, "The time for the tests of one package. A mutant that needs more is killed.")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, *root, *seed, *count, *named, *only, *timeout)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "mutants: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, root string, seed uint64, count int, named, only string, timeout time.Duration) (err error) {
	if root, err = filepath.Abs(root); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // What stays is in the folder for temporary files.
	game := &game{root: root, work: work, timeout: timeout, guards: guards, sound: map[string]error{}, out: os.Stdout}
	if named != "" {
		mutants, err := readNamed(root, named)
		if err != nil {
			return err
		}
		return game.play(ctx, at(mutants, only), len(mutants))
	}
	mutants, err := choose(root, sampled, seed)
	if err != nil {
		return err
	}
	if only != "" {
		count = len(mutants)
	}

	return game.play(ctx, at(mutants, only), count)
}

// at are the mutants with a part in their place.
func at(mutants []mutant, part string) []mutant {
	return slices.DeleteFunc(mutants, func(m mutant) bool { return !strings.Contains(m.place(), part) })
}

// play plays the first mutants that compile, and fails when too many survive.
func (g *game) play(ctx context.Context, mutants []mutant, count int) error {
	var survivors []string
	played := 0
	fmt.Fprintln(g.out, "| # | place | old | new | killed by |")
	for _, m := range mutants {
		if played == count {
			break
		}
		killer, err := g.try(ctx, m)
		switch {
		case errors.Is(err, errNoMutant) && m.meaning == "":
			continue // The next one takes its place.
		case err != nil:
			return fmt.Errorf("playing the mutant at %s: %w", m.place(), err)
		}
		played++
		before, after := m.lines()
		row := fmt.Sprintf("| %d | %s | %s | %s | %s |", played, m.place(), before, after, cmp.Or(killer, "SURVIVED"))
		fmt.Fprintln(g.out, row)
		if killer == "" {
			survivors = append(survivors, strings.TrimSpace(row+" "+m.meaning))
		}
	}
	fmt.Fprintf(g.out, "\n%d of %d mutants survive.\n%s\n", len(survivors), played, strings.Join(survivors, "\n"))
	if len(survivors)*100 > played*maxSurvivors {
		return fmt.Errorf("more than %d %% survive", maxSurvivors)
	}

	return nil
}
