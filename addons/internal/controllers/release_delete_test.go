package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
)

func TestRemoval(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(b *bed)
		stays   bool
		waits   bool
		elapsed time.Duration
		left    string
	}{
		"it is uninstalled": {},
		"it stays with Orphan": {change: func(b *bed) {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.DeletionPolicy = addonv1.DeletionOrphan })
		}, stays: true, left: "orphaned 1"},
		"a cluster that is silent is waited for": {change: func(b *bed) { b.clusters.setReachable("blue", false) }, stays: true, waits: true},
		"but not for ever":                       {change: func(b *bed) { b.clusters.setReachable("blue", false) }, stays: true, elapsed: 16 * time.Minute, left: "timed_out 1"},
		"nor when a person says so": {change: func(b *bed) {
			b.clusters.setReachable("blue", false)
			edit(b, b.release("demo", "blue"), func(r *addonv1.TalosClusterAddonRelease) {
				r.Annotations = map[string]string{addonv1.ForceDeleteAnnotation: ""}
			})
		}, stays: true, left: "forced 1"},
		"an uninstallation that fails is tried again": {change: func(b *bed) { b.clusters.of("blue").Fail(helmfake.Uninstall, helmfake.Fault{Err: errors.New("no")}) }, elapsed: time.Minute},
		"but not for ever, either": {change: func(b *bed) {
			for range 1000 {
				b.clusters.of("blue").Fail(helmfake.Uninstall, helmfake.Fault{Err: errors.New("no")})
			}
		}, stays: true, elapsed: 16 * time.Minute, left: "timed_out 1"},
		"a Cluster that is gone blocks nothing": {change: func(b *bed) { b.Expect(b.client.Delete(b.t.Context(), clusterOf("blue", nil))).To(Succeed()) }, stays: true, left: "cluster_gone 1"},
		"a Cluster that is going away blocks nothing": {change: func(b *bed) {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Finalizers = []string{"example.com/kept"} })
			b.Expect(b.client.Delete(b.t.Context(), clusterOf("blue", nil))).To(Succeed())
		}, stays: true, left: "cluster_deleting 1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, clusterOf("blue", on), addonOf("demo"))
			b.settle()
			if tt.change != nil {
				tt.change(b)
				b.round()
			}
			b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
			b.settle()
			for elapsed := time.Duration(0); elapsed < tt.elapsed; elapsed += time.Minute {
				b.clock.Step(time.Minute)
				b.settle()
			}
			b.Expect(b.deployed("demo", "blue") != "").To(Equal(tt.stays))
			b.Expect(len(b.allAddons()) > 0).To(Equal(tt.waits))
			b.Expect(strings.Join(b.counted("capi_talos_addon_releases_left_behind_total"), ", ")).To(Equal(tt.left))
			if tt.waits {
				b.Expect(reason(b.addon("demo"), addonv1.AddonDeletingCondition)).To(Equal("True WaitingForReleases"))
				b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseDeletingCondition)).To(Equal("True UninstallFailed"))
			}
		})
	}
}

// TestARemovalThatEndsLateHasSucceeded: what is gone is not left behind.
func TestARemovalThatEndsLateHasSucceeded(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
	b.round()
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
	b.clock.Step(16 * time.Minute)
	b.settle()
	b.Expect(b.allAddons()).To(BeEmpty())
	b.Expect(b.counted("capi_talos_addon_releases_left_behind_total")).To(BeEmpty())
}

