package v1beta1

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// crdFolder is where the generated CRDs of the provider are.
const crdFolder = "../../../config/bootstrap/crd/bases"

// refusals are what the schema of a kind, as it is generated from the markers,
// says about an object with a spec.
func refusals(t *testing.T, kind, file, spec string) string {
	t.Helper()
	g := NewWithT(t)
	raw, err := os.ReadFile(filepath.Join(crdFolder, file))
	g.Expect(err).NotTo(HaveOccurred())
	crd := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.UnmarshalStrict(raw, crd)).To(Succeed())
	internal := &apiextensions.JSONSchemaProps{}
	g.Expect(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil)).To(Succeed())
	structural, err := structuralschema.NewStructural(internal)
	g.Expect(err).NotTo(HaveOccurred())

	parsed := map[string]any{}
	text, err := yaml.YAMLToJSON([]byte(spec))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(text, &parsed)).To(Succeed())
	object := map[string]any{"apiVersion": GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": "one"}, "spec": parsed}

	validator, _, err := validation.NewSchemaValidator(internal)
	g.Expect(err).NotTo(HaveOccurred())
	errs := validation.ValidateCustomResource(nil, object, validator)
	if len(errs) == 0 {
		errs, _ = cel.NewValidator(structural, true, celconfig.PerCallLimit).Validate(t.Context(), nil, structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	if len(errs) == 0 {
		return ""
	}
	return errs.ToAggregate().Error()
}

// expectSchema judges a spec in both kinds.
func expectSchema(t *testing.T, spec, want string) {
	t.Helper()
	g := NewWithT(t)
	for kind, text := range map[string]string{TalosConfigKind: spec, TalosConfigTemplateKind: "template: {spec: " + spec + "}"} {
		file := "bootstrap.cluster.x-k8s.io_talosconfigs.yaml"
		if kind == TalosConfigTemplateKind {
			file = "bootstrap.cluster.x-k8s.io_talosconfigtemplates.yaml"
		}
		found := refusals(t, kind, file, text)
		if want == "" {
			g.Expect(found).To(BeEmpty(), kind)
		} else {
			g.Expect(found).To(ContainSubstring(want), kind)
		}
	}
}

func TestRulesOfTheSchema(t *testing.T) {
	for name, tc := range map[string]struct {
		spec, want string // want is part of the refusal; empty when allowed.
	}{
		"a worker":                     {"{generateType: worker, talosVersion: v1.13}", ""},
		"a worker of a patch release":  {"{generateType: worker, talosVersion: v1.14.1}", ""},
		"a configuration of the user":  {"{generateType: none, talosVersion: v1.13, data: a}", ""},
		"none without data":            {"{generateType: none, talosVersion: v1.13}", "data must be set when generateType is none, and only then"},
		"data without none":            {"{generateType: worker, talosVersion: v1.13, data: a}", "data must be set when generateType is none, and only then"},
		"the type init":                {"{generateType: init, talosVersion: v1.13}", "where it was init use controlplane"},
		"an operation that is none":    {"{generateType: worker, talosVersion: v1.13, configPatches: [{op: merge, path: /a}]}", "supported values"},
		"a path without slash":         {"{generateType: worker, talosVersion: v1.13, configPatches: [{op: remove, path: a}]}", "path"},
		"a source that is none":        {"{generateType: worker, talosVersion: v1.13, hostname: {source: Random}}", "supported values"},
		"a patch that is the empty":    {"{generateType: worker, talosVersion: v1.13, strategicPatches: ['']}", "strategicPatches[0]"},
		"no patches, but a list of it": {"{generateType: worker, talosVersion: v1.13, strategicPatches: []}", "strategicPatches"},
	} {
		t.Run(name, func(t *testing.T) { expectSchema(t, tc.spec, tc.want) })
	}
}

func TestBadInputTalosVersionMissingOrUnsupportedIsRefusedByTheSchema(t *testing.T) {
	t.Run("missing", func(t *testing.T) { expectSchema(t, "{generateType: worker}", "talosVersion: Required value") })
	for _, version := range []string{"v1.11", "v1.15", "v2.13", "latest", "1.13", "v1.13.x"} {
		t.Run(version, func(t *testing.T) {
			expectSchema(t, "{generateType: worker, talosVersion: '"+version+"'}", "must be one of the supported configuration contracts v1.12, v1.13 and v1.14")
		})
	}
}

func TestBadInputCNIThatIsNoneOfBoth(t *testing.T) {
	for name, tc := range map[string]struct{ spec, want string }{
		"the default":                 {"{generateType: controlplane, talosVersion: v1.14, cni: flannel}", ""},
		"what somebody else brings":   {"{generateType: controlplane, talosVersion: v1.14, cni: none}", ""},
		"of the role that is default": {"{talosVersion: v1.13, cni: none}", ""},
		"the name of a CNI":           {"{generateType: controlplane, talosVersion: v1.13, cni: cilium}", `cni: Unsupported value: "cilium": supported values: "flannel", "none"`},
		"the empty":                   {"{generateType: controlplane, talosVersion: v1.13, cni: ''}", "cni: Unsupported value"},
		"of a worker":                 {"{generateType: worker, talosVersion: v1.13, cni: flannel}", "cni is for generateType controlplane alone"},
		"beside data":                 {"{generateType: none, talosVersion: v1.13, data: a, cni: none}", "cni is for generateType controlplane alone"},
	} {
		t.Run(name, func(t *testing.T) { expectSchema(t, tc.spec, tc.want) })
	}
}
