package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// stateMetrics is the configuration of kube-state-metrics, with the fields of its
// types (pkg/customresourcestate) that we use. Its module is not to be had from the
// module proxy.
type stateMetrics struct {
	Kind string `json:"kind"`
	Spec struct {
		Resources []stateResource `json:"resources"`
	} `json:"spec"`
}

type stateResource struct {
	GroupVersionKind struct {
		Group   string `json:"group"`
		Version string `json:"version"`
		Kind    string `json:"kind"`
	} `json:"groupVersionKind"`
	LabelsFromPath   map[string][]string `json:"labelsFromPath"`
	MetricNamePrefix string              `json:"metricNamePrefix"`
	Metrics          []stateMetric       `json:"metrics"`
}

type stateMetric struct {
	Name      string `json:"name"`
	Help      string `json:"help"`
	ErrorLogV int    `json:"errorLogV"`
	Each      struct {
		Type     string     `json:"type"`
		Gauge    *stateEach `json:"gauge"`
		StateSet *stateEach `json:"stateSet"`
		Info     *stateEach `json:"info"`
	} `json:"each"`
}

type stateEach struct {
	Path           []string            `json:"path"`
	LabelsFromPath map[string][]string `json:"labelsFromPath"`
	ValueFrom      []string            `json:"valueFrom"`
	NilIsZero      bool                `json:"nilIsZero"`
	LabelName      string              `json:"labelName"`
	List           []string            `json:"list"`
}

const stateMetricsFile = "config/metrics/crd-metrics-config.yaml"

func readStateMetrics(g Gomega, text string) stateMetrics {
	parsed := stateMetrics{}
	g.Expect(yaml.UnmarshalStrict([]byte(text), &parsed)).To(Succeed())
	g.Expect(parsed.Kind).To(Equal("CustomResourceStateMetrics"))

	return parsed
}

// TestStateMetricsAreTakenFromFieldsThatExist: kube-state-metrics is told of each
// kind that has a status, in its stored version, and each path is one of its schema.
func TestStateMetricsAreTakenFromFieldsThatExist(t *testing.T) {
	g, all := NewWithT(t), kinds(t)
	var told, wanted []string
	for kind, want := range wantKinds() {
		if want.status {
			wanted = append(wanted, kind)
		}
	}
	label := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	for _, resource := range readStateMetrics(g, read(g, stateMetricsFile)).Spec.Resources {
		kind := resource.GroupVersionKind.Kind
		told = append(told, kind)
		g.Expect(resource.MetricNamePrefix).To(Equal("capi_" + strings.ToLower(kind)))
		crd := all[kind].crd
		g.Expect(crd).NotTo(BeNil(), kind)
		g.Expect(resource.GroupVersionKind.Group).To(Equal(crd.Spec.Group), kind)
		schema := storedSchema(g, crd, resource.GroupVersionKind.Version)
		for name, path := range resource.LabelsFromPath {
			g.Expect(label.MatchString(name)).To(BeTrue(), "label %s of %s", name, kind)
			g.Expect(typeAt(g, schema, path)).To(Equal("string"), "label %s of %s", name, kind)
		}
		names := map[string]bool{}
		for _, metric := range resource.Metrics {
			what := kind + " " + metric.Name
			g.Expect(names).NotTo(HaveKey(metric.Name), what)
			names[metric.Name] = true
			g.Expect(metric.Help).NotTo(BeEmpty(), what)
			expectMetric(g, schema, metric, what)
		}
		for _, common := range []string{"info", "created", "annotation_paused", "owner", "status_condition", "status_condition_last_transition_time"} {
			g.Expect(names).To(HaveKey(common), kind)
		}
	}
	g.Expect(told).To(ConsistOf(wanted))
}

// expectMetric holds one metric to a schema.
func expectMetric(g Gomega, schema *apiextensionsv1.JSONSchemaProps, metric stateMetric, what string) {
	each := map[string]*stateEach{"Gauge": metric.Each.Gauge, "StateSet": metric.Each.StateSet, "Info": metric.Each.Info}
	of := each[metric.Each.Type]
	g.Expect(of).NotTo(BeNil(), what)
	for kind, other := range each {
		g.Expect(other != nil).To(Equal(kind == metric.Each.Type), what)
	}
	element := schemaAt(g, schema, of.Path)
	g.Expect(element).NotTo(BeNil(), "%s: %v", what, of.Path)
	if element.Type == "array" {
		element = element.Items.Schema
	}
	for name, path := range of.LabelsFromPath {
		g.Expect(typeAt(g, element, path)).To(BeElementOf("string", "integer", "boolean"), "%s: label %s", what, name)
	}
	value := schemaAt(g, element, of.ValueFrom)
	g.Expect(value).NotTo(BeNil(), "%s: %v", what, of.ValueFrom)
	switch metric.Each.Type {
	case "Gauge":
		isTime := value.Type == "string" && value.Format == "date-time"
		g.Expect(isTime || value.Type == "integer" || value.Type == "boolean").To(BeTrue(), what)
	case "StateSet":
		g.Expect(of.LabelName).NotTo(BeEmpty(), what)
		g.Expect(of.List).To(ConsistOf(enum(g, value)), what)
	case "Info":
		g.Expect(of.LabelsFromPath).NotTo(BeEmpty(), what)
	}
}

