package faults

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

const (
	// startTimeout is how long a control plane may take to come up, momentTimeout
	// how long what a user does may take to begin, and healTimeout how long the
	// control plane may take once nothing is wrong any more: a learner is told to be
	// one for ever after 15 minutes.
	startTimeout, momentTimeout, healTimeout = 10 * time.Minute, 4 * time.Minute, 20 * time.Minute
	// lasting is how long a fault goes on after the managers were killed.
	lasting = 10 * time.Second
	// often is how often machines are looked at, and seldom how often all that is
	// told of a control plane.
	often, seldom = 20 * time.Millisecond, time.Second
)

// run is a cell that is being run.
type run struct {
	cell
	ctx   context.Context //nolint:containedctx // That of the test.
	fleet *simfleet.Fleet
	// before are the machines with data of etcd before the moment, and victim is
	// the one that breaks.
	before map[*talossim.Machine]bool
	victim *talossim.Machine
	// middle reports whether machines were coming and going when the managers died.
	middle bool
	// told is true when it could not heal, and a condition said why.
	told bool
	// took is how long it took from there until all was well again.
	took time.Duration
}

// play runs the cell, and returns what is wrong.
func (r *run) play() error {
	if err := r.prepare(); err != nil {
		return fmt.Errorf("before the moment: %w", err)
	}
	subject, err := r.begin()
	if err != nil {
		return fmt.Errorf("never reached: %w", err)
	}
	start := time.Now()
	if r.victim = r.choose(subject); r.victim == nil {
		return errors.New("never reached: there is no machine to break")
	}
	if err := r.strike(); err != nil {
		return fmt.Errorf("breaking %s: %w", r.victim.Spec().Name, err)
	}
	if err := r.await("the fault to have its effect", momentTimeout, often, r.broken); err != nil {
		return err
	}
	if r.replaces() {
		if err := r.apply(r.healthCheck()); err != nil {
			return err
		}
	}
	if err := killing.kill(r.ctx, func() { r.middle = r.settled() != nil }); err != nil {
		return err
	}
	if err := r.watch(); err != nil {
		return err
	}
	r.heal()
	err = r.await("all to be well again", healTimeout, seldom, r.outcome)
	r.took = time.Since(start)
	return errors.Join(err, r.judged(), r.bootstrapped())
}

// prepare makes the control plane as it is before the moment.
func (r *run) prepare() error {
	if err := r.addHosts(); err != nil {
		return err
	}
	if r.moment.from(r.replicas) == 0 {
		return nil
	}
	if err := r.create(); err != nil {
		return err
	}
	if err := r.await("the control plane to come up", startTimeout, seldom, func() error { return r.healthy(r.moment.from(r.replicas)) }); err != nil {
		return err
	}
	if r.moment.remediated {
		return r.apply(r.healthCheck())
	}
	return nil
}

// begin does what the user does, and returns the machine that comes or goes.
func (r *run) begin() (*talossim.Machine, error) {
	r.before = map[*talossim.Machine]bool{}
	for _, m := range r.machines() {
		r.before[m] = m.HasEtcdData()
	}
	r.fleet.Sim.Expect(r.least())
	// Admission is away while the managers are being started.
	if err := r.await("the user to be heard", momentTimeout, seldom, func() error { return r.moment.begin(r) }); err != nil {
		return nil, err
	}
	var subject *talossim.Machine
	err := r.await("a machine to come or go", momentTimeout, often, func() (err error) {
		subject, err = r.moment.subject(r)
		return err
	})
	return subject, err
}

// least is the number of voters that the managers must leave: those that are asked for
// less one, and less the one of a machine that a MachineHealthCheck may find.
func (c cell) least() int {
	least := min(c.moment.from(c.replicas), c.moment.to(c.replicas)) - 1
	if c.moment.remediated || c.replaces() {
		least--
	}
	return max(least, 0)
}

// watch lets the fault last, and the judge look.
func (r *run) watch() error {
	ctx, cancel := context.WithTimeout(r.ctx, lasting)
	defer cancel()
	<-ctx.Done()
	return r.judged()
}

// judged is what the judge has to say.
func (r *run) judged() error {
	return errors.Join(r.fleet.Sim.Offences()...)
}

// bootstrapped is nil when etcd was bootstrapped as often as it may have been: once, and
// anew only where the first member was lost with its disk before there was another one.
func (r *run) bootstrapped() error {
	most := 1
	if r.moment.from(r.replicas) == 0 && r.replaces() {
		most++
	}
	if count := r.fleet.Bootstraps(); count < 1 || count > most {
		return fmt.Errorf("etcd was bootstrapped %d times", count)
	}
	return nil
}

// outcome is nil when all is as it should be at the end.
func (r *run) outcome() error {
	err := r.healthy(r.moment.to(r.replicas))
	if cause, is := lost()[r.name()]; is && err != nil {
		err = r.tells(cause)
		r.told = err == nil
	}
	return err
}

// await asks until there is no error.
func (r *run) await(what string, timeout, interval time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeout(r.ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", timeout, what, err)
		case <-ticker.C:
		}
	}
}

func (r *run) machines() []*talossim.Machine { return r.fleet.Sim.Machines() }
