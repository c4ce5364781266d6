package addons

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	"helm.sh/helm/v3/pkg/chart"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// others are charts that other people publish inside their Go modules, by their name.
// Nothing of them is changed, and their values are those that they come with, but for the
// switch with which cert-manager brings its CRDs.
var others = map[string]struct {
	published

	shelf, values string
	// hooks are the Jobs that its hooks run, from the installation to the end.
	hooks []string
	// kept is how many objects stay when it is uninstalled.
	kept int
}{
	// It has an APIService that nobody serves here: the API of the cluster is never whole.
	"metrics-server": {
		published: published{module: "sigs.k8s.io/metrics-server", folder: "charts/metrics-server", from: "v0.8.0", to: "v0.9.0"},
		shelf:     "repository",
	},
	// It has a CRD in the folder crds.
	"external-dns": {
		published: published{module: "sigs.k8s.io/external-dns", folder: "charts/external-dns", from: "v0.20.0", to: "v0.21.0"},
		shelf:     "registry", kept: 1,
	},
	// It has six CRDs among its templates, which it says are kept, and a hook.
	"cert-manager": {
		published: published{module: "github.com/cert-manager/cert-manager", folder: "deploy/charts/cert-manager", from: "v1.21.0", to: "v1.21.2", versionIsSet: true},
		shelf:     "repository", values: `{"crds": {"enabled": true}}`, hooks: []string{"cert-manager-startupapicheck"}, kept: 6,
	},
	// It has CRDs in a chart of its own, hooks at upgrades and deletions, and a ConfigMap
	// that it says is kept.
	"kyverno": {
		published: published{module: "github.com/kyverno/kyverno", folder: "charts/kyverno", from: "v1.13.4", to: "v1.14.0"},
		shelf:     "registry", hooks: []string{"kyverno-clean-reports", "kyverno-migrate-resources", "kyverno-scale-to-zero", "kyverno-remove-configmap"}, kept: 1,
	},
	// It has CRDs in a chart of its own, and the packed chart of somebody else.
	"metallb": {
		published: published{module: "go.universe.tf/metallb", folder: "charts/metallb", from: "v0.15.2", to: "v0.16.2"},
		shelf:     "repository",
	},
}

func TestChartsOfOthers(t *testing.T) {
	t.Parallel()
	for name, chart := range others {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &story{name: name, namespace: "of-" + name, from: chart.load(t, chart.from), to: chart.load(t, chart.to), values: chart.values}
			s.begin(t, shelves[chart.shelf](t))
			s.isInstalled(t)
			s.isCorrected(t)
			s.isUpgraded(t)
			s.isUninstalled(t, chart.kept)
			NewWithT(t).Expect(hooks.in(s.namespace)).To(Equal(chart.hooks))
		})
	}
}

// story is what one chart goes through. The release has the name of the chart.
type story struct {
	name, namespace string
	from, to        *chart.Chart
	values          string
	addon           *addonv1.TalosClusterAddon
}

// begin publishes both versions, and creates an add-on of the older one.
func (s *story) begin(t *testing.T, shelf shelf) {
	t.Helper()
	makeCluster(t, s.namespace)
	shelf.publish(t, packed(t, s.from))
	shelf.publish(t, packed(t, s.to))
	create(t, shelf.secrets(s.namespace, password)...)
	s.addon = addonOf(s.namespace, s.name, shelf.source(s.name, s.from.Metadata.Version))
	s.addon.Spec.Drift = addonv1.DriftSpec{Mode: addonv1.DriftCorrect, IntervalSeconds: ptr.To(int32(10))}
	if s.values != "" {
		s.addon.Spec.Values = &apiextensionsv1.JSON{Raw: []byte(s.values)}
	}
	create(t, s.addon)
}

// wanted are the objects that Helm renders from one of the charts.
func (s *story) wanted(t *testing.T, loaded *chart.Chart) objects {
	t.Helper()
	values := map[string]any{}
	NewWithT(t).Expect(yaml.Unmarshal([]byte(s.values), &values)).To(Succeed())

	return rendered(t, loaded, s.name, s.namespace, values)
}

// isInstalled waits until the older version is there, as Helm renders it, and was looked
// at without anything to correct.
func (s *story) isInstalled(t *testing.T) {
	t.Helper()
	g, ctx, wanted := withPatience(t), t.Context(), s.wanted(t, s.from)
	g.Eventually(deployed(ctx, s.addon)).Should(Equal(isReady(s.from.Metadata.Version)))
	g.Expect(inventory(ctx, g, s.name, s.namespace, wanted).withoutRecords()).To(Equal(wanted.names()))
	s.isNotDrifted(t)
	g.Expect(s.corrections(t)).To(BeZero())
	t.Logf("%s %s has %d objects", s.name, s.from.Metadata.Version, len(wanted))
}

