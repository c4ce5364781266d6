package release_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/addons/internal/release/fake"
)

var (
	target = release.Target{Namespace: "apps", Name: "demo"}
	errOwn = errors.New("the chart is broken")
	errAPI = fmt.Errorf("%w: connection refused", release.ErrUnreachable)
)

// objects are those of a release of which some were changed.
type objects struct {
	drifted []addonv1.DriftedObject
	waiting string
	// namespaceMissing says that the cluster has no namespace.
	namespaceMissing bool
	err              error
}

func (o *objects) HasNamespace(context.Context, string) (bool, error) {
	return !o.namespaceMissing, o.err
}

func (o *objects) Drift(context.Context, release.Content) ([]addonv1.DriftedObject, error) {
	return o.drifted, o.err
}

func (o *objects) Waiting(context.Context, release.Content) (string, error) {
	return o.waiting, o.err
}

func (o *objects) Correct(context.Context, release.Content, []addonv1.DriftedObject) error {
	if o.err == nil {
		o.drifted = nil
	}

	return o.err
}

// bed is a cluster with a release that is asked for again and again.
type bed struct {
	helm    *fake.Helm
	objects *objects
	clock   *clocktesting.FakeClock
	task    release.Task
	started []addonv1.ReleaseAction
}

func newBed() *bed {
	clock := clocktesting.NewFakeClock(time.Date(2026, time.November, 24, 12, 0, 0, 0, time.UTC))
	return &bed{
		helm: &fake.Helm{Clock: clock}, clock: clock, objects: &objects{},
		task: release.Task{
			Facts: release.Facts{
				Owner: "us", Digest: "one", Timeout: time.Minute, Adoption: addonv1.AdoptNever, OnFailure: addonv1.FailureRetry, Retries: 3,
			},
			Request: release.Request{Target: target, Owner: "us", Digest: "one", Options: release.Options{Timeout: time.Minute}},
			Fetch:   func(context.Context) ([]byte, error) { return []byte("1.0.0"), nil },
		},
	}
}

// ask asks for something else.
func (b *bed) ask(digest string) {
	b.task.Digest, b.task.Request.Digest, b.task.Failures = digest, digest, 0
}

// run carries out the task, and keeps what a status would keep.
func (b *bed) run(ctx context.Context) release.Result {
	b.started = nil
	result := release.Runner{Helm: b.helm, Objects: b.objects, Clock: b.clock}.Run(ctx, b.task, func(action addonv1.ReleaseAction) {
		b.started = append(b.started, action)
	})
	b.task.Failures, b.task.FailedAt = result.Failures, result.FailedAt
	if result.State == addonv1.StateInSync {
		b.task.Failures = 0
	}

	return result
}

func TestAReleaseIsInstalledAndUpgraded(t *testing.T) {
	g, b := NewWithT(t), newBed()
	result := b.run(t.Context())
	g.Expect(result.State).To(Equal(addonv1.StateInSync))
	g.Expect(result.Last).To(HaveField("Number", int32(1)))
	g.Expect(b.started).To(Equal([]addonv1.ReleaseAction{addonv1.ActionInstall}))
	g.Expect(b.helm.Calls()).To(Equal([]fake.Verb{fake.History, fake.Install, fake.History}))

	b.run(t.Context())
	g.Expect(b.helm.Calls()).To(Equal([]fake.Verb{fake.History}))

	b.ask("two")
	result = b.run(t.Context())
	g.Expect(result.State).To(Equal(addonv1.StateInSync))
	g.Expect(result.Last).To(HaveField("Digest", "two"))
	g.Expect(b.started).To(Equal([]addonv1.ReleaseAction{addonv1.ActionUpgrade}))
}

func TestAFailureIsUndoneAtOnceAndTriedAgain(t *testing.T) {
	g, b := NewWithT(t), newBed()
	b.task.OnFailure = addonv1.FailureRollback
	b.run(t.Context())
	b.ask("two")
	b.helm.Fail(fake.Upgrade, fake.Fault{Err: errOwn, Midway: true}, fake.Fault{Err: errOwn, Midway: true})
	result := b.run(t.Context())
	g.Expect(b.started).To(Equal([]addonv1.ReleaseAction{addonv1.ActionUpgrade, addonv1.ActionRollback}))
	g.Expect(result.State).To(Equal(addonv1.StateOutOfSync))
	g.Expect(result.After).To(Equal(10 * time.Second))
	g.Expect(result.Failure).To(HaveValue(Equal(release.Failure{Action: addonv1.ActionUpgrade, Reason: addonv1.ActionFailedReason, Message: errOwn.Error()})))
	g.Expect(result.Last).To(HaveField("Digest", "one"))

	b.clock.Step(10 * time.Second)
	g.Expect(b.run(t.Context()).Failures).To(Equal(int32(2)))
	b.clock.Step(20 * time.Second)
	g.Expect(b.run(t.Context()).State).To(Equal(addonv1.StateInSync))
}

