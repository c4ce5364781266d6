package order

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

func TestSelects(t *testing.T) {
	cluster := &metav1.ObjectMeta{Labels: map[string]string{"tier": "gold"}}
	for name, tt := range map[string]struct {
		selector metav1.LabelSelector
		all      *bool
		want     bool
	}{
		"its labels":                        {selector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}, want: true},
		"other labels":                      {selector: metav1.LabelSelector{MatchLabels: map[string]string{"tier": "silver"}}},
		"an expression":                     {selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier", Operator: metav1.LabelSelectorOpExists}}}, want: true},
		"an empty selector selects nothing": {},
		"all":                               {all: ptr.To(true), want: true},
		"not all":                           {all: ptr.To(false)},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := Selects(&addonv1.TalosClusterAddon{Spec: addonv1.TalosClusterAddonSpec{ClusterSelector: tt.selector, MatchAll: tt.all}}, cluster)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(Equal(tt.want))
		})
	}
}

func TestMayWaitFor(t *testing.T) {
	addon := func(name string, phase addonv1.Phase, dependsOn ...string) addonv1.TalosClusterAddon {
		made := addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: addonv1.TalosClusterAddonSpec{Phase: phase}}
		for _, other := range dependsOn {
			made.Spec.DependsOn = append(made.Spec.DependsOn, addonv1.AddonReference{Name: other})
		}
		return made
	}
	addons := []addonv1.TalosClusterAddon{
		addon("network", addonv1.PhaseNetwork), addon("other network", addonv1.PhaseNetwork, "network"),
		addon("base", ""), addon("middle", "", "base"), addon("top", "", "gone", "middle"), addon("round", "", "about"), addon("about", "", "round"),
	}
	waits := map[string][]string{}
	for i := range addons {
		for j := range addons {
			if MayWaitFor(&addons[i], &addons[j], addons) {
				waits[addons[i].Name] = append(waits[addons[i].Name], addons[j].Name)
			}
		}
	}
	NewWithT(t).Expect(waits).To(Equal(map[string][]string{
		"other network": {"network"},
		"base":          {"network", "other network"},
		"middle":        {"network", "other network", "base"},
		"top":           {"network", "other network", "base", "middle"},
		"round":         {"network", "other network", "round", "about"},
		"about":         {"network", "other network", "round", "about"},
	}))
}

// released is a release in some state of a rollout of "new".
func released(state string) addonv1.TalosClusterAddonRelease {
	made := addonv1.TalosClusterAddonRelease{}
	made.Status.DesiredDigest, made.Status.Deployed.Digest = "new", "old"
	switch state {
	case "done":
		made.Status.Deployed.Digest = "new"
		made.Status.Conditions = []metav1.Condition{{Type: addonv1.ReleaseReadyCondition, Status: metav1.ConditionTrue}}
	case "changing":
		made.Spec.AdmittedDigest = "new"
	case "deployed, not ready":
		made.Spec.AdmittedDigest, made.Status.Deployed.Digest = "new", "new"
	case "unreachable":
		made.Spec.AdmittedDigest = "new"
		made.Status.Conditions = []metav1.Condition{{Type: addonv1.ClusterReachableCondition, Status: metav1.ConditionUnknown, Reason: addonv1.ClusterUnreachableReason}}
	case "without control plane":
		made.Spec.AdmittedDigest = "new"
		made.Status.Conditions = []metav1.Condition{{Type: addonv1.ClusterReachableCondition, Status: metav1.ConditionFalse, Reason: addonv1.WaitingForControlPlaneReason}}
	case "reachable":
		made.Spec.AdmittedDigest = "new"
		made.Status.Conditions = []metav1.Condition{{Type: addonv1.ClusterReachableCondition, Status: metav1.ConditionTrue, Reason: addonv1.ClusterReachableReason}}
	case "failed":
		made.Spec.AdmittedDigest, made.Status.Failure = "new", addonv1.ReleaseFailure{Count: 1, Digest: "new"}
	case "failed before":
		made.Status.Failure = addonv1.ReleaseFailure{Count: 1, Digest: "old"}
	case "unknown":
		made.Status.DesiredDigest = ""
	case "going":
		made.DeletionTimestamp = ptr.To(metav1.Now())
	}

	return made
}

func TestNext(t *testing.T) {
	for name, tt := range map[string]struct {
		concurrent, failures *int32
		states               []string
		want                 []int
		stopped              bool
	}{
		"all at once":                          {states: []string{"waiting", "waiting", "failed before"}, want: []int{0, 1, 2}},
		"so many at a time":                    {concurrent: ptr.To(int32(2)), states: []string{"waiting", "waiting", "waiting"}, want: []int{0, 1}},
		"as there is room":                     {concurrent: ptr.To(int32(2)), states: []string{"done", "changing", "waiting", "waiting"}, want: []int{2}},
		"what is not ready takes room":         {concurrent: ptr.To(int32(1)), states: []string{"deployed, not ready", "waiting"}, want: []int{}},
		"what cannot be reached takes none":    {concurrent: ptr.To(int32(1)), states: []string{"unreachable", "waiting", "waiting"}, want: []int{1}},
		"nor what has no control plane yet":    {concurrent: ptr.To(int32(1)), states: []string{"without control plane", "waiting", "waiting"}, want: []int{1}},
		"what can be reached takes one":        {concurrent: ptr.To(int32(1)), states: []string{"reachable", "waiting"}, want: []int{}},
		"what has failed takes none":           {concurrent: ptr.To(int32(1)), states: []string{"failed", "waiting"}, want: []int{1}},
		"until too many have failed":           {failures: ptr.To(int32(1)), states: []string{"failed", "failed", "waiting"}, stopped: true},
		"up to so many":                        {failures: ptr.To(int32(2)), states: []string{"failed", "failed", "waiting"}, want: []int{2}},
		"none may fail":                        {failures: ptr.To(int32(0)), states: []string{"failed", "waiting"}, stopped: true},
		"nothing is left":                      {failures: ptr.To(int32(0)), states: []string{"failed", "done"}},
		"what is going or unknown is left out": {states: []string{"going", "unknown", "waiting"}, want: []int{2}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var releases []addonv1.TalosClusterAddonRelease
			for _, state := range tt.states {
				releases = append(releases, released(state))
			}
			next, stopped := Next(addonv1.RolloutSpec{MaxConcurrent: tt.concurrent, MaxFailures: tt.failures}, releases)
			g.Expect(fmt.Sprint(next)).To(Equal(fmt.Sprint(tt.want)))
			g.Expect(stopped).To(Equal(tt.stopped))
		})
	}
}
