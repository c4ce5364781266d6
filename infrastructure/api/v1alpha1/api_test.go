package v1alpha1

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/yaml"
)

var (
	_ conditions.Setter = &TalosCluster{}
	_ conditions.Setter = &TalosMachine{}
	_ conditions.Setter = &TalosHost{}
)

// crdFolder is where the generated CRDs of the provider are.
const crdFolder = "../../../config/infrastructure/crd/bases"

var kinds = []string{TalosClusterKind, TalosClusterTemplateKind, TalosMachineKind, TalosMachineTemplateKind, TalosHostKind}

// crdOf is the CRD of a kind, as it is generated from the markers, under the
// name by which core Cluster API looks for it.
func crdOf(t *testing.T, kind string) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	g := NewWithT(t)
	name := contract.CalculateCRDName(GroupVersion.Group, kind)
	plural, group, _ := strings.Cut(name, ".")
	raw, err := os.ReadFile(filepath.Join(crdFolder, group+"_"+plural+".yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	crd := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.UnmarshalStrict(raw, crd)).To(Succeed())
	g.Expect(crd.Name).To(Equal(name))

	return crd
}

func TestKindsFollowTheContract(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			crd := crdOf(t, kind)
			g.Expect(crd.Labels).To(HaveKeyWithValue("cluster.x-k8s.io/v1beta2", "v1alpha1"))
			g.Expect(crd.Spec.Scope).To(Equal(apiextensionsv1.NamespaceScoped))
			g.Expect(crd.Spec.Names.Categories).To(ContainElement("cluster-api"))
			g.Expect(crd.Spec.Names.ShortNames).NotTo(BeEmpty())
			g.Expect(crd.Spec.Versions[0].AdditionalPrinterColumns).NotTo(BeEmpty())
			if !strings.HasSuffix(kind, "Template") {
				g.Expect(crd.Spec.Versions[0].Subresources.Status).NotTo(BeNil())
			}
		})
	}
	NewWithT(t).Expect(crdOf(t, TalosHostKind).Labels).To(HaveKey(MoveHierarchyLabel))
}

// TestTheAPIServerTakesTheKinds: it refuses those whose rules may cost too much.
func TestTheAPIServerTakesTheKinds(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			g, crd, internal := NewWithT(t), crdOf(t, kind), &apiextensions.CustomResourceDefinition{}
			apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(crd)
			crd.Status.StoredVersions = []string{GroupVersion.Version}
			g.Expect(apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd, internal, nil)).To(Succeed())
			g.Expect(validation.ValidateCustomResourceDefinition(t.Context(), internal)).To(BeEmpty())
		})
	}
}

