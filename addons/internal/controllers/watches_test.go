package controllers

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capicontroller "sigs.k8s.io/cluster-api/util/controller"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/naming"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
)

func TestAddonsLookAtAClusterThatTheyMaySelect(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*clusterv1.Cluster)
		passes bool
	}{
		"other labels":    {func(c *clusterv1.Cluster) { c.Labels = map[string]string{"addons": "off"} }, true},
		"it is going":     {func(c *clusterv1.Cluster) { c.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
		"it is paused":    {func(c *clusterv1.Cluster) { c.Spec.Paused = ptr.To(true) }, true},
		"its annotations": {func(c *clusterv1.Cluster) { c.Annotations = map[string]string{clusterv1.PausedAnnotation: ""} }, true},
		"another status":  {func(c *clusterv1.Cluster) { c.Status.Phase = "Provisioned" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			after := clusterOf("blue", on)
			tt.change(after)
			NewWithT(t).Expect(selectable().Update(event.UpdateEvent{ObjectOld: clusterOf("blue", on), ObjectNew: after})).To(Equal(tt.passes))
		})
	}
	NewWithT(t).Expect(selectable().Create(event.CreateEvent{Object: clusterOf("blue", on)})).To(BeTrue())
	NewWithT(t).Expect(selectable().Delete(event.DeleteEvent{Object: clusterOf("blue", on)})).To(BeTrue())
}

func TestReleasesLookAtAnAddonThatAsksForSomethingElse(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*addonv1.TalosClusterAddon)
		passes bool
	}{
		"another spec":       {func(a *addonv1.TalosClusterAddon) { a.Generation++ }, true},
		"an annotation":      {func(a *addonv1.TalosClusterAddon) { a.Annotations = map[string]string{addonv1.PlanAnnotation: ""} }, true},
		"another chart":      {func(a *addonv1.TalosClusterAddon) { a.Status.Chart.Digest = "sha256:other" }, true},
		"one more is ready":  {func(a *addonv1.TalosClusterAddon) { a.Status.ReadyReleases = ptr.To(int32(7)) }, false},
		"another condition":  {func(a *addonv1.TalosClusterAddon) { a.Status.Conditions = []metav1.Condition{{Type: "Ready"}} }, false},
		"nothing, a resync":  {func(*addonv1.TalosClusterAddon) {}, false},
		"its managed fields": {func(a *addonv1.TalosClusterAddon) { a.ManagedFields = []metav1.ManagedFieldsEntry{{}} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			after := addonOf("demo")
			tt.change(after)
			NewWithT(t).Expect(releasable().Update(event.UpdateEvent{ObjectOld: addonOf("demo"), ObjectNew: after})).To(Equal(tt.passes))
		})
	}
	NewWithT(t).Expect(releasable().Create(event.CreateEvent{Object: addonOf("demo")})).To(BeTrue())
	NewWithT(t).Expect(releasable().Delete(event.DeleteEvent{Object: addonOf("demo")})).To(BeTrue())
}

func TestReleasesLookAtOthersThatTheyMayWaitFor(t *testing.T) {
	isReady := func(r *addonv1.TalosClusterAddonRelease) {
		r.Status.DesiredDigest, r.Status.Deployed.Digest = "one", "one"
		r.Status.Conditions = []metav1.Condition{{Type: addonv1.ReleaseReadyCondition, Status: metav1.ConditionTrue}}
	}
	for name, tt := range map[string]struct {
		change func(*addonv1.TalosClusterAddonRelease)
		passes bool
	}{
		"it is ready":            {isReady, true},
		"it knows what is asked": {func(r *addonv1.TalosClusterAddonRelease) { r.Status.AddonGeneration++ }, true},
		"it is going":            {func(r *addonv1.TalosClusterAddonRelease) { r.DeletionTimestamp = ptr.To(metav1.Now()) }, true},
		"it is acted on":         {func(r *addonv1.TalosClusterAddonRelease) { r.Status.Action = addonv1.ActionInstall }, false},
	} {
		t.Run(name, func(t *testing.T) {
			after := &addonv1.TalosClusterAddonRelease{}
			tt.change(after)
			NewWithT(t).Expect(awaited().Update(event.UpdateEvent{ObjectOld: &addonv1.TalosClusterAddonRelease{}, ObjectNew: after})).To(Equal(tt.passes))
		})
	}
	g, ready := NewWithT(t), &addonv1.TalosClusterAddonRelease{}
	isReady(ready)
	g.Expect(awaited().Update(event.UpdateEvent{ObjectOld: ready, ObjectNew: &addonv1.TalosClusterAddonRelease{}})).To(BeTrue(), "it is no longer ready")
	g.Expect(awaited().Create(event.CreateEvent{Object: ready})).To(BeTrue(), "the watch was broken meanwhile")
	g.Expect(awaited().Create(event.CreateEvent{Object: &addonv1.TalosClusterAddonRelease{}})).To(BeFalse())
	g.Expect(awaited().Delete(event.DeleteEvent{Object: ready})).To(BeTrue())
}

