package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
)

var demoTarget = release.Target{Namespace: "default", Name: "demo"}

func TestWhatHasNotChangedCostsNoVerb(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.clusters.of("blue").Calls()
	versions := b.versions()
	for range 5 {
		b.round()
		b.clock.Step(2 * time.Minute)
	}
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	b.Expect(b.versions()).To(Equal(versions), "nothing is written")

	// Another manager trusts the status; one whose status was lost asks Helm.
	b.start()
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	lost := b.release("demo", "blue")
	lost.Status = addonv1.TalosClusterAddonReleaseStatus{}
	b.Expect(b.client.Status().Update(t.Context(), lost)).To(Succeed())
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(Equal([]helmfake.Verb{helmfake.History}))
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"), "nothing is installed again")
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}

// TestAReleaseIsLookedAtWhenItsClusterMayHaveAnother: the etcd of the cluster may have been restored
// from a backup that has a former revision, or none.
func TestAReleaseIsLookedAtWhenItsClusterMayHaveAnother(t *testing.T) {
	nothing := func(*bed) {}
	for name, tt := range map[string]struct{ before, after func(b *bed) }{
		"it has not answered": {
			func(b *bed) { b.clusters.setReachable("blue", false); b.settle() },
			func(b *bed) { b.clusters.setReachable("blue", true) },
		},
		"the Cluster was paused": {
			func(b *bed) {
				edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
				b.settle()
			},
			func(b *bed) { edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Spec.Paused = nil }) },
		},
		"a person asks for it": {nothing, func(b *bed) {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) {
				a.Annotations = map[string]string{addonv1.ForceAnnotation: "1"}
			})
		}},
	} {
		for has, restored := range map[string]func(release.Revision) []release.Revision{
			"the same": func(now release.Revision) []release.Revision { return []release.Revision{now} },
			"an older one": func(now release.Revision) []release.Revision {
				now.Digest, now.Version = "older", "0.9.0"
				return []release.Revision{now}
			},
			"none": func(release.Revision) []release.Revision { return nil },
		} {
			t.Run(name+"/"+has, func(t *testing.T) {
				b := newBed(t, clusterOf("blue", on), addonOf("demo"))
				b.settle()
				blue := b.clusters.of("blue")
				tt.before(b)
				history := restored(blue.Revisions(demoTarget)[0])
				blue.Set(demoTarget, history...)
				blue.Calls()
				tt.after(b)
				b.settle()
				b.Expect(b.deployed("demo", "blue")).To(HaveSuffix(" 1.0.0"))
				b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
				b.Expect(b.release("demo", "blue").Status.State).To(Equal(addonv1.StateInSync))
				if has == "the same" {
					b.Expect(blue.Calls()).To(Equal([]helmfake.Verb{helmfake.History}), "once")
				}
			})
		}
	}
}

// TestADoubtOutlivesTheManager: what was not looked at yet is, by the next one.
func TestADoubtOutlivesTheManager(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.clusters.setReachable("blue", false)
	b.settle()
	b.clusters.of("blue").Set(demoTarget)
	b.clusters.of("blue").Fail(helmfake.History, helmfake.Fault{Err: fmt.Errorf("%w: no connection", release.ErrUnreachable)})
	b.clusters.setReachable("blue", true)
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
	b.start()
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
}

// TestAManagerThatStartsKeepsWhatItKnows until it has tried to connect: each start would cost two
// writes for each release, and a look at it.
func TestAManagerThatStartsKeepsWhatItKnows(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.clusters.of("blue").Calls()
	versions := b.versions()
	b.start()
	b.clusters.setUntried(true)
	b.clusters.setReachable("blue", false)
	b.settle()
	b.Expect(b.versions()).To(Equal(versions))
	result, err := b.releases.Reconcile(t.Context(), requestFor(b.release("demo", "blue")))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(result.RequeueAfter).To(BeNumerically("~", unreachableInterval, unreachableInterval/3))
	b.clusters.setUntried(false)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("Unknown ClusterUnreachable"))

	b.clusters.setReachable("blue", true)
	b.settle()
	b.clusters.of("blue").Calls()
	b.start()
	b.clusters.setUntried(true)
	b.clusters.setReachable("blue", false)
	b.settle()
	b.clusters.setUntried(false)
	b.clusters.setReachable("blue", true)
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
}