func TestRulesOfTheSchemas(t *testing.T) {
	const (
		endpoint = "{controlPlaneEndpoint: {host: a, port: 6443}}"
		claimed  = "{addresses: [a], providerID: x, consumerRef: {kind: TalosMachine, namespace: n, name: m, providerID: x}}"
	)
	for name, tc := range map[string]struct {
		kind, old, spec string
		want            string // want is part of the refusal; empty when allowed.
	}{
		"an endpoint is set":               {TalosClusterKind, "{}", endpoint, ""},
		"an endpoint stays":                {TalosClusterKind, endpoint, endpoint, ""},
		"an endpoint is changed":           {TalosClusterKind, endpoint, "{controlPlaneEndpoint: {host: b, port: 6443}}", "immutable once it is set"},
		"an endpoint is removed":           {TalosClusterKind, endpoint, "{}", "immutable once it is set"},
		"an endpoint without port":         {TalosClusterKind, "", "{controlPlaneEndpoint: {host: a}}", "host and port must both be set"},
		"a machine of metal":               {TalosMachineKind, "", "{metal: {}}", ""},
		"a release":                        {TalosMachineKind, "", "{metal: {talos: {version: v1.13.9}}}", ""},
		"a release without v":              {TalosMachineKind, "", "{metal: {talos: {version: 1.13.9}}}", "prefix v"},
		"an empty release":                 {TalosMachineKind, "", "{metal: {talos: {version: ''}}}", ""},
		"a Pod of an empty release":        {TalosMachineKind, "", "{container: {talos: {version: ''}}}", "talos.version must be set"},
		"a Pod":                            {TalosMachineKind, "", "{container: {talos: {version: v1.13.9}}}", ""},
		"a Pod of an unknown release":      {TalosMachineKind, "", "{container: {talos: {image: a}}}", "talos.version must be set"},
		"a Pod with a volume":              {TalosMachineKind, "", "{container: {talos: {version: v1.13.9}, storage: {type: VolumeClaim, volumeClaim: {size: 1Gi}}}}", ""},
		"a Pod with a volume of no claim":  {TalosMachineKind, "", "{container: {talos: {version: v1.13.9}, storage: {type: VolumeClaim}}}", "exactly when type is VolumeClaim"},
		"a Pod with a claim for nothing":   {TalosMachineKind, "", "{container: {talos: {version: v1.13.9}, storage: {volumeClaim: {size: 1Gi}}}}", "exactly when type is VolumeClaim"},
		"a Service of the cluster":         {TalosClusterKind, "{container: {}}", "{container: {controlPlaneService: {type: NodePort}}}", ""},
		"a Service is added":               {TalosClusterKind, "{}", "{container: {}}", "cannot be added or removed"},
		"a Service is taken away":          {TalosClusterKind, "{container: {}}", "{}", "cannot be added or removed"},
		"a class of no load balancer":      {TalosClusterKind, "", "{container: {controlPlaneService: {loadBalancerClass: a}}}", "needs type LoadBalancer"},
		"a template with a Pod":            {TalosMachineTemplateKind, "", "{template: {spec: {container: {talos: {version: v1.13.9}}, pod: {progress: Ran}}}}", "belong to the provider"},
		"a template":                       {TalosMachineTemplateKind, "", "{template: {spec: {metal: {}}}}", ""},
		"a template with a provider ID":    {TalosMachineTemplateKind, "", "{template: {spec: {metal: {}, providerID: x}}}", "belong to the provider"},
		"a host":                           {TalosHostKind, "", "{addresses: [a]}", ""},
		"a host that adopts":               {TalosHostKind, "", "{addresses: [a], adoptionPolicy: WipeForeign, adoptionSecretRef: {name: s}}", ""},
		"a host that adopts with nothing":  {TalosHostKind, "", "{addresses: [a], adoptionPolicy: WipeForeign}", "needs adoptionSecretRef"},
		"a disk and a selector":            {TalosHostKind, "", "{addresses: [a], install: {disk: /dev/a, diskSelector: {type: SSD}}}", "exclude each other"},
		"a disk that is none":              {TalosHostKind, "", "{addresses: [a], install: {disk: vda-one}}", "below /dev"},
		"a network of no link":             {TalosHostKind, "", "{addresses: [a], network: {addresses: [192.0.2.1/24]}}", "exactly one of interface and macAddress"},
		"an identity that is no UUID":      {TalosHostKind, "", "{addresses: [a], identity: {uuid: 4c4c4544-0042-3510-8053-b4c04f4d4e3z}}", "must be a UUID"},
		"an identity that is no address":   {TalosHostKind, "", "{addresses: [a], identity: {macAddresses: ['52-54-00-12-34-56']}}", "must be hardware addresses"},
		"a provider ID of a free host":     {TalosHostKind, "{addresses: [a], providerID: x}", "{addresses: [a], providerID: y}", ""},
		"a provider ID of a claimed host":  {TalosHostKind, claimed, strings.Replace(claimed, "providerID: x, consumerRef", "providerID: y, consumerRef", 1), "immutable while the host is claimed"},
		"a provider ID of a released host": {TalosHostKind, claimed, "{addresses: [a], providerID: y}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			errs := refusals(t, tc.kind, tc.old, tc.spec)
			if tc.want == "" {
				g.Expect(errs).To(BeEmpty())
				return
			}
			g.Expect(errs.ToAggregate()).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}

// TestBadInputPortOrBalancerOfTheServiceChanged: the endpoint cannot follow.
func TestBadInputPortOrBalancerOfTheServiceChanged(t *testing.T) {
	const (
		endpoint = "controlPlaneEndpoint: {host: a, port: 6443}"
		balancer = "{container: {controlPlaneService: {type: LoadBalancer, loadBalancerClass: a}}}"
		leaves   = "at which the Service is reached"
		keeps    = "loadBalancerClass cannot be changed"
	)
	for name, tc := range map[string]struct{ old, spec, want string }{
		"the port, before there is an endpoint": {"{container: {}}", "{container: {controlPlaneService: {port: 443}}}", ""},
		"the endpoint is set":                   {"{container: {}}", "{container: {}, " + endpoint + "}", ""},
		"the endpoint is set at another port":   {"", "{container: {controlPlaneService: {port: 443}}, controlPlaneEndpoint: {host: a, port: 443}}", ""},
		"the port, away from the endpoint":      {"{container: {}, " + endpoint + "}", "{container: {controlPlaneService: {port: 443}}, " + endpoint + "}", leaves},
		"an endpoint beside the Service":        {"", "{container: {}, controlPlaneEndpoint: {host: a, port: 443}}", leaves},
		"the class":                             {balancer, strings.Replace(balancer, "Class: a", "Class: b", 1), keeps},
		"a class is taken away":                 {balancer, "{container: {controlPlaneService: {type: LoadBalancer}}}", keeps},
		"a class is added":                      {"{container: {controlPlaneService: {type: LoadBalancer}}}", balancer, keeps},
		"a class goes with its type":            {balancer, "{container: {controlPlaneService: {type: NodePort}}}", ""},
		"a class comes with its type":           {"{container: {controlPlaneService: {type: NodePort}}}", balancer, ""},
		"the annotations of a balancer":         {balancer, strings.Replace(balancer, "{type", "{annotations: {a: b}, type", 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g, errs := NewWithT(t), refusals(t, TalosClusterKind, tc.old, tc.spec)
			if tc.want == "" {
				g.Expect(errs).To(BeEmpty())
				return
			}
			g.Expect(errs.ToAggregate()).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}

// TestBadInputNeitherOrBothOfMetalAndContainer is named after the row of the table of
// bad input in the documentation.
func TestBadInputNeitherOrBothOfMetalAndContainer(t *testing.T) {
	const metal, container = "metal: {}", "container: {talos: {version: v1.13.9}}"
	for name, tc := range map[string]struct {
		spec    string
		refused bool
	}{
		"neither": {"", true}, "both": {metal + ", " + container, true}, "metal": {metal, false}, "a container": {container, false},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, spec := range map[string]string{
				TalosMachineKind:         "{" + tc.spec + "}",
				TalosMachineTemplateKind: "{template: {spec: {" + tc.spec + "}}}",
			} {
				g, errs := NewWithT(t), refusals(t, kind, "", spec)
				if !tc.refused {
					g.Expect(errs).To(BeEmpty())
					continue
				}
				g.Expect(errs.ToAggregate()).To(MatchError(ContainSubstring("exactly one of metal and container must be set")), kind)
			}
		})
	}
}

// refusals are what the rules of a kind have against a specification that takes the
// place of another one, which is empty where there was none.
func refusals(t *testing.T, kind, before, spec string) field.ErrorList {
	t.Helper()
	g, internal := NewWithT(t), &apiextensions.JSONSchemaProps{}
	g.Expect(apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crdOf(t, kind).Spec.Versions[0].Schema.OpenAPIV3Schema, internal, nil)).To(Succeed())
	structural, err := structuralschema.NewStructural(internal)
	g.Expect(err).NotTo(HaveOccurred())
	var old any
	if before != "" {
		old = object(t, kind, before)
	}
	errs, _ := cel.NewValidator(structural, true, celconfig.PerCallLimit).
		Validate(t.Context(), nil, structural, object(t, kind, spec), old, celconfig.RuntimeCELCostBudget)

	return errs
}

// object is an object with the given spec in YAML.
func object(t *testing.T, kind, spec string) map[string]any {
	t.Helper()
	g, parsed := NewWithT(t), map[string]any{}
	raw, err := yaml.YAMLToJSON([]byte(spec))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(raw, &parsed)).To(Succeed())

	return map[string]any{"apiVersion": GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": "a"}, "spec": parsed}
}
