package controllers

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

func TestAPlanSaysWhatWouldBeDone(t *testing.T) {
	planned := map[string]string{addonv1.PlanAnnotation: ""}
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) { a.Annotations = planned }))
	b.settle()
	b.Expect(b.release("demo", "blue").Status.Plan.Action).To(Equal(addonv1.ActionInstall))
	b.Expect(reason(b.release("demo", "blue"), addonv1.ReleaseReadyCondition)).To(Equal("Unknown Planned"))
	b.Expect(b.deployed("demo", "blue")).To(BeEmpty())
	b.Expect(b.counted("capi_talos_addon_actions_total")).To(BeEmpty(), "a plan is no action")
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

// TestAPlanThatCannotBeMadeSaysWhy, in place of one for something else, and is made later.
func TestAPlanThatCannotBeMadeSaysWhy(t *testing.T) {
	b := newBed(t, clusterOf("blue", on), addonOf("demo", func(a *addonv1.TalosClusterAddon) {
		a.Annotations = map[string]string{addonv1.PlanAnnotation: ""}
		a.Spec.Release.NamespacePolicy = addonv1.NamespaceRequire
	}))
	b.settle()
	b.Expect(message(b.release("demo", "blue"), addonv1.ReleasedCondition)).To(HavePrefix("status.plan says what would be done; "))

	b.clusters.of("blue").namespaceMissing = true
	edit(b, b.addon("demo"), func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.Version = "2.0.0" })
	b.settle()
	versions := b.versions()
	for range 3 {
		found := b.release("demo", "blue")
		b.Expect(reason(found, addonv1.ReleaseReadyCondition)).To(Equal("Unknown Planned"))
		b.Expect(message(found, addonv1.ReleasedCondition)).To(Equal("nothing is done while the add-on has the annotation addons.cluster.x-k8s.io/plan; " +
			"what would be cannot be said, and is tried again: namespace default is not there; make it, or set release.namespacePolicy to Create"))
		b.Expect(found.Status.Plan).To(Equal(addonv1.ReleasePlan{Message: "namespace default is not there; make it, or set release.namespacePolicy to Create"}))
		b.clock.Step(unreachableInterval)
		b.settle()
	}
	b.Expect(b.versions()).To(Equal(versions), "the same again is not written again")

	b.clusters.of("blue").namespaceMissing = false
	b.clock.Step(unreachableInterval)
	b.settle()
	found := b.release("demo", "blue")
	b.Expect(message(found, addonv1.ReleasedCondition)).To(HavePrefix("status.plan says what would be done; "))
	b.Expect(found.Status.Plan).To(And(HaveField("Action", addonv1.ActionInstall), HaveField("Digest", found.Status.DesiredDigest), HaveField("Message", "")))
}
