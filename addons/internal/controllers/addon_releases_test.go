package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
)

func TestClustersGetTheAddonByTheirLabels(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), clusterOf("red", nil), addonOf("demo"))
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	b.Expect(b.deployed("demo", "red")).To(BeEmpty())
	b.Expect(reason(b.addon("demo"), addonv1.AddonReadyCondition)).To(Equal("True Ready"))
	status := b.addon("demo").Status
	b.Expect([]*int32{status.SelectedClusters, status.ReadyReleases, status.FailedReleases}).To(Equal([]*int32{ptr.To(int32(1)), ptr.To(int32(1)), ptr.To(int32(0))}))
	b.Expect(b.release("demo", "blue").Status.Deployed).To(And(HaveField("Version", "1.0.0"), HaveField("Revision", int32(1))))

	edit(b, clusterOf("red", nil), func(c *clusterv1.Cluster) { c.Labels = on })
	b.settle()
	b.Expect(b.deployed("demo", "red")).To(Equal("1 1.0.0"))
	edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels = nil })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty(), "it is uninstalled")
	b.Expect(b.release("demo", "blue")).To(BeNil())
	b.Expect(b.deployed("demo", "red")).To(Equal("1 1.0.0"))

	b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
	b.settle()
	b.Expect(b.deployed("demo", "red")).To(BeEmpty())
	b.Expect(b.allAddons()).To(BeEmpty())
	b.Expect(b.allReleases()).To(BeEmpty())
}

func TestAllClustersOfTheNamespaceAndNoOther(t *testing.T) {
	elsewhere := clusterOf("green", on)
	elsewhere.Namespace = "other"
	b := newBed(t, clusterOf("blue", nil), elsewhere, addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.ClusterSelector, a.Spec.MatchAll = metav1.LabelSelector{}, ptr.To(true)
	}))
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	b.Expect(b.allReleases()).To(HaveLen(1))
}

func TestAChangeGoesToSoManyClustersAtATime(t *testing.T) {
	var objects []client.Object
	for i := range 6 {
		objects = append(objects, clusterOf(fmt.Sprint("c", i), on))
	}
	b := newBed(t, append(objects, addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Rollout = addonv1.RolloutSpec{MaxConcurrent: ptr.To(int32(2)), MaxFailures: ptr.To(int32(1))}
		a.Spec.Failure.Retries = ptr.To(int32(0))
	}))...)
	changed := func(version string) int {
		count := 0
		for i := range 6 {
			history := b.clusters.of(fmt.Sprint("c", i)).Revisions(demoTarget)
			if len(history) > 0 && history[0].Version == version {
				count++
			}
		}
		return count
	}
	before := 0
	for range 40 {
		b.round()
		now := changed("1.0.0")
		b.Expect(now - before).To(BeNumerically("<=", 2))
		before = now
	}
	b.Expect(before).To(Equal(6))

	for _, name := range []string{"c0", "c1"} {
		b.clusters.of(name).Fail(helmfake.Upgrade, helmfake.Fault{Err: errors.New("it is broken"), Midway: true})
	}
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	b.settle()
	b.Expect(changed("2.0.0")).To(Equal(2), "two have failed, and one may")
	b.Expect(reason(b.addon("demo"), addonv1.ReleasesReadyCondition)).To(Equal("False RolloutStopped"))
	b.Expect(reason(b.release("demo", "c5"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForRollout"))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.1" })
	b.settle()
	b.Expect(changed("2.0.1")).To(Equal(6))
}