func TestAFailedReleaseIsTriedAgainAndGivenUp(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), clusterOf("red", on), addonOf("demo"))
	broken := helmfake.Fault{Err: errors.New("it is broken"), Midway: true}
	b.clusters.of("blue").Fail(helmfake.Install, broken)
	b.clusters.of("blue").Fail(helmfake.Upgrade, broken, broken, broken)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("False ActionFailed"))
	b.Expect(reason(b.release("demo", "red"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"), "one broken cluster holds up no other")
	b.Expect(b.addon("demo").Status.FailedReleases).To(HaveValue(Equal(int32(1))))
	for range 6 {
		b.clock.Step(10 * time.Minute)
		b.settle()
	}
	found := b.release("demo", "blue")
	b.Expect(reason(found, addonv1.ReleasedCondition)).To(Equal("False Stalled"))
	b.Expect(found.Status.Failure.Count).To(Equal(int32(4)), "once and three retries")
	b.clusters.of("blue").Calls()
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())

	edit(b, found, func(r *addonv1.TalosClusterAddonRelease) {
		r.Annotations = map[string]string{addonv1.ForceAnnotation: "1"}
	})
	b.settle()
	found = b.release("demo", "blue")
	b.Expect(reason(found, addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	b.Expect(found.Status.Failure).To(BeZero())
	b.Expect(found.Status.LastForced).To(Equal("1"))
	b.Expect(b.counted("capi_talos_addon_actions_total")).To(Equal([]string{"Install failed 1", "Install succeeded 1", "Upgrade failed 3", "Upgrade succeeded 1"}))
}

func TestWhatIsGivenUpIsUndoneAllTheSame(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Failure = addonv1.FailureSpec{OnFailure: addonv1.FailureRollback, Retries: ptr.To(int32(0))}
	}))
	b.settle()
	b.clusters.of("blue").Fail(helmfake.Upgrade, helmfake.Fault{Err: errors.New("it is broken"), Midway: true})
	b.clusters.of("blue").Fail(helmfake.Rollback, helmfake.Fault{Err: fmt.Errorf("%w: no connection", release.ErrUnreachable)})
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	b.settle()
	found := b.release("demo", "blue")
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 2.0.0"))
	b.Expect(found.Status.Deployed).To(HaveField("Version", "1.0.0"), "the cluster has what it had")
	b.clock.Step(time.Minute)
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("3 1.0.0"))
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("False Stalled"))
	b.clusters.of("blue").Calls()
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
}

func TestAChangeGivesAReleaseThatWasGivenUpAnotherTry(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Failure.Retries = ptr.To(int32(0)) }))
	b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: &release.RefusedError{Reason: addonv1.CRDConflictReason, Message: "it is another release's"}})
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("False CRDConflict"), "the reason stays when it is given up")
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Release.CRDs = addonv1.CRDSkip })
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}

func TestTwoAddonsThatWantTheSameRelease(t *testing.T) {
	same := func(a *addonv1.TalosClusterAddon) { a.Spec.Release.Name = "demo" }
	b := newBed(t, clusterOf("blue", on), addonOf("first", same))
	b.settle()
	b.create(addonOf("second", same))
	b.settle()
	b.Expect(reason(b.release("first", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	b.Expect(reason(b.release("second", "blue"), addonv1.ReleasedCondition)).To(Equal("False ReleaseConflict"))
	b.Expect(b.client.Delete(t.Context(), b.addon("second"))).To(Succeed())
	b.settle()
	b.Expect(b.clusters.of("blue").Revisions(demoTarget)).To(HaveLen(1), "what another has installed is not deleted")

	b.create(addonOf("second", same))
	b.settle()
	b.Expect(b.client.Delete(t.Context(), b.addon("first"))).To(Succeed())
	b.settle()
	b.clock.Step(unmanagedInterval)
	b.settle()
	b.Expect(reason(b.release("second", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}

func TestAReleaseOfSomebodyElseIsTakenOverOnlyWhenThatIsAskedFor(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.clusters.of("blue").Set(demoTarget, release.Revision{Number: 4, Status: release.Deployed, Version: "0.1.0"})
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("False ReleaseNotManaged"))
	b.Expect(b.deployed("demo", "blue")).To(Equal("4 0.1.0"))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Release.Adoption = addonv1.AdoptAlways })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("5 1.0.0"))
}

func TestDriftIsToldAndCorrected(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Drift.Mode = addonv1.DriftWarn }))
	b.settle()
	b.clusters.of("blue").drifted = []addonv1.DriftedObject{{Object: "ConfigMap/default/a", Change: "/data/x"}}
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("False NotDrifted"), "it is not time yet")
	b.clock.Step(10 * time.Minute)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("True Drifted"))
	b.Expect(b.release("demo", "blue").Status.Drift).To(HaveLen(1))
	b.Expect(b.addon("demo").Status.DriftedReleases).To(HaveValue(Equal(int32(1))))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Drift.Mode = addonv1.DriftIgnore })
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Drift).To(BeEmpty(), "nobody looks any more")
	b.Expect(b.addon("demo").Status.DriftedReleases).To(HaveValue(BeZero()))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Drift.Mode = addonv1.DriftCorrect })
	b.clock.Step(10 * time.Minute)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("False NotDrifted"))
	b.Expect(b.clusters.of("blue").drifted).To(BeEmpty())
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	b.Expect(b.counted("capi_talos_addon_drift_checks_total")).To(Equal([]string{"found 2", "none 1"}))
	b.Expect(b.counted("capi_talos_addon_actions_total")).To(Equal([]string{"CorrectDrift succeeded 1", "Install succeeded 1"}))
}