func TestWhatIsRefusedIsGivenUpWithItsReason(t *testing.T) {
	g, b := NewWithT(t), newBed()
	refused := &release.RefusedError{Reason: addonv1.CRDConflictReason, Message: "CustomResourceDefinition x belongs to another release"}
	b.helm.Fail(fake.Install, fake.Fault{Err: refused}, fake.Fault{Err: refused}, fake.Fault{Err: refused}, fake.Fault{Err: refused})
	var result release.Result
	for range 4 {
		result = b.run(t.Context())
		b.clock.Step(10 * time.Minute)
	}
	g.Expect(result.Failure).To(HaveField("Reason", addonv1.CRDConflictReason))
	g.Expect(result.Reason).To(Equal(addonv1.StalledReason))
	b.helm.Calls()
	b.run(t.Context())
	g.Expect(b.helm.Calls()).To(Equal([]fake.Verb{fake.History}), "nothing is tried any more")
}

func TestAnAPIServerThatIsGoneIsNoFailureOfTheRelease(t *testing.T) {
	for name, tt := range map[string]struct {
		verb  fake.Verb
		fault fake.Fault
		count int32
	}{
		"before it was asked":             {fake.History, fake.Fault{Err: errAPI}, 0},
		"before anything was written":     {fake.Upgrade, fake.Fault{Err: errAPI}, 0},
		"after a revision was written":    {fake.Upgrade, fake.Fault{Err: errAPI, Midway: true}, 1},
		"with a revision that is pending": {fake.Upgrade, fake.Fault{Err: errAPI, Midway: true, Dies: true}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g, b := NewWithT(t), newBed()
			b.run(t.Context())
			b.ask("two")
			b.helm.Fail(tt.verb, tt.fault)
			result := b.run(t.Context())
			g.Expect(result.Failures).To(Equal(tt.count))
			if tt.count == 0 {
				g.Expect(result.Err).To(MatchError(release.ErrUnreachable))
			}
		})
	}
}

func TestAChartThatCannotBeFetchedIsTold(t *testing.T) {
	g, b := NewWithT(t), newBed()
	b.task.Fetch = func(context.Context) ([]byte, error) { return nil, errOwn }
	result := b.run(t.Context())
	g.Expect(result.Err).To(MatchError(&release.RefusedError{Reason: addonv1.WaitingForChartReason, Message: errOwn.Error()}))
	g.Expect(result.Failures).To(BeZero())
	g.Expect(b.helm.Calls()).NotTo(ContainElement(fake.Install))
}

func TestANamespaceThatOthersMakeIsWaitedFor(t *testing.T) {
	g, b := NewWithT(t), newBed()
	b.objects.namespaceMissing = true
	result := b.run(t.Context())
	g.Expect(result.Err).To(Equal(&release.RefusedError{
		Reason: addonv1.WaitingForNamespaceReason, Message: "namespace apps is not there; make it, or set release.namespacePolicy to Create",
	}))
	g.Expect(result.Failures).To(BeZero())
	g.Expect(result.Done).To(BeEmpty())
	g.Expect(b.helm.Calls()).To(Equal([]fake.Verb{fake.History}))
	_, err := release.Runner{Helm: b.helm, Objects: b.objects, Clock: b.clock}.Plan(t.Context(), b.task)
	g.Expect(err).To(Equal(result.Err))

	b.task.Request.Options.CreateNamespace = true
	g.Expect(b.run(t.Context()).State).To(Equal(addonv1.StateInSync))
	b.task.Request.Options.CreateNamespace = false
	b.ask("two")
	g.Expect(b.run(t.Context()).State).To(Equal(addonv1.StateInSync), "a release is in a namespace")

	b = newBed()
	b.objects.err = errAPI
	result = b.run(t.Context())
	g.Expect(result.Err).To(MatchError(release.ErrUnreachable))
	g.Expect(result.Failures).To(BeZero())
}

func TestDriftIsLookedForWhenItIsDue(t *testing.T) {
	g, b := NewWithT(t), newBed()
	b.run(t.Context())
	b.objects.drifted = []addonv1.DriftedObject{{Object: "ConfigMap/apps/a", Change: "/data/x"}}
	b.task.Drift = addonv1.DriftCorrect
	b.helm.Calls()
	result := b.run(t.Context())
	g.Expect(result.DriftLookedFor).To(BeFalse())
	g.Expect(b.helm.Calls()).To(Equal([]fake.Verb{fake.History}))

	b.task.LookForDrift = true
	result = b.run(t.Context())
	g.Expect(result.DriftLookedFor).To(BeTrue())
	g.Expect(result.State).To(Equal(addonv1.StateInSync))
	g.Expect(b.started).To(Equal([]addonv1.ReleaseAction{addonv1.ActionCorrectDrift}))
	g.Expect(b.objects.drifted).To(BeEmpty())

	b.objects.drifted, b.task.Drift = []addonv1.DriftedObject{{Object: "ConfigMap/apps/a", Change: "Missing"}}, addonv1.DriftWarn
	result = b.run(t.Context())
	g.Expect(result.State).To(Equal(addonv1.StateDrifted))
	g.Expect(result.Drift).To(HaveLen(1))
	g.Expect(b.started).To(BeEmpty())

	g.Expect(result.DriftMissed).To(BeFalse())
	b.objects.err = errOwn
	result = b.run(t.Context())
	g.Expect(result.Err).To(MatchError(errOwn))
	g.Expect(result.DriftMissed).To(BeTrue())
	b.task.LookForDrift = false
	b.helm.Fail(fake.History, fake.Fault{Err: errAPI})
	result = b.run(t.Context())
	g.Expect(result.Err).To(MatchError(errAPI))
	g.Expect(result.DriftMissed).To(BeFalse(), "it was not to be looked for")
}