// TestAClusterThatDoesNotAnswerTakesNoPlaceOfARollout, whether it goes silent before the change or
// after it.
func TestAClusterThatDoesNotAnswerTakesNoPlaceOfARollout(t *testing.T) {
	for name, silence := range map[string]func(b *bed){
		"before it has the change": func(b *bed) { b.clusters.setReachable("c0", false) },
		"after it has the change": func(b *bed) {
			for b.deployed("demo", "c0") != "2 2.0.0" {
				b.round()
			}
			b.clusters.setReachable("c0", false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, clusterOf("c0", on), clusterOf("c1", on), clusterOf("c2", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
				a.Spec.Rollout.MaxConcurrent = ptr.To(int32(1))
			}))
			b.settle()
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
			silence(b)
			b.settle()
			b.Expect(reason(b.release("demo", "c0"), addonv1.ReleaseReadyCondition)).To(Equal("Unknown ClusterUnreachable"))
			b.Expect(b.deployed("demo", "c1")).To(Equal("2 2.0.0"))
			b.Expect(b.deployed("demo", "c2")).To(Equal("2 2.0.0"))
			b.clusters.setReachable("c0", true)
			b.settle()
			b.Expect(b.deployed("demo", "c0")).To(Equal("2 2.0.0"))
			b.Expect(reason(b.addon("demo"), addonv1.AddonReadyCondition)).To(Equal("True Ready"))
		})
	}
}

func TestACacheThatDoesNotKnowTheClusterYetRemovesNothing(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	// The cache of a manager that has just started has no Clusters.
	empty := newBed(t, b.addon("demo"), b.release("demo", "blue"))
	b.addons.Client = empty.client
	edit(empty, empty.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.UID = b.addon("demo").UID })
	_, err := b.addons.Reconcile(t.Context(), requestFor(empty.addon("demo")))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(empty.release("demo", "blue").DeletionTimestamp).To(BeNil())
}

func TestNothingIsDoneWhilePaused(t *testing.T) {
	pause := map[string]string{clusterv1.PausedAnnotation: ""}
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.clusters.of("blue").Calls()
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Annotations, a.Spec.Source.Repository.Version = pause, "2.0.0" })
	b.settle()
	b.Expect(reason(b.addon("demo"), clusterv1.PausedCondition)).To(Equal("True Paused"))
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Annotations = nil })
	edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	b.Expect(reason(b.release("demo", "blue"), clusterv1.PausedCondition)).To(Equal("True Paused"))
	edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels = nil })
	b.settle()
	b.Expect(b.release("demo", "blue")).NotTo(BeNil(), "a paused Cluster loses nothing")
	edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels, c.Spec.Paused = on, nil })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 2.0.0"))
}

// failWrites has the writes of releases fail of the verbs, as the controller of add-ons asks
// for them.
func (b *bed) failWrites(err error, verbs ...string) {
	answer := func(verb string, object client.Object, ask func() error) error {
		if _, ok := object.(*addonv1.TalosClusterAddonRelease); ok && slices.Contains(verbs, verb) {
			return err
		}
		return ask()
	}
	b.addons.Client = interceptor.NewClient(b.client, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return answer("create", o, func() error { return c.Create(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return answer("patch", o, func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return answer("delete", o, func() error { return c.Delete(ctx, o, opts...) })
		},
	})
}

// TestWhatTheAPIServerRefusesIsToldAndTriedAgain: a quota or a policy keeps an add-on that
// is ready elsewhere from a Cluster.
func TestWhatTheAPIServerRefusesIsToldAndTriedAgain(t *testing.T) {
	kind := addonv1.GroupVersion.WithResource("talosclusteraddonreleases").GroupResource()
	for name, tt := range map[string]struct {
		verb, says string
		change     func(b *bed)
	}{
		"a Cluster is selected": {"create", "Cluster red: creating TalosClusterAddonRelease demo-red", func(b *bed) {
			edit(b, clusterOf("red", nil), func(c *clusterv1.Cluster) { c.Labels = on })
		}},
		"a Cluster is not any more": {"delete", "Cluster blue: deleting TalosClusterAddonRelease demo-blue", func(b *bed) {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels = nil })
		}},
		"a policy is changed": {"patch", "Cluster blue: writing TalosClusterAddonRelease demo-blue", func(b *bed) {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.DeletionPolicy = addonv1.DeletionOrphan })
		}},
		"a change is rolled out": {"patch", "Cluster blue: admitting TalosClusterAddonRelease demo-blue", func(b *bed) {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) {
				a.Spec.Rollout.MaxConcurrent, a.Spec.Source.Repository.Version = ptr.To(int32(1)), "2.0.0"
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for words, err := range map[string]error{
				"exceeded quota":         apierrors.NewForbidden(kind, "a release", errors.New("exceeded quota")),
				"failed calling webhook": apierrors.NewInternalError(errors.New("failed calling webhook")),
			} {
				b := newBed(t, clusterOf("blue", on), clusterOf("red", nil), addonOf("demo"))
				b.settle()
				b.failWrites(err, tt.verb)
				tt.change(b)
				b.settle()
				found := b.addon("demo")
				b.Expect(reason(found, addonv1.ReleasesReadyCondition)).To(Equal("False ReleasesNotReady"))
				b.Expect(reason(found, addonv1.AddonReadyCondition)).To(Equal("False ReleasesNotReady"))
				b.Expect(message(found, addonv1.ReleasesReadyCondition)).To(And(ContainSubstring(objects.Says+tt.says), ContainSubstring(words)))
				result, err := b.addons.Reconcile(t.Context(), requestFor(found))
				b.Expect(err).NotTo(HaveOccurred())
				b.Expect(result.RequeueAfter).To(BeNumerically("~", releaseRetryInterval, releaseRetryInterval/3))

				b.addons.Client = b.client
				b.settle()
				b.Expect(reason(b.addon("demo"), addonv1.AddonReadyCondition)).To(HavePrefix("True"))
				b.Expect(b.addon("demo").Status.ObservedGeneration).To(Equal(b.addon("demo").Generation))
			}
		})
	}
}

