package templates

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// configured is what the machines of a cluster are configured by.
type configured struct {
	cluster              *clusterv1.Cluster
	version              string
	controlPlane, worker bootstrapv1.TalosConfigSpec
}

// configure makes a cluster of a template, and of its ClusterClass where it has one.
func configure(g Gomega, file, contract string, more map[string]string) configured {
	said := values(contract)
	maps.Copy(said, more)
	text := generate(g, edited(all(g)[file], contract), said)
	class, isTopology := classes()[file]
	if !isTopology {
		made := parse(g, text)
		return configured{&made.cluster, made.controlPlane.Spec.Version, made.controlPlane.Spec.TalosConfigSpec, made.config.Spec.Template.Spec}
	}
	cluster := &clusterv1.Cluster{}
	g.Expect(yaml.UnmarshalStrict([]byte(text), cluster)).To(Succeed())
	made := readClass(g, class).patched(g, cluster.Spec.Topology.Variables)

	return configured{
		cluster, cluster.Spec.Topology.Version,
		as[controlplanev1.TalosControlPlaneTemplate](g, made[1]).Spec.Template.Spec.TalosConfigSpec, as[bootstrapv1.TalosConfigTemplate](g, made[3]).Spec.Template.Spec,
	}
}

// TestTheCNIIsTalosOwnUnlessSaidOtherwise: by default each flavor makes the machines that
// it made before it had the variable, so none of them is replaced. With none Flannel is
// left out, whatever the contract, and the workers are the same.
func TestTheCNIIsTalosOwnUnlessSaidOtherwise(t *testing.T) {
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for file := range all(NewWithT(t)) {
		for _, contract := range configgen.Contracts() {
			t.Run(file+" "+contract, func(t *testing.T) {
				g := NewWithT(t)
				flannel := func(made configured, spec bootstrapv1.TalosConfigSpec) (string, bool) {
					text := rendered(g, bundle, made.cluster, made.version, spec)
					cfg, err := configloader.NewFromBytes([]byte(text))
					g.Expect(err).NotTo(HaveOccurred())
					return text, cfg.K8sFlannelCNIConfig() != nil
				}
				made := configure(g, file, contract, nil)
				g.Expect(made.controlPlane.CNI).To(Equal(bootstrapv1.CNIFlannel))
				g.Expect(made.worker.CNI).To(BeEmpty(), "workers install none")
				byDefault, installed := flannel(made, made.controlPlane)
				g.Expect(installed).To(BeTrue())
				before := made.controlPlane
				before.CNI = ""
				without, _ := flannel(made, before)
				g.Expect(byDefault).To(Equal(without), "that of machines from before the variable")

				other := configure(g, file, contract, map[string]string{"CNI": "none"})
				_, installed = flannel(other, other.controlPlane)
				g.Expect(installed).To(BeFalse())
				g.Expect(other.worker).To(Equal(made.worker))
			})
		}
	}
}

// TestAddOnsFindTheCluster: by its name, and by the labels that the user gives it. A map of
// labels is never empty: no object keeps one, and whoever applies it on the server's side
// would write the Cluster anew each time.
func TestAddOnsFindTheCluster(t *testing.T) {
	for file := range all(NewWithT(t)) {
		g := NewWithT(t)
		g.Expect(configure(g, file, "v1.13", nil).cluster.Labels).To(Equal(map[string]string{clusterv1.ClusterNameLabel: "demo"}), file)
		labels := configure(g, file, "v1.13", map[string]string{"CLUSTER_LABELS": "cni: cilium, metrics: enabled"}).cluster.Labels
		g.Expect(labels).To(Equal(map[string]string{clusterv1.ClusterNameLabel: "demo", "cni": "cilium", "metrics": "enabled"}), file)
	}
}

// TestTheVariableOfTheClassTakesWhatTheFieldTakes: neither refuses at the Cluster what
// the other one takes, nor lets through what stops the topology controller later.
func TestTheVariableOfTheClassTakesWhatTheFieldTakes(t *testing.T) {
	g := NewWithT(t)
	raw, err := os.ReadFile("../config/controlplane/crd/bases/controlplane.cluster.x-k8s.io_taloscontrolplanes.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	crd := &apiextensionsv1.CustomResourceDefinition{}
	g.Expect(yaml.UnmarshalStrict(raw, crd)).To(Succeed())
	field := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["talosConfigSpec"].Properties["cni"]
	g.Expect(field.Enum).To(HaveLen(2))
	for _, file := range classes() {
		variables := readClass(g, file).Spec.Variables
		at := slices.IndexFunc(variables, func(variable clusterv1.ClusterClassVariable) bool { return variable.Name == "cni" })
		g.Expect(at).NotTo(Equal(-1), file)
		schema := variables[at].Schema.OpenAPIV3Schema
		g.Expect(schema.Enum).To(Equal(field.Enum), file)
		g.Expect(schema.Default.Raw).To(MatchJSON(`"flannel"`), file)
	}
}

// TestTheSampleOfACNIFitsItsCluster: the sample of a CNI selects the sample of a Cluster,
// in which Talos installs nothing that it takes the place of, and takes the address of
// the API server that the machines have.
func TestTheSampleOfACNIFitsItsCluster(t *testing.T) {
	g := NewWithT(t)
	cluster, addon := &clusterv1.Cluster{}, &addonv1.TalosClusterAddon{}
	for file, into := range map[string]any{"cluster.yaml": cluster, "talosclusteraddon-cilium.yaml": addon} {
		text, err := os.ReadFile("../config/samples/addons/" + file)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(yaml.UnmarshalStrict(text, into)).To(Succeed())
	}
	selector, err := metav1.LabelSelectorAsSelector(&addon.Spec.ClusterSelector)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(selector.Matches(labels.Set(cluster.Labels))).To(BeTrue())
	g.Expect(addon.Spec.Phase).To(Equal(addonv1.PhaseNetwork), "no Node is ready without it")

	of := readClass(g, classes()[topologyTemplate])
	g.Expect(cluster.Spec.Topology.ClassRef.Name).To(Equal(of.Name))
	for _, variable := range cluster.Spec.Topology.Variables {
		g.Expect(of.Spec.Variables).To(ContainElement(HaveField("Name", variable.Name)))
	}
	hosts := readTopology(g, topologyTemplate, "v1.13").Spec.Topology.Variables
	made := of.patched(g, append(hosts, cluster.Spec.Topology.Variables...))
	spec := as[controlplanev1.TalosControlPlaneTemplate](g, made[1]).Spec.Template.Spec.TalosConfigSpec
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), spec.TalosVersion, nil)
	g.Expect(err).NotTo(HaveOccurred())
	cfg, err := configloader.NewFromBytes([]byte(rendered(g, bundle, cluster, cluster.Spec.Topology.Version, spec)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(cfg.K8sFlannelCNIConfig()).To(BeNil())
	g.Expect(cfg.K8sProxyConfig().Enabled()).To(BeFalse())
	values := struct {
		KubeProxyReplacement bool   `json:"kubeProxyReplacement"`
		Host                 string `json:"k8sServiceHost"`
		Port                 int    `json:"k8sServicePort"`
	}{}
	g.Expect(json.Unmarshal(addon.Spec.Values.Raw, &values)).To(Succeed())
	g.Expect(values.KubeProxyReplacement).To(BeTrue())
	g.Expect(values.Host).To(Equal("localhost"))
	g.Expect(values.Port).To(Equal(cfg.K8sKubePrismConfig().Port()))
}