// TestDriftThatCannotBeCorrectedIsTold beside the objects that were changed, until it is.
func TestDriftThatCannotBeCorrectedIsTold(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Drift.Mode = addonv1.DriftCorrect }))
	b.settle()
	workload := b.clusters.of("blue")
	workload.drifted = []addonv1.DriftedObject{{Object: "ConfigMap/default/a", Change: "/data/x"}}
	for says, err := range map[string]error{
		"the webhook says no":                           errors.New("the webhook says no"),
		"the API server of the cluster does not answer": fmt.Errorf("%w: read tcp 10.0.0.1:41234->10.0.0.2:6443", release.ErrUnreachable),
	} {
		workload.noCorrect = err
		b.clock.Step(10 * time.Minute)
		b.settle()
		found := b.release("demo", "blue")
		b.Expect(reason(found, addonv1.DriftedCondition)).To(Equal("True Drifted"))
		b.Expect(message(found, addonv1.DriftedCondition)).To(Equal(
			"1 objects were changed: ConfigMap/default/a (/data/x); changing them back has failed, and is tried again: " + says))
		b.Expect(found.Status.Failure).To(BeZero(), "the release has not failed")
		b.Expect(b.addon("demo").Status.FailedReleases).To(HaveValue(BeZero()))
		b.start()
		b.settle()
		b.Expect(message(b.release("demo", "blue"), addonv1.DriftedCondition)).To(HaveSuffix(says), "it stays until somebody looks again")
	}
	workload.noCorrect = nil
	b.clock.Step(10 * time.Minute)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("False NotDrifted"))
}

// TestDriftThatCannotBeLookedForIsNotKnown: it is neither there nor not.
func TestDriftThatCannotBeLookedForIsNotKnown(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Drift.Mode = addonv1.DriftWarn }))
	b.settle()
	workload := b.clusters.of("blue")
	for _, tt := range []struct {
		err           error
		reason, words string
	}{
		{errors.New(`no matches for kind "Gadget"`), "Unknown ActionFailed", `drift cannot be looked for, and it is tried again: looking for drift: no matches for kind "Gadget"`},
		{fmt.Errorf("%w: read tcp 10.0.0.1:41234->10.0.0.2:6443", release.ErrUnreachable), "Unknown ClusterUnreachable",
			"drift cannot be looked for, and it is tried again: the API server of the cluster does not answer"},
	} {
		workload.noDrift = tt.err
		b.clock.Step(10 * time.Minute)
		b.settle()
		found := b.release("demo", "blue")
		b.Expect(reason(found, addonv1.DriftedCondition)).To(Equal(tt.reason))
		b.Expect(message(found, addonv1.DriftedCondition)).To(Equal(tt.words))
		b.Expect(reason(found, addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
		versions := b.versions()
		for range 3 {
			b.clock.Step(unreachableInterval)
			b.settle()
		}
		b.Expect(b.versions()).To(Equal(versions), "the same again is not written again")
	}
	workload.noDrift = nil
	b.clock.Step(unreachableInterval)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("False NotDrifted"))

	// Where there is nothing to look at, nobody has.
	workload.Fail(helmfake.Upgrade, helmfake.Fault{Err: fmt.Errorf("%w: no connection", release.ErrUnreachable)})
	b.clock.Step(10 * time.Minute)
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown ClusterUnreachable"))
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("False NotDrifted"))
}

func TestAManagerThatStartsWaitsForWhatMayBeAtWork(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: fmt.Errorf("dying: %w", release.ErrUnreachable), Midway: true, Dies: true})
	b.settle()
	b.start()
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Or(Equal("Unknown Locked"), Equal("False ActionFailed")))
	b.Expect(b.clusters.of("blue").Revisions(demoTarget)[0].Status).To(Equal(release.Pending))
	b.clock.Step(11 * time.Minute)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 1.0.0"))
}