// TestAnAddonIsNotReadyWhereItHasNoRelease, whatever keeps it from being made.
func TestAnAddonIsNotReadyWhereItHasNoRelease(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), clusterOf("red", nil), addonOf("demo"))
	b.settle()
	b.failWrites(errors.New("dial tcp 10.0.0.1:443: connection refused"), "create")
	edit(b, clusterOf("red", nil), func(c *clusterv1.Cluster) { c.Labels = on })
	edit(b, b.addon("demo"), func(*addonv1.TalosClusterAddon) {})
	_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
	b.Expect(err).To(HaveOccurred())
	found := b.addon("demo")
	b.Expect(reason(found, addonv1.AddonReadyCondition)).To(Equal("False ReleasesNotReady"))
	b.Expect(message(found, addonv1.ReleasesReadyCondition)).To(HavePrefix("Cluster red: it has no TalosClusterAddonRelease yet"))
	b.Expect(message(found, addonv1.ReleasesReadyCondition)).NotTo(ContainSubstring("10.0.0.1"), "it would change with each try")
	b.Expect(found.Status.SelectedClusters).To(HaveValue(Equal(int32(2))))
	b.Expect(found.Status.ObservedGeneration).To(BeNumerically("<", found.Generation))
}

// forgetReleases has the cache of the controller of add-ons know no release.
func (b *bed) forgetReleases() {
	b.addons.Client = interceptor.NewClient(b.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, isOfReleases := list.(*addonv1.TalosClusterAddonReleaseList); isOfReleases {
				return nil
			}
			return c.List(ctx, list, options...)
		},
	})
}

// TestAReleaseThatTheCacheDoesNotKnowYetIsThere: the add-on has made it, and does not say that it
// has none.
func TestAReleaseThatTheCacheDoesNotKnowYetIsThere(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	before := b.addon("demo")
	b.Expect(reason(before, addonv1.ReleasesReadyCondition)).To(Equal("True ReleasesReady"))
	b.forgetReleases()
	_, err := b.addons.Reconcile(t.Context(), requestFor(before))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.addon("demo").Status).To(Equal(before.Status))
}

