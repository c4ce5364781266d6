package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	bed "github.com/capi-talos/capi-talos/test/integration/world"
)

// breath is how long the managers live at least: many cells ask for their death,
// and all of them need managers that get something done.
const breath = 20 * time.Second

// killer kills our managers and starts them again, for all cells that ask for it at
// about the same time.
type killer struct {
	asks   chan chan error
	rounds int
}

func newKiller() *killer { return &killer{asks: make(chan chan error)} }

// kill returns once our managers have been killed, after the call, and are back.
func (k *killer) kill(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case k.asks <- answer:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-answer:
		return err
	}
}

// serve kills for who asks, until ctx ends.
func (k *killer) serve(ctx context.Context) {
	next := time.Now()
	for {
		var asked []chan error
		select {
		case <-ctx.Done():
			return
		case first := <-k.asks:
			asked = append(asked, first)
		}
		due := time.NewTimer(time.Until(next))
		for waiting := true; waiting; {
			select {
			case further := <-k.asks:
				asked = append(asked, further)
			case <-due.C:
				waiting = false
			}
		}
		err := restart(ctx)
		k.rounds++
		next = time.Now().Add(breath)
		for _, answer := range asked {
			answer <- err
		}
	}
}

// restart kills our managers with SIGKILL, all before the first is started again.
func restart(ctx context.Context) error {
	var failures []error
	for _, name := range bed.OurManagers() {
		failures = append(failures, world.Stack.Managers.Get(name).Kill())
	}
	results := make([]error, len(bed.OurManagers()))
	var group sync.WaitGroup
	for i, name := range bed.OurManagers() {
		group.Go(func() { results[i] = world.Stack.Managers.Get(name).Start(ctx) })
	}
	group.Wait()
	if err := errors.Join(append(failures, results...)...); err != nil {
		return fmt.Errorf("killing the managers: %w", err)
	}
	return nil
}