// TestARemovalIsTriedOnceMoreThoughItsTimeIsOver: nobody has tried it meanwhile.
func TestARemovalIsTriedOnceMoreThoughItsTimeIsOver(t *testing.T) {
	for name, tt := range map[string]struct {
		meanwhile func(b *bed)
		// then is how it goes on.
		then func(b *bed)
		left string
	}{
		"the manager was away": {meanwhile: func(b *bed) { b.start() }},
		"the Cluster was paused": {meanwhile: func(b *bed) {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) })
			b.settle()
		}, then: func(b *bed) {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Spec.Paused = nil })
		}},
		"the manager has not tried to connect yet": {meanwhile: func(b *bed) {
			b.start()
			b.clusters.setUntried(true)
		}, then: func(b *bed) {
			b.clusters.setReachable("blue", false)
			b.settle()
			b.Expect(b.release("demo", "blue")).NotTo(BeNil())
			result, err := b.releases.Reconcile(b.t.Context(), requestFor(b.release("demo", "blue")))
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(result.RequeueAfter).NotTo(BeZero(), "no event tells that it has tried")
			b.clusters.setUntried(false)
			b.clusters.setReachable("blue", true)
		}},
		"it cannot connect": {meanwhile: func(b *bed) { b.start() }, then: func(b *bed) { b.clusters.setReachable("blue", false) }, left: "timed_out 1"},
		"it fails again": {meanwhile: func(b *bed) { b.start() }, then: func(b *bed) {
			b.clusters.of("blue").Fail(helmfake.Uninstall, helmfake.Fault{Err: errors.New("no")})
		}, left: "timed_out 1"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, clusterOf("blue", on), addonOf("demo"))
			b.settle()
			b.clusters.setReachable("blue", false)
			b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
			b.settle()
			tt.meanwhile(b)
			b.clock.Step(16 * time.Minute)
			b.clusters.setReachable("blue", true)
			if tt.then != nil {
				tt.then(b)
			}
			b.settle()
			b.Expect(b.allAddons()).To(BeEmpty())
			b.Expect(b.deployed("demo", "blue") != "").To(Equal(tt.left != ""))
			b.Expect(strings.Join(b.counted("capi_talos_addon_releases_left_behind_total"), ", ")).To(Equal(tt.left))
		})
	}
}

// TestARemovalThatHasFailedAfterItsHistoryWasDeletedIsTold: Helm deletes it though objects do not go,
// or a hook after them fails, and nobody can tell any more what is left.
func TestARemovalThatHasFailedAfterItsHistoryWasDeletedIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		verb        helmfake.Verb
		fault       helmfake.Fault
		event, left string
	}{
		"the history is gone": {helmfake.Uninstall, helmfake.Fault{Err: errors.New("the hook says no"), Purged: true},
			"Warning ReleaseLeftBehind Release default/demo stays in Cluster blue: its history was deleted, but objects of it may be left: the hook says no", "incomplete 1"},
		"the history is there": {helmfake.Uninstall, helmfake.Fault{Err: errors.New("the hook says no")},
			"Normal Uninstall Release default/demo is uninstalled from Cluster blue", ""},
		"there was never one": {helmfake.Install, helmfake.Fault{Err: errors.New("the hook says no")},
			"Normal Uninstall Release default/demo is uninstalled from Cluster blue", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, clusterOf("blue", on), addonOf("demo"))
			b.clusters.of("blue").Fail(tt.verb, tt.fault)
			b.settle()
			b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
			b.settle()
			// What has failed is known to the next manager.
			b.start()
			b.settle()
			b.Expect(b.allAddons()).To(BeEmpty())
			b.Expect(strings.Join(b.counted("capi_talos_addon_releases_left_behind_total"), ", ")).To(Equal(tt.left))
			var told []string
			for len(b.events.Events) > 0 {
				told = append(told, <-b.events.Events)
			}
			b.Expect(told[len(told)-1]).To(Equal(tt.event))
		})
	}
}

// TestWhatWasInstalledUnseenIsUninstalled: the API server was lost in the middle of an
// installation, and the add-on is deleted before anybody looks again.
func TestWhatWasInstalledUnseenIsUninstalled(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	lost := fmt.Errorf("%w: no connection", release.ErrUnreachable)
	b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: lost, Midway: true, Dies: true})
	b.clusters.of("blue").Fail(helmfake.History, helmfake.Fault{}, helmfake.Fault{Err: lost})
	for b.deployed("demo", "blue") == "" {
		b.round()
	}
	b.Expect(b.client.Delete(t.Context(), b.addon("demo"))).To(Succeed())
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
	b.Expect(b.allAddons()).To(BeEmpty())
}