// TestAReleaseWithoutItsLabelsIsOneOfTheAddon, and gets them back: whoever has taken them away
// keeps no change from it, and no deletion waits for nothing.
func TestAReleaseWithoutItsLabelsIsOneOfTheAddon(t *testing.T) {
	unlabelled := func(t *testing.T) *bed {
		t.Helper()
		b := newBed(t, clusterOf("blue", on), addonOf("demo"))
		b.settle()
		edit(b, b.release("demo", "blue"), func(r *addonv1.TalosClusterAddonRelease) {
			r.Labels, r.Spec.AdmittedDigest = map[string]string{"team": "a"}, "old"
		})
		return b
	}
	for name, know := range map[string]func(b *bed){
		"the cache knows it":             func(*bed) {},
		"the cache does not know it yet": (*bed).forgetReleases,
	} {
		t.Run(name, func(t *testing.T) {
			b := unlabelled(t)
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) {
				a.Spec.DeletionPolicy, a.Spec.Release.TimeoutSeconds = addonv1.DeletionOrphan, ptr.To(int32(77))
			})
			know(b)
			_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
			b.Expect(err).NotTo(HaveOccurred())
			found := b.release("demo", "blue")
			b.Expect(found.Labels).To(And(HaveKeyWithValue("team", "a"), HaveKeyWithValue(addonv1.AddonNameLabel, "demo"), HaveKeyWithValue(clusterv1.ClusterNameLabel, "blue")))
			b.Expect(found.Spec.DeletionPolicy).To(Equal(addonv1.DeletionOrphan))
			b.Expect(found.Spec.TimeoutSeconds).To(HaveValue(Equal(int32(77))))
			b.Expect(found.Spec.AdmittedDigest).To(BeEmpty())
		})
	}
	for name, change := range map[string]func(b *bed){
		"its add-on is deleted":       func(b *bed) { b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed()) },
		"its Cluster is not selected": func(b *bed) { edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels = nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			b := unlabelled(t)
			change(b)
			_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(b.allAddons()).To(HaveLen(1), "it waits for the release")
			b.Expect(b.release("demo", "blue").DeletionTimestamp).NotTo(BeNil())
			b.settle()
			b.Expect(b.release("demo", "blue")).To(BeNil())
			b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
		})
	}
}

// TestAReleaseIsSeenByTheManagerThatSeesItsAddon: with --watch-filter that sees no event of an
// object without the label.
func TestAReleaseIsSeenByTheManagerThatSeesItsAddon(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Labels = map[string]string{clusterv1.WatchLabel: "ours"} }))
	b.settle()
	b.Expect(b.release("demo", "blue").Labels).To(HaveKeyWithValue(clusterv1.WatchLabel, "ours"))

	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Labels[clusterv1.WatchLabel] = "theirs" })
	b.settle()
	b.Expect(b.release("demo", "blue").Labels).To(HaveKeyWithValue(clusterv1.WatchLabel, "theirs"))
	edit(b, b.release("demo", "blue"), func(r *addonv1.TalosClusterAddonRelease) { delete(r.Labels, clusterv1.WatchLabel) })
	b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
	_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.release("demo", "blue").Labels).To(HaveKeyWithValue(clusterv1.WatchLabel, "theirs"), "its end is seen, too")
}

// TestNothingIsClaimedOfReleasesThatCannotBeRead.
func TestNothingIsClaimedOfReleasesThatCannotBeRead(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.addons.Client = interceptor.NewClient(b.client, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no cache")
		},
	})
	_, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
	b.Expect(err).To(MatchError(ContainSubstring("no cache")))
	found := b.addon("demo")
	b.Expect(reason(found, addonv1.AddonReadyCondition)).To(Equal("Unknown NotYetKnown"))
	b.Expect(found.Status.ReadyReleases).To(HaveValue(Equal(int32(1))), "it is what was last counted")
}

// TestAReleaseOfSomebodyElseIsLookedAtAgain: no event tells the add-on that it is gone.
func TestAReleaseOfSomebodyElseIsLookedAtAgain(t *testing.T) {
	theirs := &addonv1.TalosClusterAddonRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: naming.Release("demo", "blue")}}
	b := newBed(t, theirs, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Source.IntervalSeconds = ptr.To(int32(0)) }))
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.ReleasesReadyCondition)).To(Equal("False ReleaseConflict"))
	result, err := b.addons.Reconcile(t.Context(), requestFor(b.addon("demo")))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(result.RequeueAfter).To(BeNumerically("~", releaseRetryInterval, releaseRetryInterval/3))
}
