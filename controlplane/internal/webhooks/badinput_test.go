package webhooks

import (
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// newWebhook is the webhook in a management cluster that has these objects.
func newWebhook(t *testing.T, objects ...client.Object) *TalosControlPlane {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme, clusterv1.AddToScheme, controlplanev1.AddToScheme} {
		NewWithT(t).Expect(add(scheme)).To(Succeed())
	}
	gvk := schema.GroupVersionKind{Group: "infrastructure.cluster.x-k8s.io", Version: "v1alpha1", Kind: "TalosMachineTemplate"}
	objects = append(objects, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{
		Name:   contract.CalculateCRDName(gvk.Group, gvk.Kind),
		Labels: map[string]string{clusterv1.GroupVersion.Group + "/v1beta2": gvk.Version},
	}})

	return &TalosControlPlane{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}
}

func newTemplate(way, release string) *unstructured.Unstructured {
	template := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "TalosMachineTemplate",
		"metadata": map[string]any{"namespace": "fleet", "name": "one"},
	}}
	if release != "" {
		template.Object["spec"] = map[string]any{"template": map[string]any{"spec": map[string]any{
			way: map[string]any{"talos": map[string]any{"version": release}},
		}}}
	}

	return template
}

func TestBadInputEvenOrZeroReplicas(t *testing.T) {
	for replicas, want := range map[int32]string{0: "odd number (1, 3, 5, ...)", -1: "odd number (1, 3, 5, ...)", 2: "use 1 or 3", 4: "use 3 or 5", 1: "", 3: "", 5: "", 7: ""} {
		controlPlane := valid()
		controlPlane.Spec.Replicas = ptr.To(replicas)
		_, err := newWebhook(t).ValidateCreate(t.Context(), controlPlane)
		expect(NewWithT(t), err, want)
	}
}

func TestBadInputVersionIsNoVersion(t *testing.T) {
	for version, want := range map[string]string{
		"1.36.3": "prefix v", "v1.36": "semantic version", "latest": "prefix v", "v1.36.03": "semantic version", "v1.36.3": "", "v1.36.3+vendor.1": "", "v1.36.0-rc.1": "",
	} {
		controlPlane := valid()
		controlPlane.Spec.Version = version
		_, err := newWebhook(t).ValidateCreate(t.Context(), controlPlane)
		expect(NewWithT(t), err, want)
	}
}

func TestBadInputVersionChange(t *testing.T) {
	for name, tc := range map[string]struct {
		before, running, after string
		annotation             string // On "control plane" or on "cluster".
		want                   string
		warns                  bool
	}{
		"a minor skipped":                           {before: "v1.34.1", after: "v1.36.3", want: "must not skip a minor version"},
		"a minor skipped, judged by what runs":      {before: "v1.35.1", running: "v1.34.1", after: "v1.36.3", want: "use a version of v1.34 or v1.35"},
		"a minor decrease":                          {before: "v1.36.3", after: "v1.35.9", want: "use v1.36.3 or later"},
		"a patch decrease":                          {before: "v1.36.3", after: "v1.36.2", want: "", warns: true},
		"the next minor":                            {before: "v1.35.1", after: "v1.36.3", want: ""},
		"a minor skipped, allowed on the object":    {before: "v1.34.1", after: "v1.36.3", annotation: "control plane", want: ""},
		"a minor decrease, allowed on the Cluster":  {before: "v1.36.3", after: "v1.35.9", annotation: "cluster", want: ""},
		"the refusal names the way to allow it":     {before: "v1.34.1", after: "v1.36.3", want: "unsafe.topology.cluster.x-k8s.io/disable-update-version-check"},
		"no version without v, also when allowed":   {before: "v1.36.3", after: "1.36.4", annotation: "cluster", want: "prefix v"},
		"no skipping of what no machine runs (yet)": {before: "v1.34.1", running: "", after: "v1.36.3", want: "must not skip"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "one"}}
			before := valid()
			before.OwnerReferences = []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: cluster.Name}}
			before.Spec.Version, before.Status.Version = tc.before, tc.running
			before.Status.Replicas = ptr.To(int32(1))
			switch tc.annotation {
			case "cluster":
				annotate(cluster, clusterv1.ClusterTopologyUnsafeUpdateVersionAnnotation)
			case "control plane":
				annotate(before, clusterv1.ClusterTopologyUnsafeUpdateVersionAnnotation)
			}
			after := before.DeepCopy()
			after.Spec.Version = tc.after
			warnings, err := newWebhook(t, cluster).ValidateUpdate(admission.NewContextWithRequest(t.Context(), admission.Request{}), before, after)
			expect(g, err, tc.want)
			g.Expect(len(warnings) > 0).To(Equal(tc.warns))
		})
	}
}

func TestBadInputKubernetesThatTheTalosReleaseDoesNotRun(t *testing.T) {
	for name, tc := range map[string]struct {
		release, version string
		want             string
	}{
		"too new":                     {"v1.12.4", "v1.36.3", "Talos v1.12.4, which runs v1.30 to v1.35"},
		"too old":                     {"v1.13.9", "v1.20.0", "Talos v1.13.9, which runs v1.31 to v1.36"},
		"in the range":                {"v1.13.9", "v1.36.3", ""},
		"a template without release":  {"", "v1.99.0", ""},
		"the template is named":       {"v1.12.4", "v1.36.3", "TalosMachineTemplate one states that release"},
		"a template that is not here": {"-", "v1.99.0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for _, way := range []string{"metal", "container"} {
				var objects []client.Object
				if tc.release != "-" {
					objects = append(objects, newTemplate(way, tc.release))
				}
				controlPlane := valid()
				controlPlane.Spec.Version = tc.version
				_, err := newWebhook(t, objects...).ValidateCreate(t.Context(), controlPlane)
				expect(NewWithT(t), err, tc.want)
			}
		})
	}
}
