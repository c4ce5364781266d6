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
