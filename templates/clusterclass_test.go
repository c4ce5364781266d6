package templates

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	jsonpatch "github.com/evanphx/json-patch"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const topologyTemplate = "cluster-template-topology.yaml"

// classes are the files of the ClusterClasses that we ship, by the templates of
// Clusters of them.
func classes() map[string]string {
	return map[string]string{topologyTemplate: "clusterclass-talos.yaml", containerTopologyTemplate: "clusterclass-talos-container.yaml"}
}

// class is a ClusterClass with its templates, by kind and name.
type class struct {
	clusterv1.ClusterClass
	templates map[string]*unstructured.Unstructured
}

// readClass reads a ClusterClass that we ship.
func readClass(g Gomega, file string) class {
	text, err := os.ReadFile(file)
	g.Expect(err).NotTo(HaveOccurred())
	read := class{templates: map[string]*unstructured.Unstructured{}}
	for manifest := range strings.SplitSeq(string(text), "\n---\n") {
		object := &unstructured.Unstructured{}
		g.Expect(yaml.Unmarshal([]byte(manifest), &object.Object)).To(Succeed())
		g.Expect(object.GetNamespace()).To(BeEmpty(), "clusterctl puts it where the Cluster is")
		if object.GetKind() == "ClusterClass" {
			g.Expect(yaml.UnmarshalStrict([]byte(manifest), &read.ClusterClass)).To(Succeed())
			continue
		}
		read.templates[object.GetKind()+" "+object.GetName()] = object
	}
	return read
}

// readTopology is the Cluster that a template makes.
func readTopology(g Gomega, template, contract string) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	g.Expect(yaml.UnmarshalStrict([]byte(generate(g, all(g)[template], values(contract))), cluster)).To(Succeed())
	return cluster
}

// part is a template of the class, and where the class uses it.
type part struct {
	ref clusterv1.ClusterClassTemplateReference
	// selects reports whether a patch for these resources is meant for it.
	selects func(clusterv1.PatchSelectorMatch) bool
}

// parts are the templates in the order infrastructure, control plane and its
// machines, then configuration and machines of each class of workers.
func (c class) parts() []part {
	found := []part{
		{c.Spec.Infrastructure.TemplateRef, func(match clusterv1.PatchSelectorMatch) bool { return ptr.Deref(match.InfrastructureCluster, false) }},
		{c.Spec.ControlPlane.TemplateRef, func(match clusterv1.PatchSelectorMatch) bool { return ptr.Deref(match.ControlPlane, false) }},
		{c.Spec.ControlPlane.MachineInfrastructure.TemplateRef, func(match clusterv1.PatchSelectorMatch) bool { return ptr.Deref(match.ControlPlane, false) }},
	}
	for _, workers := range c.Spec.Workers.MachineDeployments {
		selects := func(match clusterv1.PatchSelectorMatch) bool {
			return match.MachineDeploymentClass != nil && slices.Contains(match.MachineDeploymentClass.Names, workers.Class)
		}
		found = append(found, part{workers.Bootstrap.TemplateRef, selects}, part{workers.Infrastructure.TemplateRef, selects})
	}
	return found
}

// patched are the templates as the topology controller makes them of variables.
// What it does with all of this is looked at in test/suites/integration; here it is
// enough that our patches take their values from variables alone.
func (c class) patched(g Gomega, variables []clusterv1.ClusterVariable) []*unstructured.Unstructured {
	values, raw := map[string]any{}, map[string]json.RawMessage{}
	for _, variable := range variables {
		var value any
		g.Expect(json.Unmarshal(variable.Value.Raw, &value)).To(Succeed())
		values[variable.Name], raw[variable.Name] = value, variable.Value.Raw
	}
	var made []*unstructured.Unstructured
	for _, part := range c.parts() {
		template := c.templates[part.ref.Kind+" "+part.ref.Name]
		g.Expect(template).NotTo(BeNil(), "%s %s is in the file", part.ref.Kind, part.ref.Name)
		g.Expect(template.GetAPIVersion()).To(Equal(part.ref.APIVersion))
		template = template.DeepCopy()
		for _, patch := range c.Spec.Patches {
			if !enabled(g, patch, values) {
				continue
			}
			for _, definition := range patch.Definitions {
				selector := definition.Selector
				if selector.Kind == part.ref.Kind && selector.APIVersion == part.ref.APIVersion && part.selects(selector.MatchResources) {
					apply(g, template, definition.JSONPatches, raw)
				}
			}
		}
		made = append(made, template)
	}
	return made
}

