// Package jobs carries out what takes long beside the reconciles that have begun it, so
// that a worker is free for other clusters meanwhile. What is at work is known to this
// process alone: after a restart it is found where the work leaves its traces.
package jobs

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

// buffered is how many ends of jobs may be told before somebody listens.
const buffered = 1024

// defaultTurn is more than a reconcile takes that has to wait for a worker.
const defaultTurn = 10 * time.Second

// Limits bound how many jobs run at a time. Total and PerCluster are required.
type Limits struct {
	// Total is how many may run, and PerCluster how many of one cluster: one that hangs
	// must not keep the others waiting. A namespace gets at most half
	// of those that others leave.
	Total, PerCluster int
	// Turn is for how long an object that waits has the turn before the next one is told, too:
	// it may wait for something else by now, or be done. 0 means 10 seconds.
	Turn time.Duration
}

// Work is what a job does. It tells progress what it is about to do.
type Work[Step ~string, Result any] func(ctx context.Context, progress func(Step)) Result

// Key is an object that has a job, and its cluster, in one namespace.
type Key struct {
	Namespace, Name, Cluster string
}

// Jobs are the jobs of a process: what each is doing is a Step, and how it has ended a
// Result.
type Jobs[Step ~string, Result any] struct {
	// ctx ends with the manager.
	ctx    context.Context //nolint:containedctx // Jobs outlive the reconciles that begin them.
	limits Limits
	ended  chan event.GenericEvent

	mu   sync.Mutex
	jobs map[types.NamespacedName]*job[Step, Result]
	// running are those that run, and waiting those that were refused, in this order. turns
	// are those that were told to try again, and have not begun.
	running []Key
	waiting []Key
	turns   []Key
}

type job[Step ~string, Result any] struct {
	step   Step
	result *Result
	cancel context.CancelFunc
}

// New returns no jobs. Those that are started end with the context.
func New[Step ~string, Result any](ctx context.Context, limits Limits) *Jobs[Step, Result] {
	return &Jobs[Step, Result]{ctx: ctx, limits: limits, ended: make(chan event.GenericEvent, buffered), jobs: map[types.NamespacedName]*job[Step, Result]{}}
}

// Events tell of objects whose job has begun something, or has ended, and of those that
// may try to start one again.
func (j *Jobs[Step, Result]) Events() <-chan event.GenericEvent { return j.ended }

// Start starts a job for an object that has none, and reports whether it does: not while
// too many are at work. Then an event tells when to try again.
func (j *Jobs[Step, Result]) Start(key Key, work Work[Step, Result]) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.admits(key) {
		if !slices.Contains(j.waiting, key) {
			j.waiting = append(j.waiting, key)
		}
		return false
	}
	j.waiting, j.turns = without(j.waiting, key), without(j.turns, key)
	j.running = append(j.running, key)
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
	ctx, cancel := context.WithCancel(j.ctx) //nolint:gosec // G118: it is called when the job has ended.
	j.jobs[name] = &job[Step, Result]{cancel: cancel}
	go j.run(ctx, key, name, work)

	return true
}

// admits reports whether a job may begin now.
func (j *Jobs[Step, Result]) admits(key Key) bool {
	ofCluster, ofNamespace := 0, 0
	for _, other := range j.running {
		if other.Namespace != key.Namespace {
			continue
		}
		ofNamespace++
		if other.Cluster == key.Cluster {
			ofCluster++
		}
	}
	share := reconciliation.Share(j.limits.Total, len(j.running)-ofNamespace)

	return ofCluster < j.limits.PerCluster && ofNamespace < share && len(j.running) < j.limits.Total
}

// Count returns how many jobs run, and how many objects wait for one.
func (j *Jobs[Step, Result]) Count() (running, waiting int) {
	j.mu.Lock()
	defer j.mu.Unlock()

	return len(j.running), len(j.waiting)
}

func without(keys []Key, key Key) []Key {
	return slices.DeleteFunc(keys, func(other Key) bool { return other == key })
}

func (j *Jobs[Step, Result]) run(ctx context.Context, key Key, name types.NamespacedName, work Work[Step, Result]) {
	result := work(ctx, func(step Step) {
		j.mu.Lock()
		j.jobs[name].step = step
		j.mu.Unlock()
		j.tell(name)
	})
	j.mu.Lock()
	j.jobs[name].result = &result
	j.jobs[name].cancel()
	j.running = without(j.running, key)
	j.mu.Unlock()
	j.tell(name)
	j.wake()
}

// wake gives the turn to the first of those that wait and could begin, and to the next one
// where that does not begin in time.
func (j *Jobs[Step, Result]) wake() {
	j.mu.Lock()
	i := slices.IndexFunc(j.waiting, j.admits)
	if i < 0 {
		j.mu.Unlock()
		return
	}
	key := j.waiting[i]
	j.waiting = slices.Delete(j.waiting, i, i+1)
	j.turns = append(j.turns, key)
	j.mu.Unlock()
	j.tell(types.NamespacedName{Namespace: key.Namespace, Name: key.Name})
	time.AfterFunc(cmp.Or(j.limits.Turn, defaultTurn), func() {
		j.mu.Lock()
		isUnused := slices.Contains(j.turns, key)
		j.turns = without(j.turns, key)
		j.mu.Unlock()
		if isUnused && j.ctx.Err() == nil {
			j.wake()
		}
	})
}

func (j *Jobs[Step, Result]) tell(name types.NamespacedName) {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	select {
	case j.ended <- event.GenericEvent{Object: object}:
	case <-j.ctx.Done():
	}
}

// Running reports whether a job of an object is at work, and what it is doing.
func (j *Jobs[Step, Result]) Running(name types.NamespacedName) (Step, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	found := j.jobs[name]
	if found == nil || found.result != nil {
		return "", false
	}

	return found.step, true
}

// Cancel ends the context of the job of an object that is at work, if there is one. How it
// ends is told as ever.
func (j *Jobs[Step, Result]) Cancel(name types.NamespacedName) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil {
		found.cancel()
	}
}

// Result is how the last job of an object has ended; nil when none has. It stays until it
// is forgotten.
func (j *Jobs[Step, Result]) Result(name types.NamespacedName) *Result {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil {
		return found.result
	}

	return nil
}

// Forget forgets how a job of an object has ended, once that is recorded. Another job that
// was started meanwhile is not forgotten.
func (j *Jobs[Step, Result]) Forget(name types.NamespacedName, recorded *Result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil && found.result != nil && found.result == recorded {
		delete(j.jobs, name)
	}
}

// Drop forgets an object that is no more: how its job has ended, and that it waits for one.
func (j *Jobs[Step, Result]) Drop(name types.NamespacedName) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil && found.result != nil {
		delete(j.jobs, name)
	}
	j.waiting = slices.DeleteFunc(j.waiting, func(key Key) bool { return key.Namespace == name.Namespace && key.Name == name.Name })
}
