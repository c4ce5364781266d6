package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	helmfake "github.com/capi-talos/capi-talos/addons/internal/release/fake"
	"github.com/capi-talos/capi-talos/addons/internal/source"
)

var demoTarget = release.Target{Namespace: "default", Name: "demo"}

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

func TestEveryChangeIsRolledOut(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tokens"}, Data: map[string][]byte{"values.yaml": []byte("token: one")}}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "more"}, Data: map[string]string{"v": "size: 1"}}
	b := newBed(t, secret, configMap, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Values = &apiextensionsv1.JSON{Raw: []byte(`{"replicas":1}`)}
		a.Spec.ValuesTemplate = "cluster: {{ .Cluster.metadata.name }}-{{ dig \"metadata\" \"annotations\" \"tier\" \"none\" .Cluster }}"
		a.Spec.ValuesFrom = []addonv1.ValuesReference{
			{Kind: addonv1.SecretValues, Name: "tokens"}, {Kind: addonv1.ConfigMapValues, Name: "more", Key: "v"}, {Kind: addonv1.SecretValues, Name: "none", Presence: addonv1.PresenceOptional},
		}
	}))
	b.settle()
	revision := 1
	for name, change := range map[string]func(){
		"a value": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Values.Raw = []byte(`{"replicas":2}`) })
		},
		"a Secret":    func() { edit(b, secret, func(s *corev1.Secret) { s.Data["values.yaml"] = []byte("token: two") }) },
		"a ConfigMap": func() { edit(b, configMap, func(c *corev1.ConfigMap) { c.Data["v"] = "size: 2" }) },
		"what was optional": func() {
			b.create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}, Data: map[string][]byte{"values.yaml": []byte("x: y")}})
		},
		"the Cluster": func() {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Annotations = map[string]string{"tier": "big"} })
		},
		"an option": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Release.HistoryLimit = ptr.To(int32(7)) })
		},
		"the version": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
		},
		"a version of the range": func() {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "" })
			b.shelf.versions["demo"] = "3.0.0"
			b.clock.Step(time.Hour)
		},
	} {
		change()
		b.settle()
		revision++
		b.Expect(b.deployed("demo", "blue")).To(HavePrefix(fmt.Sprint(revision, " ")), name)
		b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"), name)
	}
	b.clusters.of("blue").Calls()
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) {
		a.Labels, a.Spec.Drift.Mode, a.Spec.Failure.Retries = on, addonv1.DriftIgnore, ptr.To(int32(9))
	})
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty(), "how to go on when something fails is no part of the release")
}

func TestValuesAreSecret(t *testing.T) {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tokens"}, Data: map[string][]byte{"values.yaml": []byte("token: hunter2")}}
	b := newBed(t, secret, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "tokens"}}
	}))
	b.clusters.of("blue").Fail(helmfake.Install, helmfake.Fault{Err: errors.New(`Invalid value: "hunter2"`), Midway: true})
	b.settle()
	failed := b.release("demo", "blue")
	b.Expect(failed.Status.Failure.Message).To(Equal(`Invalid value: "***"`))
	b.Expect(fmt.Sprintf("%+v", failed)).NotTo(ContainSubstring("hunter2"))
	for len(b.events.Events) > 0 {
		b.Expect(<-b.events.Events).NotTo(ContainSubstring("hunter2"))
	}
	edit(b, secret, func(s *corev1.Secret) { s.Data["values.yaml"] = []byte("- hunter3") })
	b.settle()
	found := conditions.Get(b.release("demo", "blue"), addonv1.ReleasedCondition)
	b.Expect(found.Reason).To(Equal(addonv1.ValuesInvalidReason))
	b.Expect(found.Message).To(Equal("valuesFrom[0]: Secret tokens, key values.yaml: is no YAML with values by name"))
}

func TestValuesThatCannotBeMadeAreToldWithTheirPlace(t *testing.T) {
	for message, change := range map[string]func(*addonv1.TalosClusterAddon){
		"valuesFrom[0]: Secret none, key values.yaml: it is missing": func(a *addonv1.TalosClusterAddon) {
			a.Spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: "none"}}
		},
		`valuesTemplate: template: valuesTemplate:2:14: executing "valuesTemplate" at <.Cluster.nothing.at>: map has no entry for key "nothing"`: func(a *addonv1.TalosClusterAddon) {
			a.Spec.ValuesTemplate = "a: b\nc: {{ .Cluster.nothing.at }}"
		},
	} {
		b := newBed(t, clusterOf("blue", on), addonOf("demo", change))
		b.settle()
		found := conditions.Get(b.release("demo", "blue"), addonv1.ReleasedCondition)
		b.Expect(found.Reason).To(Equal(addonv1.ValuesInvalidReason))
		b.Expect(found.Message).To(Equal(message))
		b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	}
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

