// Package jobs carries out what takes long beside the reconciles that have begun it, so
// that a worker is free for other clusters meanwhile. What is at work is known to this
// process alone: after a restart it is found in Helm's own records.
package jobs

import (
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/reconciliation"
)

// buffered is how many ends of jobs may be told before somebody listens.
const buffered = 1024

// Limits bound how many jobs run at a time. Both are required.
type Limits struct {
	// Total is how many may run, and PerCluster how many of one cluster: one whose Pods
	// never become ready must not keep the others waiting. A namespace gets at most half
	// of those that others leave.
	Total, PerCluster int
}

// Work is what a job does. It tells progress what it is about to do.
type Work func(ctx context.Context, progress func(addonv1.ReleaseAction)) release.Result

// Key is a release and its cluster, in one namespace.
type Key struct {
	Namespace, Name, Cluster string
}

// Jobs are the jobs of a process.
type Jobs struct {
	// ctx ends with the manager.
	ctx    context.Context //nolint:containedctx // Jobs outlive the reconciles that begin them.
	limits Limits
	ended  chan event.GenericEvent

	mu   sync.Mutex
	jobs map[types.NamespacedName]*job
	// running are those that run, and waiting those that were refused, in this order.
	running []Key
	waiting []Key
}

type job struct {
	action addonv1.ReleaseAction
	result *release.Result
}

// New returns no jobs. Those that are started end with the context.
func New(ctx context.Context, limits Limits) *Jobs {
	return &Jobs{ctx: ctx, limits: limits, ended: make(chan event.GenericEvent, buffered), jobs: map[types.NamespacedName]*job{}}
}

// Events tell of releases whose job has begun something, or has ended, and of those that
// may try to start one again.
func (j *Jobs) Events() <-chan event.GenericEvent { return j.ended }

// Start starts a job for a release that has none, and reports whether it does: not while
// too many are at work. Then an event tells when to try again.
func (j *Jobs) Start(key Key, work Work) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.admits(key) {
		if !slices.Contains(j.waiting, key) {
			j.waiting = append(j.waiting, key)
		}
		return false
	}
	j.waiting = without(j.waiting, key)
	j.running = append(j.running, key)
	name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
	j.jobs[name] = &job{}
	go j.run(key, name, work)

	return true
}

// admits reports whether a job may begin now.
func (j *Jobs) admits(key Key) bool {
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

// Count returns how many jobs run, and how many releases wait for one.
func (j *Jobs) Count() (running, waiting int) {
	j.mu.Lock()
	defer j.mu.Unlock()

	return len(j.running), len(j.waiting)
}

func without(keys []Key, key Key) []Key {
	return slices.DeleteFunc(keys, func(other Key) bool { return other == key })
}

func (j *Jobs) run(key Key, name types.NamespacedName, work Work) {
	result := work(j.ctx, func(action addonv1.ReleaseAction) {
		j.mu.Lock()
		j.jobs[name].action = action
		j.mu.Unlock()
		j.tell(name)
	})
	j.mu.Lock()
	j.jobs[name].result = &result
	j.running = without(j.running, key)
	next := j.next()
	j.mu.Unlock()
	j.tell(name)
	if next != nil {
		j.tell(types.NamespacedName{Namespace: next.Namespace, Name: next.Name})
	}
}

// next is the first of those that wait and could begin; nil when there is none.
func (j *Jobs) next() *Key {
	for _, key := range j.waiting {
		if j.admits(key) {
			j.waiting = without(slices.Clone(j.waiting), key)
			return &key
		}
	}

	return nil
}

func (j *Jobs) tell(name types.NamespacedName) {
	object := &addonv1.TalosClusterAddonRelease{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	select {
	case j.ended <- event.GenericEvent{Object: object}:
	case <-j.ctx.Done():
	}
}

// Running reports whether a job of a release is at work, and what it is doing.
func (j *Jobs) Running(name types.NamespacedName) (addonv1.ReleaseAction, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	found := j.jobs[name]
	if found == nil || found.result != nil {
		return "", false
	}

	return found.action, true
}

// Result is how the last job of a release has ended; nil when none has. It stays until it
// is forgotten.
func (j *Jobs) Result(name types.NamespacedName) *release.Result {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil {
		return found.result
	}

	return nil
}

// Forget forgets how a job of a release has ended, once that is recorded. Another job that
// was started meanwhile is not forgotten.
func (j *Jobs) Forget(name types.NamespacedName, recorded *release.Result) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil && found.result != nil && found.result == recorded {
		delete(j.jobs, name)
	}
}

// Drop forgets a release that is no more: how its job has ended, and that it waits for one.
func (j *Jobs) Drop(name types.NamespacedName) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if found := j.jobs[name]; found != nil && found.result != nil {
		delete(j.jobs, name)
	}
	j.waiting = slices.DeleteFunc(j.waiting, func(key Key) bool { return key.Namespace == name.Namespace && key.Name == name.Name })
}
