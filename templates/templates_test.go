// Package templates holds the cluster templates to our kinds and to Talos.
package templates

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// values are what a user says, beside the contract.
func values(contract string) map[string]string {
	return map[string]string{
		"CLUSTER_NAME": "demo", "NAMESPACE": "default", "KUBERNETES_VERSION": "v1.36.3", "TALOS_VERSION": contract,
		"CONTROL_PLANE_MACHINE_COUNT": "1", "WORKER_MACHINE_COUNT": "3",
		"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com",
		"CONTROL_PLANE_VIP":           "192.0.2.1", "CONTROL_PLANE_VIP_LINK": "eno1", "CONTROL_PLANE_SUBNET": "192.0.2.0/24",
		"WORKER_HOST_LABELS": "role: worker, size: large",
	}
}

// variable is one of a template, whose default may be made of another one.
var variable = regexp.MustCompile(`\$\{([A-Z_]+)(:=((?:[^${}]|\$\{[A-Z_]+(?::=[^${}]*)?\})*))?\}`)

// generate replaces the variables of a template, as clusterctl does.
func generate(g Gomega, template string, values map[string]string) string {
	return variable.ReplaceAllStringFunc(template, func(match string) string {
		found := variable.FindStringSubmatch(match)
		value, set := values[found[1]]
		if !set {
			g.Expect(found[2]).NotTo(BeEmpty(), "%s has no default", found[1])
			value = generate(g, found[3], values)
		}
		return value
	})
}

// cluster is what a template makes.
type cluster struct {
	cluster      clusterv1.Cluster
	infra        infrav1.TalosCluster
	controlPlane controlplanev1.TalosControlPlane
	workers      clusterv1.MachineDeployment
	config       bootstrapv1.TalosConfigTemplate
	machines     []infrav1.TalosMachineTemplate
	checks       []clusterv1.MachineHealthCheck
}

// parse reads manifests and refuses fields that do not exist.
func parse(g Gomega, manifests string) cluster {
	var made cluster
	for manifest := range strings.SplitSeq(manifests, "\n---\n") {
		var kind struct {
			Kind string `json:"kind"`
		}
		g.Expect(yaml.Unmarshal([]byte(manifest), &kind)).To(Succeed())
		var into any
		switch kind.Kind {
		case "Cluster":
			into = &made.cluster
		case "TalosCluster":
			into = &made.infra
		case "TalosControlPlane":
			into = &made.controlPlane
		case "MachineDeployment":
			into = &made.workers
		case "TalosConfigTemplate":
			into = &made.config
		case "TalosMachineTemplate":
			made.machines = append(made.machines, infrav1.TalosMachineTemplate{})
			into = &made.machines[len(made.machines)-1]
		case "MachineHealthCheck":
			made.checks = append(made.checks, clusterv1.MachineHealthCheck{})
			into = &made.checks[len(made.checks)-1]
		}
		g.Expect(into).NotTo(BeNil(), "kind %q", kind.Kind)
		g.Expect(yaml.UnmarshalStrict([]byte(manifest), into)).To(Succeed(), kind.Kind)
	}

	return made
}

// all are the templates by their file names.
func all(g Gomega) map[string]string {
	files, err := filepath.Glob("cluster-template*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(ConsistOf("cluster-template.yaml", "cluster-template-metal.yaml", "cluster-template-metal-vip.yaml", topologyTemplate,
		containerTemplate, containerTopologyTemplate))
	found := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		found[file] = string(text)
	}

	return found
}

func TestVariablesAreListedInTheHeader(t *testing.T) {
	g := NewWithT(t)
	for file, text := range all(g) {
		header, _, _ := strings.Cut(text, "\napiVersion")
		used := map[string]bool{}
		for _, match := range variable.FindAllStringSubmatch(text, -1) {
			used[match[1]] = true
			g.Expect(header).To(MatchRegexp(`(?m)^#   `+match[1]+` `), "%s in %s", match[1], file)
			if strings.TrimSpace(match[3]) != "" {
				g.Expect(header).To(ContainSubstring("(default: "+match[3]+")"), "%s in %s", match[1], file)
			}
			for _, inner := range variable.FindAllStringSubmatch(match[3], -1) {
				used[inner[1]] = true
			}
		}
		for _, listed := range regexp.MustCompile(`(?m)^#   ([A-Z_]+) `).FindAllStringSubmatch(header, -1) {
			g.Expect(used).To(HaveKey(listed[1]), "%s is listed in %s, but not used", listed[1], file)
		}
	}
}

// TestTheDefaultIsFlavorMetal: "clusterctl generate cluster" without a flavor.
func TestTheDefaultIsFlavorMetal(t *testing.T) {
	g := NewWithT(t)
	g.Expect(all(g)["cluster-template.yaml"]).To(Equal(all(g)["cluster-template-metal.yaml"]))
}