func TestAddonsWaitForOthers(t *testing.T) {
	b := newBed(t, clusterOf("blue", on),
		addonOf("app", func(a *addonv1.TalosClusterAddon) { a.Spec.DependsOn = []addonv1.AddonReference{{Name: "base"}} }),
		addonOf("other"),
		addonOf("cni", func(a *addonv1.TalosClusterAddon) {
			a.Spec.Phase, a.Spec.Source.Repository.Chart = addonv1.PhaseNetwork, "cni"
		}),
	)
	b.clusters.of("blue").waiting = "none of the 1 nodes is ready"
	b.settle()
	b.Expect(b.deployed("cni", "blue")).To(Equal("1 1.0.0"), "it does not wait for nodes")
	b.Expect(reason(b.release("cni", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("False WaitingForResources"))
	b.Expect(reason(b.release("other", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForNetwork"))
	b.Expect(reason(b.release("app", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForDependencies"))
	b.Expect(b.deployed("other", "blue")).To(BeEmpty())

	b.clusters.of("blue").waiting = ""
	b.clock.Step(readyInterval)
	b.settle()
	b.Expect(reason(b.release("cni", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	b.Expect(b.deployed("other", "blue")).To(Equal("1 1.0.0"))
	b.Expect(b.deployed("app", "blue")).To(BeEmpty(), "what it depends on is not there")

	b.create(addonOf("base"))
	b.settle()
	b.Expect(b.deployed("app", "blue")).To(Equal("1 1.0.0"))

	// A change of both goes in order.
	b.clusters.of("blue").Fail(helmfake.Upgrade, helmfake.Fault{Err: errors.New("it is broken"), Midway: true})
	edit(b, b.addon("base"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	edit(b, b.addon("app"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	b.settle()
	b.Expect(b.deployed("app", "blue")).To(Equal("1 1.0.0"))
	b.clock.Step(time.Minute)
	b.settle()
	b.Expect(b.deployed("app", "blue")).To(Equal("2 2.0.0"))
}

func TestACircleOfDependenciesIsTold(t *testing.T) {
	on := func(names ...string) func(*addonv1.TalosClusterAddon) {
		return func(a *addonv1.TalosClusterAddon) {
			for _, name := range names {
				a.Spec.DependsOn = append(a.Spec.DependsOn, addonv1.AddonReference{Name: name})
			}
		}
	}
	b := newBed(t, clusterOf("blue", map[string]string{"addons": "on"}), addonOf("a", on("x", "b")), addonOf("b", on("c")), addonOf("c", on("a")), addonOf("x"))
	b.settle()
	found := conditions.Get(b.release("a", "blue"), addonv1.ReleasedCondition)
	b.Expect(found.Reason).To(Equal(addonv1.DependencyCycleReason))
	b.Expect(found.Message).To(Equal("dependsOn goes round in a circle: a -> b -> c -> a"))
	b.Expect(reason(b.release("x", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
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

func TestRemoval(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(b *bed)
		stays   bool
		waits   bool
		elapsed time.Duration
	}{
		"it is uninstalled": {},
		"it stays with Orphan": {change: func(b *bed) {
			edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.DeletionPolicy = addonv1.DeletionOrphan })
		}, stays: true},
		"a cluster that is silent is waited for": {change: func(b *bed) { b.clusters.setReachable("blue", false) }, stays: true, waits: true},
		"but not for ever":                       {change: func(b *bed) { b.clusters.setReachable("blue", false) }, stays: true, elapsed: 16 * time.Minute},
		"nor when a person says so": {change: func(b *bed) {
			b.clusters.setReachable("blue", false)
			edit(b, b.release("demo", "blue"), func(r *addonv1.TalosClusterAddonRelease) {
				r.Annotations = map[string]string{addonv1.ForceDeleteAnnotation: ""}
			})
		}, stays: true},
		"an uninstallation that fails is tried again": {change: func(b *bed) { b.clusters.of("blue").Fail(helmfake.Uninstall, helmfake.Fault{Err: errors.New("no")}) }, elapsed: time.Minute},
		"but not for ever, either": {change: func(b *bed) {
			for range 1000 {
				b.clusters.of("blue").Fail(helmfake.Uninstall, helmfake.Fault{Err: errors.New("no")})
			}
		}, stays: true, elapsed: 16 * time.Minute},
		"a Cluster that is gone blocks nothing": {change: func(b *bed) { b.Expect(b.client.Delete(b.t.Context(), clusterOf("blue", nil))).To(Succeed()) }, stays: true},
		"a Cluster that is going away blocks nothing": {change: func(b *bed) {
			edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Finalizers = []string{"example.com/kept"} })
			b.Expect(b.client.Delete(b.t.Context(), clusterOf("blue", nil))).To(Succeed())
		}, stays: true},
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
			if tt.waits {
				b.Expect(reason(b.addon("demo"), addonv1.AddonDeletingCondition)).To(Equal("True WaitingForReleases"))
				b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseDeletingCondition)).To(Equal("True UninstallFailed"))
			}
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
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Drift.Mode = addonv1.DriftCorrect })
	b.clock.Step(10 * time.Minute)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.DriftedCondition)).To(Equal("False NotDrifted"))
	b.Expect(b.clusters.of("blue").drifted).To(BeEmpty())
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
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

func TestSourcesThatHaveNoChart(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	b.shelf.err = &source.Error{Reason: addonv1.SourceUnreachableReason, Message: "no connection"}
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("False SourceUnreachable"))
	b.Expect(b.addon("demo").Status.Chart.Version).To(Equal("1.0.0"), "what is known stays")
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "9.x" })
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(Equal("Unknown WaitingForChart"))
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"), "nothing else is rolled out")
	b.shelf.err = nil
	b.clock.Step(time.Minute)
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 9.x"))
}

func TestASourceIsAskedOnceAndNotForEachCluster(t *testing.T) {
	var objects []client.Object
	for i := range 8 {
		objects = append(objects, clusterOf(fmt.Sprint("c", i), on))
	}
	b := newBed(t, append(objects, addonOf("demo"))...)
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(1))
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(2))
}

func TestSecretsOfSources(t *testing.T) {
	opaque := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login"}, Type: corev1.SecretTypeOpaque}
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.CredentialsSecretName = "login" }))
	b.settle()
	b.Expect(conditions.GetMessage(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("there is no Secret login"))
	b.create(opaque)
	b.settle()
	b.Expect(conditions.GetMessage(b.addon("demo"), addonv1.ChartAvailableCondition)).To(ContainSubstring("needs one of type kubernetes.io/basic-auth"))
	edit(b, opaque, func(s *corev1.Secret) { s.Type = corev1.SecretTypeBasicAuth })
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.AddonReadyCondition)).To(Equal("True Ready"))

	asked := b.shelf.asked
	b.clusters.of("blue").Calls()
	edit(b, opaque, func(s *corev1.Secret) { s.Data = map[string][]byte{"password": []byte("new")} })
	b.settle()
	b.Expect(b.shelf.asked).To(Equal(asked+1), "new credentials are used at once")
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty(), "and change no release")
}

