package integration

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// TestDefaultsAreDeterministic (T3): made twice, an object is the same twice, and
// what was defaulted once is not defaulted again. Else the topology controller
// would replace templates for ever.
func TestDefaultsAreDeterministic(t *testing.T) {
	const namespace = "defaults"
	createNamespace(t, namespace)
	g := NewWithT(t)
	sources := objects(g, samples(t, namespace))
	sources = append(sources, objects(g, flavor(t, namespace, "", map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"}))...)
	sources = append(sources, objects(g, flavor(t, namespace, "metal-vip", map[string]string{
		"CONTROL_PLANE_VIP": "192.0.2.1", "CONTROL_PLANE_VIP_LINK": "eno1", "CONTROL_PLANE_SUBNET": "192.0.2.0/24",
	}))...)
	sources = append(sources, objects(g, flavor(t, namespace, "topology", map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"}))...)
	for _, name := range []string{"container", "container-topology"} {
		sources = append(sources, objects(g, flavor(t, namespace, name, nil))...)
	}
	for _, object := range sources {
		if !isOurGroup(object.GroupVersionKind().Group) {
			continue
		}
		object.SetNamespace(namespace)
		made := func(of *unstructured.Unstructured) any {
			copied := of.DeepCopy()
			g.Expect(world.Client.Create(t.Context(), copied, client.DryRunAll)).To(Succeed(), nameOf(object))
			return copied.Object["spec"]
		}
		first := made(object)
		g.Expect(made(object)).To(Equal(first), nameOf(object))
		defaulted := object.DeepCopy()
		defaulted.Object["spec"] = first
		g.Expect(made(defaulted)).To(Equal(first), nameOf(object))
	}
}

func isOurGroup(group string) bool {
	return group == infrav1.GroupVersion.Group || group == bootstrapv1.GroupVersion.Group || group == controlplanev1.GroupVersion.Group
}

// TestTopologyDryRunOfEachTemplate (T2): the topology controller asks what it
// would write before it makes another template. A changed field that is immutable
// is answered then, and refused in all other cases.
func TestTopologyDryRunOfEachTemplate(t *testing.T) {
	const namespace, owner = "topology", client.FieldOwner("capi-topology")
	createNamespace(t, namespace)
	type sample struct {
		kind schema.GroupVersionKind
		name string
	}
	found := map[sample]*unstructured.Unstructured{}
	for _, object := range objects(NewWithT(t), samples(t, namespace)) {
		object.SetNamespace(namespace)
		found[sample{object.GroupVersionKind(), object.GetName()}] = object
	}
	for of, change := range map[sample]struct {
		value any
		path  []string
	}{
		{infrav1.GroupVersion.WithKind("TalosClusterTemplate"), "sample"}:             {"other.example.com", []string{"controlPlaneEndpoint", "host"}},
		{infrav1.GroupVersion.WithKind("TalosMachineTemplate"), "sample"}:             {"Retain", []string{"metal", "releasePolicy"}},
		{infrav1.GroupVersion.WithKind("TalosMachineTemplate"), "sample-container"}:   {"v1.13.8", []string{"container", "talos", "version"}},
		{bootstrapv1.GroupVersion.WithKind("TalosConfigTemplate"), "sample-workers"}:  {"v1.14", []string{"talosVersion"}},
		{controlplanev1.GroupVersion.WithKind("TalosControlPlaneTemplate"), "sample"}: {"v1.14", []string{"talosConfigSpec", "talosVersion"}},
	} {
		t.Run(of.kind.Kind+" "+of.name, func(t *testing.T) {
			g, ctx := NewWithT(t), t.Context()
			template := found[of]
			g.Expect(template).NotTo(BeNil(), "there is a sample")
			path := append([]string{"spec", "template", "spec"}, change.path...)
			apply := func(of *unstructured.Unstructured, dryRunAnnotation bool, options ...client.ApplyOption) (*unstructured.Unstructured, error) {
				applied := of.DeepCopy()
				if dryRunAnnotation {
					applied.SetAnnotations(map[string]string{clusterv1.TopologyDryRunAnnotation: ""})
				}
				err := world.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(applied), append(options, owner, client.ForceOwnership)...)
				return applied, err
			}
			stored, err := apply(template, false)
			g.Expect(err).NotTo(HaveOccurred())
			changed := template.DeepCopy()
			g.Expect(unstructured.SetNestedField(changed.Object, change.value, path...)).To(Succeed())

			answer, err := apply(changed, true, client.DryRunAll)
			g.Expect(err).NotTo(HaveOccurred())
			said, _, err := unstructured.NestedFieldNoCopy(answer.Object, path...)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(said).To(Equal(change.value))
			same, err := apply(template, true, client.DryRunAll)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(same.Object["spec"]).To(Equal(stored.Object["spec"]), "nothing to write is seen as that")
			invalid := template.DeepCopy()
			g.Expect(unstructured.SetNestedField(invalid.Object, "", path...)).To(Succeed())
			_, err = apply(invalid, true, client.DryRunAll)
			g.Expect(err).To(HaveOccurred(), "what is wrong is said also then")

			for why, try := range map[string]func() error{
				"a change":                          func() error { _, err := apply(changed, false); return err },
				"a dry run of somebody else":        func() error { _, err := apply(changed, false, client.DryRunAll); return err },
				"a change that calls itself a test": func() error { _, err := apply(changed, true); return err },
			} {
				g.Expect(try()).To(MatchError(ContainSubstring("immutable")), why)
			}
			now := template.DeepCopy()
			g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(template), now)).To(Succeed())
			g.Expect(now.GetGeneration()).To(Equal(stored.GetGeneration()), "only its status may have been written")
			g.Expect(now.Object["spec"]).To(Equal(stored.Object["spec"]))
		})
	}
}