func enabled(g Gomega, patch clusterv1.ClusterClassPatch, values map[string]any) bool {
	if patch.EnabledIf == "" {
		return true
	}
	condition, err := template.New(patch.Name).Parse(patch.EnabledIf)
	g.Expect(err).NotTo(HaveOccurred())
	out := &strings.Builder{}
	g.Expect(condition.Execute(out, values)).To(Succeed(), patch.Name)
	return out.String() == "true"
}

func apply(g Gomega, template *unstructured.Unstructured, patches []clusterv1.JSONPatch, values map[string]json.RawMessage) {
	operations := jsonpatch.Patch{}
	for _, patch := range patches {
		g.Expect(patch.ValueFrom).NotTo(BeNil(), patch.Path)
		value, given := values[patch.ValueFrom.Variable]
		g.Expect(given).To(BeTrue(), "variable %q of the patch of %s is there", patch.ValueFrom.Variable, patch.Path)
		raw := func(text string) *json.RawMessage { return ptr.To(json.RawMessage(strconv.Quote(text))) }
		operations = append(operations, jsonpatch.Operation{"op": raw(patch.Op), "path": raw(patch.Path), "value": &value})
	}
	before, err := json.Marshal(template.Object)
	g.Expect(err).NotTo(HaveOccurred())
	after, err := operations.Apply(before)
	g.Expect(err).NotTo(HaveOccurred())
	template.Object = nil
	g.Expect(json.Unmarshal(after, &template.Object)).To(Succeed())
}

// as reads a template strictly.
func as[T any](g Gomega, template *unstructured.Unstructured) T {
	var read T
	raw, err := json.Marshal(template.Object)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.UnmarshalStrict(raw, &read)).To(Succeed(), template.GetKind())
	return read
}

// TestTheClassTakesNoVariablesOfClusterctl: what clusterctl would replace is
// not there, and a namespace neither.
func TestTheClassTakesNoVariablesOfClusterctl(t *testing.T) {
	for template, file := range classes() {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			text, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(text)).NotTo(ContainSubstring("${"))
			g.Expect(string(text)).NotTo(ContainSubstring("namespace:"))
			g.Expect(file).To(Equal("clusterclass-"+readClass(g, file).Name+".yaml"), "clusterctl looks for it by its name")
			g.Expect(readTopology(g, template, "v1.13").Spec.Topology.ClassRef.Name).To(Equal(readClass(g, file).Name))
			g.Expect(readTopology(g, template, "v1.13").Spec.Topology.ClassRef.Namespace).To(Equal("default"), "it is the Cluster's when nobody says otherwise")
		})
	}
}

// TestVariablesOfTheClassAreListedAndUsed: the header lists each variable, each is
// used by a patch, and the topology template gives known ones.
func TestVariablesOfTheClassAreListedAndUsed(t *testing.T) {
	for template, file := range classes() {
		t.Run(file, func(t *testing.T) {
			g, of := NewWithT(t), readClass(NewWithT(t), file)
			text, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			header, _, _ := strings.Cut(string(text), "\napiVersion")
			patches, err := json.Marshal(of.Spec.Patches)
			g.Expect(err).NotTo(HaveOccurred())
			known := map[string]bool{}
			for _, variable := range of.Spec.Variables {
				known[variable.Name] = true
				g.Expect(header).To(MatchRegexp(`(?m)^#   ` + variable.Name + ` `))
				g.Expect(string(patches)).To(ContainSubstring(`"variable":"` + variable.Name + `"`))
			}
			for _, listed := range regexp.MustCompile(`(?m)^#   (\w+) `).FindAllStringSubmatch(header, -1) {
				g.Expect(known).To(HaveKey(listed[1]), "%s is listed, but not known", listed[1])
			}
			for _, variable := range readTopology(g, template, "v1.13").Spec.Topology.Variables {
				g.Expect(known).To(HaveKey(variable.Name))
			}
		})
	}
}

