package talosclient

import (
	"context"
	"errors"
	"io"
	"time"
)

// nextAfter is how long an address is waited for before the next one is tried beside
// it. A node that is well answers in less; one that does not answer at all costs this
// much, and not the seconds until the attempt is given up.
const nextAfter = time.Second

// errNoAddress says that a machine has no address (yet).
var errNoAddress = errors.New("the machine has no address")

// First tries addresses in order until try is content with one, and returns what it
// made there. The next address is tried once one has failed, or has not answered for a
// second; then they are tried at the same time (as RFC 8305 does), and what another try
// makes is closed. The context of try ends when it is not needed any more: what it
// makes must not depend on it. The errors of all addresses are joined.
func First[T io.Closer](ctx context.Context, addresses []string, try func(ctx context.Context, address string) (T, error)) (T, error) {
	type result struct {
		made T
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	next, running := 0, 0
	start := func() {
		address := addresses[next]
		next, running = next+1, running+1
		go func() {
			made, err := try(ctx, address)
			results <- result{made, err}
		}()
	}

	if len(addresses) == 0 {
		var none T
		return none, errNoAddress
	}
	var errs []error
	for start(); running > 0; {
		var patience <-chan time.Time
		if next < len(addresses) {
			patience = time.After(nextAfter)
		}
		select {
		case got := <-results:
			running--
			if got.err == nil {
				go discard(running, func() (io.Closer, error) { late := <-results; return late.made, late.err })
				return got.made, nil
			}
			if errs = append(errs, got.err); next < len(addresses) {
				start()
			}
		case <-patience:
			start()
		}
	}
	var none T
	return none, errors.Join(errs...)
}

// discard closes what tries make that nobody waits for.
func discard(running int, receive func() (io.Closer, error)) {
	for range running {
		if late, err := receive(); err == nil {
			_ = late.Close() // It was never used: there is nothing to lose.
		}
	}
}