// isNotDrifted waits until drift was looked for after the last change, and none is left.
func (s *story) isNotDrifted(t *testing.T) {
	t.Helper()
	g := withPatience(t)
	g.Eventually(func(g Gomega) {
		found, err := releaseOf(t.Context(), s.addon)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found.Status.DriftCheckedAt.After(found.Status.Deployed.DeployedAt.Time)).To(BeTrue())
		g.Expect(textOf(found, addonv1.DriftedCondition)).To(Equal("False NotDrifted: "))
	}).Should(Succeed())
}

// corrections is how often drift was corrected.
func (s *story) corrections(t *testing.T) int {
	t.Helper()
	g, count, found := NewWithT(t), 0, &eventsv1.EventList{}
	g.Expect(management.List(t.Context(), found, client.InNamespace(s.namespace))).To(Succeed())
	for _, event := range found.Items {
		if event.Reason != string(addonv1.ActionCorrectDrift) {
			continue
		}
		count++
		if event.Series != nil {
			count += int(event.Series.Count) - 1
		}
	}

	return count
}

// isCorrected deletes a Service and changes a Deployment, and waits until they are as they
// were. What somebody adds is nobody's drift.
func (s *story) isCorrected(t *testing.T) {
	t.Helper()
	g, ctx, wanted := withPatience(t), t.Context(), s.wanted(t, s.from)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: wanted.first("Service").Name}}
	changed := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: wanted.first("Deployment.apps").Name}}
	imageOf := func(deployment *appsv1.Deployment) *string { return &deployment.Spec.Template.Spec.Containers[0].Image }
	g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(service), service)).To(Succeed())
	g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
	image, deleted, before := *imageOf(changed), service.UID, s.deployed(t)

	*imageOf(changed) = "registry.invalid/another:v0"
	metav1.SetMetaDataAnnotation(&changed.ObjectMeta, "example.org/note", "added")
	g.Expect(workload.Update(ctx, changed)).To(Succeed())
	g.Expect(workload.Delete(ctx, service)).To(Succeed())

	g.Eventually(func(g Gomega) {
		g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(service), service)).To(Succeed())
		g.Expect(service.UID).NotTo(Equal(deleted))
		g.Expect(workload.Get(ctx, client.ObjectKeyFromObject(changed), changed)).To(Succeed())
		g.Expect(*imageOf(changed)).To(Equal(image))
	}).Should(Succeed())
	g.Eventually(func() int { return s.corrections(t) }).ShouldNot(BeZero())
	s.isNotDrifted(t)
	g.Expect(changed.Annotations).To(HaveKeyWithValue("example.org/note", "added"))
	g.Expect(s.deployed(t)).To(Equal(before), "it is the same revision")
}

// deployed is the revision that is deployed.
func (s *story) deployed(t *testing.T) addonv1.DeployedRelease {
	t.Helper()
	found, err := releaseOf(t.Context(), s.addon)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return found.Status.Deployed
}

// isUpgraded asks for the newer version, and waits until it is there as Helm renders it,
// and nothing of the older one that it has not.
func (s *story) isUpgraded(t *testing.T) {
	t.Helper()
	g, ctx, wanted := withPatience(t), t.Context(), s.wanted(t, s.to)
	before := s.corrections(t)
	edit(t, s.addon, func(a *addonv1.TalosClusterAddon) { setVersion(a, s.to.Metadata.Version) })
	g.Eventually(deployed(ctx, s.addon)).Should(Equal(isReady(s.to.Metadata.Version)))
	found := inventory(ctx, g, s.name, s.namespace, wanted)
	g.Expect(found.withoutRecords()).To(Equal(wanted.names()))
	for name, object := range wanted {
		if label := object.Labels["helm.sh/chart"]; label != "" {
			g.Expect(found[name].Labels).To(HaveKeyWithValue("helm.sh/chart", label), name)
		}
	}
	g.Expect(s.deployed(t).Revision).To(Equal(int32(2)))
	s.isNotDrifted(t)
	g.Expect(s.corrections(t)).To(Equal(before), "the upgrade leaves nothing to correct")
	t.Logf("%s %s has %d objects", s.name, s.to.Metadata.Version, len(wanted))
}

// isUninstalled deletes the add-on. What the chart says is kept stays, and what the folder
// crds has; so many objects, and nothing else.
func (s *story) isUninstalled(t *testing.T, kept int) {
	t.Helper()
	g, ctx := withPatience(t), t.Context()
	known := s.wanted(t, s.from)
	maps.Copy(known, s.wanted(t, s.to))
	g.Expect(management.Delete(ctx, s.addon)).To(Succeed())
	waitUntilGone(t, s.addon)
	g.Expect(inventory(ctx, g, s.name, s.namespace, known).names()).To(ConsistOf(known.kept()))
	g.Expect(known.kept()).To(HaveLen(kept))
}