// allVariables are those that the topology templates do not give, or give another
// value, by their names.
func allVariables() map[string]string {
	const patches = `{name: controlPlanePatches, value: ["machine: {sysctls: {vm.swappiness: \"1\"}}"]},
		{name: workerPatches, value: ["machine: {sysctls: {vm.swappiness: \"2\"}}"]}]`

	return map[string]string{
		topologyTemplate: `[{name: talosRelease, value: {version: v1.13.9, image: "example.com/installer:v1.13.9"}},
			{name: controlPlaneHostSelector, value: {matchLabels: {role: control-plane}}}, ` + patches,
		containerTopologyTemplate: `[{name: controlPlaneResources, value: {limits: {memory: 4Gi}}},
			{name: workerResources, value: {requests: {cpu: "1"}, limits: {memory: 5Gi}}}, ` + patches,
	}
}

// TestTheClassMakesWhatTalosAccepts: with the variables of the topology template,
// and with all that there are.
func TestTheClassMakesWhatTalosAccepts(t *testing.T) {
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	expect := map[string]func(Gomega, []*unstructured.Unstructured, bool){topologyTemplate: expectPatchedHosts, containerTopologyTemplate: expectPatchedPods}
	for template, file := range classes() {
		for _, contract := range []string{"v1.12", "v1.13", "v1.14"} {
			for with, more := range map[string]string{"the template's variables": "[]", "all variables": allVariables()[template]} {
				t.Run(file+" "+contract+" with "+with, func(t *testing.T) {
					g := NewWithT(t)
					of, topology := readClass(g, file), readTopology(g, template, contract)
					var added []clusterv1.ClusterVariable
					g.Expect(yaml.UnmarshalStrict([]byte(more), &added)).To(Succeed())
					made := of.patched(g, append(topology.Spec.Topology.Variables, added...))
					expect[template](g, made, len(added) > 0)
					controlPlane := as[controlplanev1.TalosControlPlaneTemplate](g, made[1]).Spec.Template.Spec.TalosConfigSpec
					worker := as[bootstrapv1.TalosConfigTemplate](g, made[3]).Spec.Template.Spec
					for role, spec := range map[configgen.Role]bootstrapv1.TalosConfigSpec{configgen.RoleControlPlane: controlPlane, configgen.RoleWorker: worker} {
						g.Expect(spec.TalosVersion).To(Equal(contract))
						g.Expect(spec.GenerateType).To(BeEquivalentTo(role))
						g.Expect(strings.Contains(rendered(g, bundle, topology, topology.Spec.Topology.Version, spec), "vm.swappiness")).To(Equal(len(added) > 0))
					}
				})
			}
		}
	}
}

// expectPatchedHosts looks at what the variables become.
func expectPatchedHosts(g Gomega, made []*unstructured.Unstructured, all bool) {
	infra := as[infrav1.TalosClusterTemplate](g, made[0])
	g.Expect(infra.Spec.Template.Spec.ControlPlaneEndpoint).To(Equal(clusterv1.APIEndpoint{Host: "lb.example.com", Port: 6443}))
	controlPlaneMachine, worker := as[infrav1.TalosMachineTemplate](g, made[2]), as[infrav1.TalosMachineTemplate](g, made[4])
	g.Expect(worker.Spec.Template.Spec.Metal.HostSelector.MatchLabels).To(Equal(map[string]string{"role": "worker", "size": "large"}))
	release, labels := infrav1.TalosReleaseSpec{}, BeEmpty()
	if all {
		release = infrav1.TalosReleaseSpec{Version: "v1.13.9", Image: "example.com/installer:v1.13.9"}
		labels = HaveKeyWithValue("role", "control-plane")
	}
	g.Expect(controlPlaneMachine.Spec.Template.Spec.Metal.HostSelector.MatchLabels).To(labels)
	for _, machine := range []infrav1.TalosMachineTemplate{controlPlaneMachine, worker} {
		g.Expect(machine.Spec.Template.Spec.Metal.Talos).To(Equal(release))
		g.Expect(machine.Spec.Template.Spec.Metal.ReleasePolicy).To(Equal(infrav1.ReleaseWipeSystem))
	}
}
