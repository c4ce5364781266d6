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
	"k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

// crdFolder is where the generated CRDs of the provider are.
const crdFolder = "../../../config/controlplane/crd/bases"

// schemaOf is the schema of a kind, as it is generated from the markers.
func schemaOf(t *testing.T, file string) *structuralschema.Structural {
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

	return structural
}

// object is a TalosControlPlane with the given spec in YAML.
func object(t *testing.T, spec string) map[string]any {
	t.Helper()
	g, parsed := NewWithT(t), map[string]any{}
	raw, err := yaml.YAMLToJSON([]byte(spec))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(raw, &parsed)).To(Succeed())

	return map[string]any{
		"apiVersion": GroupVersion.String(), "kind": TalosControlPlaneKind, "metadata": map[string]any{"name": "one-cp"}, "spec": parsed,
	}
}

// judged is a specification, and what is said of it: part of the refusal; empty when it is
// taken.
type judged struct{ spec, want string }

// expectRules judges specifications by the rules of a kind.
func expectRules(t *testing.T, file string, cases map[string]judged) {
	t.Helper()
	structural := schemaOf(t, file)
	validator := cel.NewValidator(structural, true, celconfig.PerCallLimit)
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			errs, _ := validator.Validate(t.Context(), nil, structural, object(t, tc.spec), nil, celconfig.RuntimeCELCostBudget)
			if tc.want == "" {
				g.Expect(errs).To(BeEmpty())
			} else {
				g.Expect(errs.ToAggregate()).To(MatchError(ContainSubstring(tc.want)))
			}
		})
	}
}

func TestRulesOfTheSchema(t *testing.T) {
	expectRules(t, "controlplane.cluster.x-k8s.io_taloscontrolplanes.yaml", map[string]judged{
		"one replica":                     {"replicas: 1", ""},
		"three replicas":                  {"replicas: 3", ""},
		"an even number of replicas":      {"replicas: 2", "must be an odd number"},
		"a version":                       {"version: v1.36.3", ""},
		"a version with build metadata":   {"version: v1.36.3+build.1", ""},
		"a version without v":             {"version: 1.36.3", "prefix v"},
		"a version without patch":         {"version: v1.36", "prefix v"},
		"a version with a leading zero":   {"version: v1.036.3", "prefix v"},
		"a control plane configuration":   {"talosConfigSpec: {generateType: controlplane, talosVersion: v1.13}", ""},
		"a configuration of the user":     {"talosConfigSpec: {generateType: none, talosVersion: v1.13, data: a}", ""},
		"a worker configuration":          {"talosConfigSpec: {generateType: worker, talosVersion: v1.13}", "generateType must be controlplane"},
		"host names of Machines":          {"talosConfigSpec: {talosVersion: v1.13, generateType: controlplane, hostname: {source: MachineName}}", ""},
		"host names of the machine":       {"talosConfigSpec: {talosVersion: v1.13, generateType: controlplane, hostname: {source: InfrastructureName}}", "must be MachineName"},
		"a naming template":               {"machineNaming: {template: 'a-{{ .random }}'}", ""},
		"a naming template of a constant": {"machineNaming: {template: 'a'}", "must contain"},
		"a rolling update":                {"rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0}}}", ""},
		"a surge of two":                  {"rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 2}}}", "must be 0 or 1"},
		"a surge in percent":              {"rollout: {strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1%}}}", "must be 0 or 1"},
		"retries without a limit":         {"remediation: {retryPeriodSeconds: 7200}", ""},
		"a limit of retries":              {"remediation: {maxRetry: 3}", ""},
		"retries within the default":      {"remediation: {maxRetry: 3, retryPeriodSeconds: 3599}", ""},
		"retries after the default":       {"remediation: {maxRetry: 3, retryPeriodSeconds: 3600}", "must be less than minHealthyPeriodSeconds"},
		"retries within a period":         {"remediation: {maxRetry: 3, retryPeriodSeconds: 7200, minHealthyPeriodSeconds: 7201}", ""},
		"retries after a period":          {"remediation: {maxRetry: 3, retryPeriodSeconds: 60, minHealthyPeriodSeconds: 60}", "must be less than minHealthyPeriodSeconds"},
		"no period for retries":           {"remediation: {maxRetry: 3, minHealthyPeriodSeconds: 0}", "must be less than minHealthyPeriodSeconds"},
		"no retries at all":               {"remediation: {maxRetry: 0, retryPeriodSeconds: 3600}", ""},
		"no period, and no limit":         {"remediation: {minHealthyPeriodSeconds: 0}", ""},
		"the strategy OnDelete":           {"rollout: {strategy: {type: OnDelete}}", ""},
		"a surge with OnDelete":           {"rollout: {strategy: {type: OnDelete, rollingUpdate: {maxSurge: 1}}}", ""},
	})
}

func TestRulesOfTheSchemaOfTemplates(t *testing.T) {
	expectRules(t, "controlplane.cluster.x-k8s.io_taloscontrolplanetemplates.yaml", map[string]judged{
		"a limit of retries":        {"template: {spec: {remediation: {maxRetry: 3}}}", ""},
		"retries after the default": {"template: {spec: {remediation: {maxRetry: 3, retryPeriodSeconds: 7200}}}", "must be less than minHealthyPeriodSeconds"},
	})
}

// A Machine has 32 readiness gates at most, and the provider adds its own.
func TestReadinessGatesLeaveRoomForThoseOfTheProvider(t *testing.T) {
	own := []string{
		MachineAPIServerPodHealthyCondition, MachineControllerManagerPodHealthyCondition, MachineSchedulerPodHealthyCondition,
		MachineEtcdPodHealthyCondition, MachineEtcdMemberHealthyCondition,
	}
	for file, path := range map[string][]string{
		"controlplane.cluster.x-k8s.io_taloscontrolplanes.yaml":         {"spec", "machineTemplate", "spec", "readinessGates"},
		"controlplane.cluster.x-k8s.io_taloscontrolplanetemplates.yaml": {"spec", "template", "spec", "machineTemplate", "spec", "readinessGates"},
	} {
		at := *schemaOf(t, file)
		for _, field := range path {
			at = at.Properties[field]
		}
		NewWithT(t).Expect(at.ValueValidation.MaxItems).To(HaveValue(BeEquivalentTo(32-len(own))), file)
	}
}
