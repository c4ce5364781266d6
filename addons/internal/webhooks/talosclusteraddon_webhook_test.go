package webhooks

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

func addon(name string, change func(*addonv1.TalosClusterAddonSpec)) *addonv1.TalosClusterAddon {
	made := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: name}}
	made.Spec.ClusterSelector.MatchLabels = map[string]string{"a": "b"}
	if change != nil {
		change(&made.Spec)
	}

	return made
}

func dependsOn(names ...string) func(*addonv1.TalosClusterAddonSpec) {
	return func(spec *addonv1.TalosClusterAddonSpec) {
		for _, name := range names {
			spec.DependsOn = append(spec.DependsOn, addonv1.AddonReference{Name: name})
		}
	}
}

func TestWhatIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change  func(*addonv1.TalosClusterAddonSpec)
		message string
	}{
		"an add-on":                {},
		"a range of versions":      {change: func(s *addonv1.TalosClusterAddonSpec) { s.Source.Repository.Version = ">=1.2.0 <2.0.0" }},
		"no version":               {change: func(s *addonv1.TalosClusterAddonSpec) { s.Source.Repository.Version = "the newest" }, message: `spec.source.repository.version: Invalid value: "the newest": must be a version or a range`},
		"no version in a registry": {change: func(s *addonv1.TalosClusterAddonSpec) { s.Source.Registry.Version = "v" }, message: "spec.source.registry.version"},
		"a selector that is none": {change: func(s *addonv1.TalosClusterAddonSpec) {
			s.ClusterSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Near"}}
		}, message: "spec.clusterSelector"},
		"a template":                            {change: func(s *addonv1.TalosClusterAddonSpec) { s.ValuesTemplate = "a: {{ .Cluster.metadata.name }}" }},
		"a template that is none":               {change: func(s *addonv1.TalosClusterAddonSpec) { s.ValuesTemplate = "a: b\nc: {{ .Cluster" }, message: "spec.valuesTemplate: Invalid value: valuesTemplate: template: valuesTemplate:2: unclosed action"},
		"a template that reads the environment": {change: func(s *addonv1.TalosClusterAddonSpec) { s.ValuesTemplate = `{{ env "HOME" }}` }, message: `function "env" not defined`},
		"others that are there or not":          {change: dependsOn("base", "none")},
		"itself":                                {change: dependsOn("one"), message: `spec.dependsOn: Invalid value: "one -> one": add-ons cannot depend on themselves`},
		"itself by way of others":               {change: dependsOn("base", "two"), message: "one -> two -> three -> one"},
	} {
		t.Run(name, func(t *testing.T) {
			g, scheme := NewWithT(t), runtime.NewScheme()
			g.Expect(addonv1.AddToScheme(scheme)).To(Succeed())
			elsewhere := addon("base", dependsOn("one"))
			elsewhere.Namespace = "other"
			webhook := &TalosClusterAddon{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
				addon("one", dependsOn("three")), addon("base", nil), addon("two", dependsOn("three")), addon("three", dependsOn("one")), elsewhere,
			).Build()}
			made := addon("one", tt.change)
			_, err := webhook.ValidateCreate(t.Context(), made)
			_, updateErr := webhook.ValidateUpdate(t.Context(), addon("one", nil), made)
			if tt.message == "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(updateErr).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
			g.Expect(updateErr).To(MatchError(err.Error()))
			now := metav1.Now()
			made.DeletionTimestamp = &now
			_, err = webhook.ValidateUpdate(t.Context(), made, made)
			g.Expect(err).NotTo(HaveOccurred(), "what is being deleted is let go")
			_, err = webhook.ValidateDelete(t.Context(), made)
			g.Expect(err).NotTo(HaveOccurred())
		})
	}
}
