// Package fake is a Helm without a cluster, for tests of what is decided: it keeps the
// histories of releases as Helm does, and fails on demand.
package fake

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/utils/clock"

	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// Verb is a call of release.Helm.
type Verb string

// The verbs.
const (
	Get       Verb = "Get"
	History   Verb = "History"
	Install   Verb = "Install"
	Upgrade   Verb = "Upgrade"
	Unlock    Verb = "Unlock"
	Rollback  Verb = "Rollback"
	Uninstall Verb = "Uninstall"
	Test      Verb = "Test"
)

// Fault is how a call fails.
type Fault struct {
	Err error
	// Midway lets it fail after the revision was written: as Failed, or as Pending where
	// the manager dies.
	Midway, Dies bool
	// Purged lets an uninstallation fail after the history was deleted.
	Purged bool
}

// Helm implements release.Helm. It has no releases at first.
type Helm struct {
	// Clock tells when revisions are made. It is required.
	Clock clock.PassiveClock

	mu       sync.Mutex
	releases map[release.Target][]release.Revision
	faults   map[Verb][]Fault
	calls    []Verb
}

var _ release.Helm = &Helm{}

// Fail has the next calls of a verb fail, one after the other.
func (h *Helm) Fail(verb Verb, faults ...Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.faults == nil {
		h.faults = map[Verb][]Fault{}
	}
	h.faults[verb] = append(h.faults[verb], faults...)
}

// Set makes the history of a release, the newest revision first.
func (h *Helm) Set(target release.Target, history ...release.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.set(target, history)
}

func (h *Helm) set(target release.Target, history []release.Revision) {
	if h.releases == nil {
		h.releases = map[release.Target][]release.Revision{}
	}
	h.releases[target] = history
}

// Revisions is the history of a release, the newest first.
func (h *Helm) Revisions(target release.Target) []release.Revision {
	h.mu.Lock()
	defer h.mu.Unlock()

	return slices.Clone(h.releases[target])
}

// Calls are the verbs that were called, and forgets them.
func (h *Helm) Calls() []Verb {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls := h.calls
	h.calls = nil

	return calls
}

// begin notes a call, and takes its fault.
func (h *Helm) begin(verb Verb) Fault {
	h.calls = append(h.calls, verb)
	queue := h.faults[verb]
	if len(queue) == 0 {
		return Fault{}
	}
	h.faults[verb] = queue[1:]

	return queue[0]
}

// Get implements release.Helm.
func (h *Helm) Get(_ context.Context, target release.Target) (release.Content, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fault := h.begin(Get); fault.Err != nil {
		return release.Content{}, fault.Err
	}
	history := h.releases[target]
	if len(history) == 0 {
		return release.Content{}, release.ErrNotFound
	}

	return release.Content{Target: target, Revision: history[0]}, nil
}

// History implements release.Helm.
func (h *Helm) History(_ context.Context, target release.Target) ([]release.Revision, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fault := h.begin(History); fault.Err != nil {
		return nil, fault.Err
	}

	return slices.Clone(h.releases[target]), nil
}

// Install implements release.Helm.
func (h *Helm) Install(_ context.Context, request release.Request) (release.Content, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.begin(Install)
	if len(h.releases[request.Target]) > 0 {
		return release.Content{}, fmt.Errorf("release %s is there", request.Name)
	}

	return h.add(fault, request.Target, h.revision(request), request.DryRun)
}

// Upgrade implements release.Helm.
func (h *Helm) Upgrade(_ context.Context, request release.Request) (release.Content, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.begin(Upgrade)
	history := h.releases[request.Target]
	switch {
	case len(history) == 0:
		return release.Content{}, fmt.Errorf("release %s has no revisions", request.Name)
	case history[0].Status == release.Pending:
		return release.Content{}, fmt.Errorf("another action of release %s is under way", request.Name)
	}

	return h.add(fault, request.Target, h.revision(request), request.DryRun)
}

func (h *Helm) revision(request release.Request) release.Revision {
	return release.Revision{
		Owner: request.Owner, Digest: request.Digest, Chart: "demo", Version: string(request.Chart), At: h.Clock.Now(), Timeout: request.Options.Timeout,
	}
}

// add puts a revision before the others.
func (h *Helm) add(fault Fault, target release.Target, revision release.Revision, dryRun bool) (release.Content, error) {
	history := slices.Clone(h.releases[target])
	revision.Number, revision.Status = int32(1), release.Deployed
	if len(history) > 0 {
		revision.Number = history[0].Number + 1
	}
	switch {
	case dryRun:
		return release.Content{Target: target, Revision: revision}, fault.Err
	case fault.Err != nil && !fault.Midway:
		return release.Content{}, fault.Err
	case fault.Dies:
		revision.Status = release.Pending
	case fault.Midway:
		revision.Status = release.Failed
	default:
		for i := range history {
			if history[i].Status == release.Deployed {
				history[i].Status = release.Superseded
			}
		}
	}
	h.set(target, append([]release.Revision{revision}, history...))

	return release.Content{Target: target, Revision: revision}, fault.Err
}

// Unlock implements release.Helm.
func (h *Helm) Unlock(_ context.Context, target release.Target, number int32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if fault := h.begin(Unlock); fault.Err != nil {
		return fault.Err
	}
	history := slices.Clone(h.releases[target])
	for i := range history {
		if history[i].Number == number && history[i].Status == release.Pending {
			history[i].Status = release.Failed
		}
	}
	h.set(target, history)

	return nil
}

// Rollback implements release.Helm.
func (h *Helm) Rollback(_ context.Context, target release.Target, number int32, options release.Options) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.begin(Rollback)
	for _, former := range h.releases[target] {
		if former.Number == number {
			former.At, former.Timeout = h.Clock.Now(), options.Timeout
			_, err := h.add(fault, target, former, false)
			return err
		}
	}

	return fmt.Errorf("there is no revision %d", number)
}

// Uninstall implements release.Helm.
func (h *Helm) Uninstall(_ context.Context, target release.Target, _ release.Options) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.begin(Uninstall)
	history := slices.Clone(h.releases[target])
	switch {
	case fault.Err != nil && fault.Midway && len(history) > 0:
		history[0].Status = release.Uninstalling
		h.set(target, history)
	case fault.Err == nil || fault.Purged:
		delete(h.releases, target)
	}

	return fault.Err
}

// Test implements release.Helm.
func (h *Helm) Test(_ context.Context, target release.Target, _ release.Options) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	fault := h.begin(Test)
	history := slices.Clone(h.releases[target])
	if len(history) == 0 {
		return release.ErrNotFound
	}
	history[0].Tests = release.TestsPassed
	if fault.Err != nil {
		history[0].Tests = release.TestsFailed
	}
	h.set(target, history)

	return fault.Err
}
