package faults

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// breath is how long the managers live at least: many cells ask for their death,
// and all of them need managers that get something done. What a silent node is
// waited for begins anew with each, so it is three times little.
const breath = 3 * little * time.Second

// killer kills our managers and starts them again, for all cells that ask for it at
// about the same time.
type killer struct {
	asks   chan request
	rounds int
}

// request is that of a cell. look is called just before the managers die.
type request struct {
	look   func()
	answer chan error
}

func newKiller() *killer { return &killer{asks: make(chan request)} }

// kill returns once our managers have been killed, after the call, and are back.
func (k *killer) kill(ctx context.Context, look func()) error {
	asked := request{look: look, answer: make(chan error, 1)}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case k.asks <- asked:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-asked.answer:
		return err
	}
}

// serve kills for who asks, until ctx ends.
func (k *killer) serve(ctx context.Context) {
	next := time.Now()
	for {
		var asked []request
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
		var looks sync.WaitGroup
		for _, one := range asked {
			looks.Go(one.look)
		}
		looks.Wait()
		err := restart(ctx)
		k.rounds++
		next = time.Now().Add(breath)
		for _, one := range asked {
			one.answer <- err
		}
	}
}

// restart kills our managers with SIGKILL, all before the first is started again.
func restart(ctx context.Context) error {
	var failures []error
	for _, name := range world.Stack.Managers.Ours() {
		failures = append(failures, world.Stack.Managers.Get(name).Kill())
	}
	results := make([]error, len(world.Stack.Managers.Ours()))
	var group sync.WaitGroup
	for i, name := range world.Stack.Managers.Ours() {
		group.Go(func() { results[i] = world.Stack.Managers.Get(name).Start(ctx) })
	}
	group.Wait()
	if err := errors.Join(append(failures, results...)...); err != nil {
		return fmt.Errorf("killing the managers: %w", err)
	}
	return nil
}
