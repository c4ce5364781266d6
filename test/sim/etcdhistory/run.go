package etcdhistory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
)

const (
	// patience is how long real etcd may take to come where the model is at once.
	patience = 45 * time.Second
	// interval is how often it is asked meanwhile.
	interval = 100 * time.Millisecond
)

// Divergence tells where etcd and its model differ.
type Divergence struct {
	// History ends with the step that shows it.
	History History
	// What differs.
	What string
	// Logs are the ends of what the etcd processes said.
	Logs string
}

// Error implements error.
func (d *Divergence) Error() string {
	return fmt.Sprintf("etcd and its model differ: %s\n%s%s", d.What, d.History, d.Logs)
}

// Counts are what histories consisted of.
type Counts struct {
	// Steps were done; of those that change the membership Accepted were taken,
	// and Refused turned down in these words.
	Steps, Accepted int
	Refused         map[string]int
	// Quorate and Inquorate are how often the cluster was found to take writes,
	// and not to.
	Quorate, Inquorate int
	// Ended is how many removed members were started, were told, and ended.
	Ended int
}

// Add adds other counts.
func (c *Counts) Add(other Counts) {
	c.Steps += other.Steps
	c.Accepted += other.Accepted
	c.Quorate += other.Quorate
	c.Inquorate += other.Inquorate
	c.Ended += other.Ended
	if c.Refused == nil {
		c.Refused = map[string]int{}
	}
	for text, times := range other.Refused {
		c.Refused[text] += times
	}
}

// Options are what a history runs with.
type Options struct {
	// Binary is the program etcd.
	Binary string
	// Dir is an empty folder for its data. What is left there afterwards are logs.
	Dir string
	// Prefix are the first three bytes of loopback addresses that nobody uses.
	Prefix string
}

// run is a history that goes on.
type run struct {
	history History
	judge   *judge
	real    *real
	counts  Counts
	// checked reports whether the lack of a quorum was looked at since processes were
	// last started or ended.
	checked bool
	// announced are the nodes whose addition has failed without a clear answer: the
	// leader has it in its log, and there may be a quorum for it later.
	announced []int
	// peers are the nodes that were members when the etcd of a node last was in sync: all
	// that it knows of.
	peers [maxNodes][]int
}

// Run runs a history on the model and on real etcd. It returns a *Divergence
// where they differ.
func Run(ctx context.Context, history History, options Options) (counts Counts, err error) {
	r := &run{history: history, real: newReal(options.Binary, options.Dir, options.Prefix), counts: Counts{Refused: map[string]int{}}}
	if r.judge, err = newJudge(history.Voters, r.real.peerURL); err != nil {
		return r.counts, err
	}
	defer func() { err = errors.Join(err, r.real.close()) }()
	if err := r.real.boot(history.Voters); err != nil {
		return r.counts, err
	}
	what := r.agree(ctx)
	if what == nil && slices.ContainsFunc(history.Steps, func(step Step) bool { return step.Kind == Promote }) {
		what = r.ballast(ctx)
	}
	for i, step := range history.Steps {
		if what == nil && r.judge.possible(step) {
			what = r.do(ctx, step)
			if what == nil {
				what = r.agree(ctx)
			}
			r.counts.Steps++
		}
		if what != nil {
			history.Steps = history.Steps[:i+1]
			break
		}
	}
	switch {
	case ctx.Err() != nil:
		return r.counts, ctx.Err()
	case what != nil:
		return r.counts, &Divergence{History: history, What: what.Error(), Logs: r.real.logs()}
	}
	return r.counts, nil
}

// ballast writes so much that what comes later is little: etcd takes a learner
// for one that is in sync as long as it has nine tenths of the leader's log. In
// the model one that has been in sync remains so.
func (r *run) ballast(ctx context.Context) error {
	const writes, at = 320, 16
	failures := make(chan error, at)
	for range at {
		go func() {
			var err error
			for range writes / at {
				err = errors.Join(err, eventually(ctx, func() error { _, err := r.write(ctx, 0); return err }))
			}
			failures <- err
		}()
	}
	var all []error
	for range at {
		all = append(all, <-failures)
	}
	return errors.Join(all...)
}

