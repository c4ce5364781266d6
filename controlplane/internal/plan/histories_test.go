package plan

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

var histories = flag.Uint64("histories", 400, "how many random histories TestHistories runs")

// outcome is how a history ended.
type outcome struct {
	offences []string
	// stuck says what was decided last when the control plane did not become as
	// wanted after all faults had ended.
	stuck string
	trace []string
}

// bad reports whether there was an offence, or the control plane is stuck.
func (o outcome) bad() bool { return len(o.offences) > 0 || o.stuck != "" }

// run plays a history, then ends all faults and lets the control plane settle.
func run(seed uint64, events []event, decide func(Facts) Decision) outcome {
	p := newPlay(rand.New(rand.NewPCG(seed, 1)), decide)
	for _, event := range events {
		p.note("-- %s %d", event.kind, event.pick)
		p.happen(event)
		p.world()
	}
	p.note("-- the faults end")
	p.apiDown, p.template = false, ""
	for _, machine := range p.machines {
		p.heal(machine)
		machine.unhealthy = false
	}
	for _, machine := range p.lost {
		machine.revive()
	}
	var last Decision
	for range 400 {
		last = p.act(false, nil)
		p.world()
		if last.Action == Stable && p.settled() {
			return outcome{offences: p.offences, trace: p.trace}
		}
		p.attend()
	}

	return outcome{offences: p.offences, stuck: fmt.Sprintf("%s %s: %s", last.Action, last.Machine, last.Message), trace: p.trace}
}

// shrink takes events out of a history while it stays bad in the same way.
func shrink(seed uint64, events []event, decide func(Facts) Decision, bad func(outcome) bool) []event {
	for size := len(events) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(events); {
			shorter := slices.Delete(slices.Clone(events), from, from+size)
			if bad(run(seed, shorter, decide)) {
				events = shorter
			} else {
				from += size
			}
		}
	}

	return events
}

// first is the first seed of a bad history, of so many; count when all are good.
func first(count uint64, decide func(Facts) Decision, bad func(outcome) bool) uint64 {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		found = count
	)
	next := make(chan uint64)
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for seed := range next {
				if bad(run(seed, generate(seed), decide)) {
					mu.Lock()
					found = min(found, seed)
					mu.Unlock()
				}
			}
		})
	}
	for seed := range count {
		mu.Lock()
		done := found < count
		mu.Unlock()
		if done {
			break
		}
		next <- seed
	}
	close(next)
	group.Wait()

	return found
}

// TestHistories: no act breaks the quorum or is a second change, etcd is bootstrapped
// once, and the control plane becomes as wanted once the faults end.
func TestHistories(t *testing.T) {
	seed := first(*histories, Decide, outcome.bad)
	if seed == *histories {
		return
	}
	bad := run(seed, shrink(seed, generate(seed), Decide, outcome.bad), Decide)
	t.Fatalf("seed %d: %v %s\n%s", seed, bad.offences, bad.stuck, strings.Join(slices.Compact(bad.trace), "\n"))
}