// storedSchema is the schema of the stored version, with the fields of metadata that
// every object has.
func storedSchema(g Gomega, crd *apiextensionsv1.CustomResourceDefinition, version string) *apiextensionsv1.JSONSchemaProps {
	i := slices.IndexFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	g.Expect(crd.Spec.Versions[i].Name).To(Equal(version), crd.Name)
	schema := crd.Spec.Versions[i].Schema.OpenAPIV3Schema.DeepCopy()
	text, boolean := apiextensionsv1.JSONSchemaProps{Type: "string"}, apiextensionsv1.JSONSchemaProps{Type: "boolean"}
	texts := apiextensionsv1.JSONSchemaProps{Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &text}}
	owner := apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"apiVersion": text, "kind": text, "name": text, "uid": text, "controller": boolean, "blockOwnerDeletion": boolean,
	}}
	schema.Properties["metadata"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"name": text, "namespace": text, "uid": text, "labels": texts, "annotations": texts,
		"creationTimestamp": {Type: "string", Format: "date-time"},
		"ownerReferences":   {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &owner}},
	}}

	return schema
}

// schemaAt follows a path of kube-state-metrics: names of fields, keys of maps, and
// "[field=value]" for an element of a list. It is nil where the path leads nowhere.
func schemaAt(g Gomega, schema *apiextensionsv1.JSONSchemaProps, path []string) *apiextensionsv1.JSONSchemaProps {
	for _, part := range path {
		lookup, isLookup := strings.CutPrefix(part, "[")
		next, isField := schema.Properties[part]
		switch {
		case isLookup:
			field, _, _ := strings.Cut(strings.TrimSuffix(lookup, "]"), "=")
			g.Expect(schema.Type).To(Equal("array"), part)
			g.Expect(schema.Items.Schema.Properties).To(HaveKey(field), part)
			schema = schema.Items.Schema
		case isField:
			schema = &next
		case schema.AdditionalProperties != nil:
			schema = schema.AdditionalProperties.Schema
		default:
			return nil
		}
	}

	return schema
}

// typeAt is the type of the field at a path, empty where there is none.
func typeAt(g Gomega, schema *apiextensionsv1.JSONSchemaProps, path []string) string {
	if found := schemaAt(g, schema, path); found != nil {
		return found.Type
	}

	return ""
}

// enum are the values that a schema allows.
func enum(g Gomega, schema *apiextensionsv1.JSONSchemaProps) []string {
	values := make([]string, 0, len(schema.Enum))
	for _, raw := range schema.Enum {
		value := ""
		g.Expect(yaml.Unmarshal(raw.Raw, &value)).To(Succeed())
		values = append(values, value)
	}

	return values
}

// TestStateMetricsSurviveTheMerge: Cluster API's set-up of kube-state-metrics merges
// the files of all providers, line by line.
func TestStateMetricsSurviveTheMerge(t *testing.T) {
	g := NewWithT(t)
	text := read(g, stateMetricsFile)
	const header = "kind: CustomResourceStateMetrics\nspec:\n  resources:\n"
	dropped := regexp.MustCompile(`^(-|kind: CustomResourceStateMetrics|spec:| +resources:)`)
	var merged strings.Builder
	merged.WriteString(header)
	for range 2 {
		for line := range strings.Lines(text) {
			if !dropped.MatchString(line) {
				merged.WriteString(line)
			}
		}
	}
	once := readStateMetrics(g, text).Spec.Resources
	g.Expect(readStateMetrics(g, merged.String()).Spec.Resources).To(Equal(slices.Concat(once, once)))
}

// TestStateMetricsMayBeRead: kube-state-metrics is given the right to read the kinds
// that it is told of, and no other.
func TestStateMetricsMayBeRead(t *testing.T) {
	g, role, all := NewWithT(t), &rbacv1.ClusterRole{}, kinds(t)
	g.Expect(yaml.UnmarshalStrict([]byte(read(g, "config/metrics/crd-clusterrole.yaml")), role)).To(Succeed())
	g.Expect(role.Labels).To(HaveKeyWithValue("kube-state-metrics/aggregate-to-manager", "true"))
	var granted, needed []string
	for _, rule := range role.Rules {
		g.Expect(rule.Verbs).To(ConsistOf("get", "list", "watch"))
		g.Expect(rule.APIGroups).To(HaveLen(1))
		for _, resource := range rule.Resources {
			granted = append(granted, resource+"."+rule.APIGroups[0])
		}
	}
	for _, resource := range readStateMetrics(g, read(g, stateMetricsFile)).Spec.Resources {
		needed = append(needed, all[resource.GroupVersionKind.Kind].crd.Name)
	}
	g.Expect(granted).To(ConsistOf(needed))
}

// TestStateMetricsAreDocumented: each metric of kube-state-metrics has a row in the
// documentation, those of all kinds a common one, and each row is of one.
func TestStateMetricsAreDocumented(t *testing.T) {
	g, wanted := NewWithT(t), map[string]int{}
	resources := readStateMetrics(g, read(g, stateMetricsFile)).Spec.Resources
	for _, resource := range resources {
		for _, metric := range resource.Metrics {
			wanted[metric.Name]++
		}
	}
	names := map[string]bool{}
	for _, resource := range resources {
		for _, metric := range resource.Metrics {
			prefix := resource.MetricNamePrefix
			if wanted[metric.Name] == len(resources) {
				prefix = "capi_<kind>"
			}
			names[prefix+"_"+metric.Name] = true
		}
	}
	var documented []string
	row := regexp.MustCompile("(?m)^\\| `(capi_(?:<kind>|talos[a-z]+)_[a-z_]+)` \\|")
	for _, match := range row.FindAllStringSubmatch(read(g, "docs/metrics.md"), -1) {
		documented = append(documented, match[1])
	}
	g.Expect(documented).To(ConsistOf(slices.Collect(maps.Keys(names))))
}