func TestObjectsAreWaitedForWhereHelmDoesNot(t *testing.T) {
	g, b := NewWithT(t), newBed()
	b.objects.waiting, b.task.LookWhetherReady = "no node is ready", true
	result := b.run(t.Context())
	g.Expect(result.State).To(Equal(addonv1.StateInSync))
	g.Expect(result.ReadinessLookedFor).To(BeTrue())
	g.Expect(result.Waiting).To(Equal("no node is ready"))
	b.objects.err = errOwn
	g.Expect(b.run(t.Context()).Err).To(MatchError(errOwn))
}

func TestTestsAreRunAfterEachRevision(t *testing.T) {
	g, b := NewWithT(t), newBed()
	b.task.Tests = true
	result := b.run(t.Context())
	g.Expect(b.started).To(Equal([]addonv1.ReleaseAction{addonv1.ActionInstall, addonv1.ActionTest}))
	g.Expect(result.State).To(Equal(addonv1.StateInSync))
	b.ask("two")
	b.task.OnFailure = addonv1.FailureRollback
	b.helm.Fail(fake.Test, fake.Fault{Err: errOwn})
	result = b.run(t.Context())
	g.Expect(b.started).To(Equal([]addonv1.ReleaseAction{addonv1.ActionUpgrade, addonv1.ActionTest, addonv1.ActionRollback}))
	g.Expect(result.Last).To(HaveField("Digest", "one"))
}

// TestHistories: whatever fails at whatever time, and whenever the manager dies, a release
// ends as it is asked for; nothing is done to a revision that may be at work; and nothing
// to the release of somebody else.
func TestHistories(t *testing.T) {
	verbs := []fake.Verb{fake.History, fake.Install, fake.Upgrade, fake.Unlock, fake.Rollback, fake.Uninstall, fake.Test}
	policies := []addonv1.FailurePolicy{addonv1.FailureRetry, addonv1.FailureRollback, addonv1.FailureUninstall}
	faults := []fake.Fault{{Err: errOwn}, {Err: errAPI}, {Err: errOwn, Midway: true}, {Err: errAPI, Midway: true}, {Err: errAPI, Midway: true, Dies: true}}
	for seed := range uint64(2000) {
		g, b, random := NewWithT(t), newBed(), rand.New(rand.NewPCG(seed, 24))
		b.task.OnFailure, b.task.Tests = policies[random.IntN(len(policies))], random.IntN(3) == 0
		for step := range 12 {
			if random.IntN(3) == 0 {
				b.ask(fmt.Sprint("wish-", step))
			}
			for range random.IntN(3) {
				b.helm.Fail(verbs[random.IntN(len(verbs))], faults[random.IntN(len(faults))])
			}
			before := b.helm.Revisions(target)
			b.run(t.Context())
			if len(before) > 0 && before[0].Status == release.Pending && b.clock.Since(before[0].At) < time.Minute {
				g.Expect(b.helm.Revisions(target)).To(Equal(before), "seed %d: a revision was touched that may be at work", seed)
			}
			b.clock.Step(time.Duration(random.IntN(200)) * time.Second)
		}
		// The faults end, and a person asks again.
		for _, verb := range verbs {
			b.helm.Fail(verb)
		}
		b.ask("last")
		var result release.Result
		for range 40 {
			if result = b.run(t.Context()); result.State == addonv1.StateInSync {
				break
			}
			b.task.Failures = min(b.task.Failures, b.task.Retries)
			b.clock.Step(10 * time.Minute)
		}
		g.Expect(result.State).To(Equal(addonv1.StateInSync), "seed %d: %+v", seed, result)
		g.Expect(result.Last).To(HaveField("Digest", "last"), "seed %d", seed)
		deployed := 0
		for _, revision := range b.helm.Revisions(target) {
			if revision.Status == release.Deployed {
				deployed++
			}
			g.Expect(revision.Status).NotTo(Equal(release.Pending), "seed %d", seed)
		}
		g.Expect(deployed).To(Equal(1), "seed %d", seed)
	}
}