func TestThoseThatMayWaitForAReleaseAreReconciled(t *testing.T) {
	dependsOn := func(name string) func(*addonv1.TalosClusterAddon) {
		return func(a *addonv1.TalosClusterAddon) {
			a.Spec.DependsOn = []addonv1.AddonReference{{Name: name}}
		}
	}
	b := newBed(t, clusterOf("blue", on), clusterOf("red", on), addonOf("base"), addonOf("app", dependsOn("base")), addonOf("top", dependsOn("app")), addonOf("other"),
		addonOf("cni", func(a *addonv1.TalosClusterAddon) { a.Spec.Phase = addonv1.PhaseNetwork }))
	for _, cluster := range []string{"blue", "red"} {
		b.clusters.setReachable(cluster, false)
	}
	b.settle()
	reconciled := func(release *addonv1.TalosClusterAddonRelease) (names []string) {
		for _, req := range b.releases.releaseToReleases(t.Context(), release) {
			names = append(names, req.Name)
		}
		return names
	}
	of := func(addons ...string) (names []string) {
		for _, addon := range addons {
			names = append(names, naming.Release(addon, "blue"))
		}
		return names
	}
	b.Expect(reconciled(b.release("base", "blue"))).To(ConsistOf(of("app", "top")))
	b.Expect(reconciled(b.release("app", "blue"))).To(ConsistOf(of("top")))
	b.Expect(reconciled(b.release("other", "blue"))).To(BeEmpty())
	b.Expect(reconciled(b.release("cni", "blue"))).To(ConsistOf(of("base", "app", "top", "other")))
	// Nobody knows who has waited for an add-on that is gone.
	orphan := b.release("other", "blue")
	orphan.Name, orphan.Spec.AddonName = "gone.blue", "gone"
	b.Expect(reconciled(orphan)).To(ConsistOf(of("base", "app", "top", "other", "cni")))
	// Who is ready waits for nobody.
	b.clusters.setReachable("blue", true)
	b.settle()
	b.Expect(reconciled(b.release("cni", "blue"))).To(BeEmpty())
}

func TestTheEndOfAJobIsRecordedAtOnce(t *testing.T) {
	b, limiter, letGo := newBed(t), capicontroller.NewFakeController(), make(chan struct{})
	b.releases.pace.Limiter = limiter
	key := jobs.Key{Namespace: namespace, Name: "demo", Cluster: "blue"}
	req := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: namespace, Name: "demo"}}
	told := func() []ctrl.Request {
		var found event.GenericEvent
		b.Eventually(b.releases.Jobs.Events()).Should(Receive(&found))
		return b.releases.jobToRelease(t.Context(), found.Object)
	}
	b.releases.Jobs.Start(key, func(_ context.Context, progress func(addonv1.ReleaseAction)) release.Result {
		progress(addonv1.ActionInstall)
		<-letGo
		return release.Result{}
	})
	b.Expect(told()).To(Equal([]ctrl.Request{req}))
	b.Expect(limiter.Deferrals).To(BeEmpty(), "what is begun can wait for the limit of Cluster API")
	close(letGo)
	b.Expect(told()).To(Equal([]ctrl.Request{req}))
	b.Expect(limiter.Deferrals).To(Equal(map[ctrl.Request]time.Time{req: {}}))
}

// TestAnActionIsToldWhileItIsUnderWay, and no longer: the manager that has begun it may
// have died.
func TestAnActionIsToldWhileItIsUnderWay(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo"))
	b.settle()
	found := b.release("demo", "blue")
	found.Status.Action = addonv1.ActionUpgrade
	b.Expect(b.client.Status().Update(t.Context(), found)).To(Succeed())
	b.start()
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Action).To(BeEmpty())
}