// do does a step on both sides, and compares the answers.
func (r *run) do(ctx context.Context, step Step) error {
	switch step.Kind {
	case Stop, Silence, Wipe, Start:
		r.checked = false
		return r.doProcess(ctx, step)
	case Join, Announce, Promote, Remove, Leave, Lead:
	}
	asked := r.judge.ask(step)
	led := r.judge.cluster.Leader() != 0
	want := r.judge.apply(step, asked)
	r.checked = r.checked && want != nil
	if err := r.compare(ctx, step, want, led, asked); err != nil {
		return fmt.Errorf("step %q: %w", step, err)
	}
	if want != nil {
		r.counts.Refused[want.Error()]++
		return nil
	}
	r.counts.Accepted++
	if step.Kind == Leave {
		return r.real.wipe(step.Node)
	}
	return nil
}

// doProcess does what etcd is not asked about.
func (r *run) doProcess(ctx context.Context, step Step) error {
	n := r.real.nodes[step.Node]
	refusal := r.judge.apply(step, -1)
	switch step.Kind {
	case Stop:
		return r.real.kill(step.Node)
	case Silence:
		return r.real.freeze(step.Node)
	case Wipe:
		return r.real.wipe(step.Node)
	case Start, Join, Announce, Promote, Remove, Leave, Lead:
	}
	start := func() error { return r.real.run(step.Node) }
	if n.frozen {
		start = func() error { return r.real.thaw(step.Node) }
	}
	if err := start(); err != nil || refusal == nil {
		return err
	}
	// It was removed, and ends as soon as any member that it knows tells it so.
	r.counts.Refused[refusal.Error()]++
	if slices.ContainsFunc(r.judge.answering(), func(number int) bool { return slices.Contains(r.peers[step.Node], number) }) {
		if err := r.ends(ctx, step.Node); err != nil {
			return err
		}
		r.counts.Ended++
	}
	return r.real.kill(step.Node)
}

// ends waits until the etcd of a node ends by itself.
func (r *run) ends(ctx context.Context, number int) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-r.real.nodes[number].process.Exited():
		return nil
	case <-time.After(patience):
		return fmt.Errorf("the etcd of n%d was removed, but goes on", number)
	}
}

// compare does a step on the real cluster until it answers as the model does.
func (r *run) compare(ctx context.Context, step Step, want error, led bool, via int) error {
	if errors.Is(want, etcdmodel.ErrUnhealthy) {
		// Etcd refuses for this reason also when its peers have just come.
		if err := r.settle(ctx); err != nil {
			return err
		}
	}
	unclear := false
	return eventually(ctx, func() error {
		got := r.real.change(ctx, step, via)
		r.noteAnnounced(step, want, got)
		switch {
		case want == nil && got == nil:
			return nil
		case want == nil && unclear && isDone(step.Kind, got):
			return nil
		case want == nil:
			// Who was asked may be gone by its own doing.
			if others := r.judge.up(false); isUnclear(got) && len(others) > 0 {
				unclear, via = true, others[0]
			}
			return fmt.Errorf("the model accepts, etcd refuses at n%d: %s", via, words(got))
		case got == nil:
			return final{fmt.Errorf("the model refuses (%w), etcd accepts at n%d", want, via)}
		case !led, words(got) == want.Error():
			return nil
		case step.Kind == Lead:
			// Etcd has other words.
			return nil
		}
		return fmt.Errorf("the model refuses with %w, etcd at n%d with %s", want, via, words(got))
	})
}

// noteAnnounced notes a node whose addition may be carried out though it has failed.
func (r *run) noteAnnounced(step Step, want, got error) {
	if step.Kind == Join && want != nil && got != nil && isUnclear(got) && !slices.Contains(r.announced, step.Node) {
		r.announced = append(r.announced, step.Node)
	}
}

// final is an error that no waiting mends.
type final struct{ error }

// eventually waits until a condition is met.
func eventually(ctx context.Context, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		err := condition()
		if stop := (final{}); err == nil || errors.As(err, &stop) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}