func TestAChartOfAConfigMap(t *testing.T) {
	packed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "chart"}, BinaryData: map[string][]byte{"chart.tgz": []byte("1.0.0")}}
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Source = addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: "chart"}}
	}))
	b.settle()
	b.Expect(reason(b.addon("demo"), addonv1.ChartAvailableCondition)).To(Equal("False SourceNotFound"))
	b.create(packed)
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	edit(b, packed, func(c *corev1.ConfigMap) { c.BinaryData["chart.tgz"] = []byte("2.0.0") })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("2 2.0.0"))
}

func TestAPlanSaysWhatWouldBeDone(t *testing.T) {
	planned := map[string]string{addonv1.PlanAnnotation: ""}
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Annotations = planned }))
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Plan.Action).To(Equal(addonv1.ActionInstall))
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("Unknown Planned"))
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
	b.clusters.of("blue").Calls()
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty(), "it is planned once")

	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Annotations = nil })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	b.Expect(b.release("demo", "blue").Status.Plan).To(BeZero())

	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Annotations, a.Spec.Source.Repository.Version = planned, "2.0.0" })
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Plan.Action).To(Equal(addonv1.ActionUpgrade))
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	edit(b, clusterOf("blue", nil), func(c *clusterv1.Cluster) { c.Labels = nil })
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Plan.Action).To(Equal(addonv1.ActionUninstall))
	b.Expect(b.deployed("demo", "blue")).To(Equal("1 1.0.0"))
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Annotations = nil })
	b.settle()
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
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

func TestAClusterThatIsNotThereYetIsWaitedFor(t *testing.T) {
	young := clusterOf("blue", on)
	young.Status.Initialization.ControlPlaneInitialized = nil
	b := newBed(t, young, addonOf("demo"))
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("False WaitingForControlPlane"))
	b.Expect(b.clusters.of("blue").Calls()).To(BeEmpty())
	b.clusters.setReachable("blue", false)
	young = clusterOf("blue", nil)
	b.Expect(b.client.Get(t.Context(), client.ObjectKeyFromObject(young), young)).To(Succeed())
	young.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	b.Expect(b.client.Status().Update(t.Context(), young)).To(Succeed())
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("Unknown ClusterUnreachable"))
	b.clusters.setReachable("blue", true)
	b.settle()
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("True Ready"))
}