func TestTemplatesMakeWhatTalosAccepts(t *testing.T) {
	bundle, err := secrets.NewBundle(time.Unix(1<<30, 0), "v1.13", nil)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	for file, text := range all(NewWithT(t)) {
		if file == topologyTemplate || file == containerTopologyTemplate {
			continue
		}
		for _, contract := range []string{"v1.12", "v1.13", "v1.14"} {
			t.Run(file+" "+contract, func(t *testing.T) {
				g := NewWithT(t)
				made := parse(g, generate(g, edited(text, contract), values(contract)))
				expectOneCluster(g, made)
				if file == containerTemplate {
					expectPods(g, made)
				} else {
					expectHosts(g, made)
				}
				for role, spec := range map[configgen.Role]bootstrapv1.TalosConfigSpec{
					configgen.RoleControlPlane: made.controlPlane.Spec.TalosConfigSpec,
					configgen.RoleWorker:       made.config.Spec.Template.Spec,
				} {
					g.Expect(spec.TalosVersion).To(Equal(contract))
					expectRendered(g, bundle, role, made, spec)
				}
			})
		}
	}
}

// edited does what the comments of the template ask for with contract v1.14.
func edited(text, contract string) string {
	legacy := regexp.MustCompile(`(?m)^    - \|\n      machine:\n        kubelet:\n(      .*\n)+`)
	if contract != "v1.14" || !legacy.MatchString(text) {
		return text
	}
	commented := regexp.MustCompile(`(?m)^    # (- \||  )`)

	return commented.ReplaceAllString(legacy.ReplaceAllString(text, ""), "    $1")
}

func expectOneCluster(g Gomega, made cluster) {
	g.Expect(made.cluster.Spec.InfrastructureRef.Name).To(Equal(made.infra.Name))
	g.Expect(made.cluster.Spec.ControlPlaneRef.Name).To(Equal(made.controlPlane.Name))
	g.Expect(made.machines).To(HaveLen(2))
	g.Expect(made.machines[0].Name).To(Equal(made.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef.Name))
	g.Expect(made.machines[1].Name).To(Equal(made.workers.Spec.Template.Spec.InfrastructureRef.Name))
	g.Expect(made.config.Name).To(Equal(made.workers.Spec.Template.Spec.Bootstrap.ConfigRef.Name))
	workers := made.checks[len(made.checks)-1]
	g.Expect(workers.Spec.Selector.MatchLabels).To(HaveKeyWithValue(clusterv1.MachineDeploymentNameLabel, made.workers.Name))
	g.Expect(workers.Spec.Checks.NodeStartupTimeoutSeconds).To(HaveValue(BeNumerically(">", 600)), "a machine may take longer than ten minutes")
}

func expectHosts(g Gomega, made cluster) {
	g.Expect(made.infra.Spec.ControlPlaneEndpoint.IsValid()).To(BeTrue())
	g.Expect(made.checks).To(HaveLen(1))
	g.Expect(made.machines[0].Spec.Template.Spec.Metal.HostSelector.MatchLabels).To(BeEmpty())
	g.Expect(made.machines[1].Spec.Template.Spec.Metal.HostSelector.MatchLabels).To(Equal(map[string]string{"role": "worker", "size": "large"}))
}

// expectRendered renders the configuration, which ends with Talos' own validation.
func expectRendered(g Gomega, bundle *secrets.Bundle, role configgen.Role, made cluster, spec bootstrapv1.TalosConfigSpec) {
	g.Expect(spec.GenerateType).To(BeEquivalentTo(role))
	rendered := rendered(g, bundle, &made.cluster, made.controlPlane.Spec.Version, spec)
	if len(spec.StrategicPatches) > 0 {
		g.Expect(regexp.MustCompile(`"?!192\.0\.2\.1/32`).FindAllString(rendered, -1)).To(HaveLen(2), "the virtual IP is kept out of etcd's and the kubelet's subnets")
	}
}

// rendered is the configuration of a machine of a cluster.
func rendered(g Gomega, bundle *secrets.Bundle, cluster *clusterv1.Cluster, version string, spec bootstrapv1.TalosConfigSpec) string {
	input, err := configgen.FromSpec(&spec)
	g.Expect(err).NotTo(HaveOccurred())
	network := cluster.Spec.ClusterNetwork
	input.ClusterName, input.Endpoint, input.KubernetesVersion, input.Hostname = cluster.Name, "https://192.0.2.1:6443", version, "demo-abcde"
	input.PodCIDRs, input.ServiceCIDRs, input.ServiceDomain = network.Pods.CIDRBlocks, network.Services.CIDRBlocks, network.ServiceDomain
	input.Secrets = bundle.Machinery()
	out, err := configgen.Render(input)
	g.Expect(err).NotTo(HaveOccurred())

	return string(out)
}
