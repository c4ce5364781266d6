package templates

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const (
	containerTemplate         = "cluster-template-container.yaml"
	containerTopologyTemplate = "cluster-template-container-topology.yaml"

	officialImage = "ghcr.io/siderolabs/talos:v1.13.9"
)

// few are what nobody can do without: a name, a namespace and a version.
func few() map[string]string {
	return map[string]string{"CLUSTER_NAME": "dev", "NAMESPACE": "default", "KUBERNETES_VERSION": "v1.36.3"}
}

// expectPods looks at what flavor container makes: Pods, and a Service for them.
func expectPods(g Gomega, made cluster) {
	g.Expect(made.infra.Spec.Container).NotTo(BeNil())
	g.Expect(made.infra.Spec.ControlPlaneEndpoint).To(BeZero(), "the provider sets it")
	for i, limit := range []string{"3Gi", "2Gi"} {
		container := made.machines[i].Spec.Template.Spec.Container
		g.Expect(container).NotTo(BeNil())
		g.Expect(container.Talos).To(Equal(infrav1.TalosReleaseSpec{Version: "v1.13.9", Image: officialImage}))
		g.Expect(container.Resources.Limits.Memory().Equal(resource.MustParse(limit))).To(BeTrue())
		for name, request := range container.Resources.Requests {
			g.Expect(request.Cmp(container.Resources.Limits[name])).To(BeNumerically("<=", 0), "%s", name)
		}
		g.Expect(container.Storage).To(Equal(infrav1.ContainerStorage{Type: infrav1.ContainerStorageEphemeral}))
	}
}

func TestFlavorContainerNeedsANameAndAVersionOnly(t *testing.T) {
	g := NewWithT(t)
	made := parse(g, generate(g, all(g)[containerTemplate], few()))
	expectPods(g, made)
	g.Expect(made.controlPlane.Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(made.workers.Spec.Replicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(made.controlPlane.Spec.TalosConfigSpec.TalosVersion).To(Equal("v1.13"))
	g.Expect(made.infra.Spec.Container.ControlPlaneService).To(Equal(infrav1.ControlPlaneServiceSpec{Type: infrav1.ControlPlaneServiceClusterIP, Port: ptr.To(int32(6443))}))

	topology := readTopologyOf(g, few())
	g.Expect(topology.Spec.Topology.ControlPlane.Replicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(topology.Spec.Topology.Workers.MachineDeployments[0].Replicas).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(topology.Spec.ClusterNetwork).To(Equal(made.cluster.Spec.ClusterNetwork))
}

func TestVariablesOfFlavorContainerReachTheMachines(t *testing.T) {
	g, said := NewWithT(t), few()
	maps.Copy(said, map[string]string{
		"TALOS_RELEASE": "v1.13.8", "CONTROL_PLANE_SERVICE_TYPE": "NodePort", "WORKER_MEMORY_LIMIT": "4Gi", "CONTROL_PLANE_CPU_REQUEST": "2",
		"CONTROL_PLANE_STORAGE": "type: VolumeClaim, volumeClaim: {size: 20Gi, storageClassName: fast}",
	})
	made := parse(g, generate(g, all(g)[containerTemplate], said))
	controlPlane, worker := made.machines[0].Spec.Template.Spec.Container, made.machines[1].Spec.Template.Spec.Container
	g.Expect(controlPlane.Talos).To(Equal(infrav1.TalosReleaseSpec{Version: "v1.13.8", Image: "ghcr.io/siderolabs/talos:v1.13.8"}))
	g.Expect(made.infra.Spec.Container.ControlPlaneService.Type).To(Equal(infrav1.ControlPlaneServiceNodePort))
	g.Expect(controlPlane.Resources.Requests.Cpu().Value()).To(BeEquivalentTo(2))
	g.Expect(controlPlane.Storage).To(Equal(infrav1.ContainerStorage{
		Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{StorageClassName: "fast", Size: resource.MustParse("20Gi")},
	}))
	g.Expect(worker.Resources.Limits.Memory().Equal(resource.MustParse("4Gi"))).To(BeTrue())
	g.Expect(worker.Storage.Type).To(Equal(infrav1.ContainerStorageEphemeral))

	said["TALOS_IMAGE"] = "registry.example.com/talos:mine"
	made = parse(g, generate(g, all(g)[containerTemplate], said))
	for _, machine := range made.machines {
		g.Expect(machine.Spec.Template.Spec.Container.Talos).To(Equal(infrav1.TalosReleaseSpec{Version: "v1.13.8", Image: "registry.example.com/talos:mine"}))
	}
}

// TestFlavorContainerTopologyMakesTheSameMachines: whatever a user says, the ClusterClass
// makes of it what flavor container does.
func TestFlavorContainerTopologyMakesTheSameMachines(t *testing.T) {
	for sentence, more := range map[string]map[string]string{
		"by default": nil,
		"with all that may be said": {
			"TALOS_RELEASE": "v1.13.8", "CONTROL_PLANE_CPU_REQUEST": "2", "CONTROL_PLANE_MEMORY_REQUEST": "1Gi", "CONTROL_PLANE_CPU_LIMIT": "3",
			"CONTROL_PLANE_MEMORY_LIMIT": "5Gi", "WORKER_CPU_REQUEST": "1", "WORKER_MEMORY_REQUEST": "2Gi", "WORKER_CPU_LIMIT": "4",
			"WORKER_MEMORY_LIMIT": "6Gi", "WORKER_STORAGE": "type: VolumeClaim, volumeClaim: {size: 20Gi}",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			g, said := NewWithT(t), few()
			maps.Copy(said, more)
			flavor := parse(g, generate(g, all(g)[containerTemplate], said))
			made := readClass(g, classes()[containerTopologyTemplate]).patched(g, readTopologyOf(g, said).Spec.Topology.Variables)
			for i, template := range []*unstructured.Unstructured{made[2], made[4]} {
				machine := as[infrav1.TalosMachineTemplate](g, template)
				g.Expect(machine.Spec).To(BeComparableTo(flavor.machines[i].Spec))
			}
		})
	}
}

// TestNetworksOfFlavorContainerAreUnusual: those of a management cluster made with the
// defaults of the tools that people use must not overlap them.
func TestNetworksOfFlavorContainerAreUnusual(t *testing.T) {
	g := NewWithT(t)
	networks := readTopologyOf(g, few()).Spec.ClusterNetwork
	ours := slices.Concat(networks.Pods.CIDRBlocks, networks.Services.CIDRBlocks)
	g.Expect(ours).To(HaveLen(2))
	for i, own := range ours {
		taken := append([]string{
			"10.244.0.0/16", "10.96.0.0/12", // kind, kubeadm with Flannel, Talos
			"10.42.0.0/16", "10.43.0.0/16", // K3s, RKE2
			"192.168.0.0/16",                // Calico
			"172.16.0.0/12",                 // Docker
			"10.32.0.0/12", "10.233.0.0/16", // Weave, Kubespray
			"10.128.0.0/14", "172.30.0.0/16", // OpenShift
			"10.100.0.0/16", "172.20.0.0/16", // EKS
			"10.1.0.0/16", "10.152.183.0/24", // MicroK8s
			"10.85.0.0/16", "10.88.0.0/15", // CRI-O, Podman
			"10.0.0.0/16", "10.5.0.0/16", // AKS; talosctl cluster create docker
			"100.64.0.0/10", "169.254.0.0/16", // carriers' NAT, link-local
		}, ours[:i]...)
		for _, other := range taken {
			g.Expect(netip.MustParsePrefix(own).Overlaps(netip.MustParsePrefix(other))).To(BeFalse(), "%s and %s", own, other)
		}
	}
}

// TestHealthChecksOfFlavorContainer: one of three control plane machines is replaced,
// but neither the only one nor two; and workers however many are bad. The ClusterClass
// says the same.
func TestHealthChecksOfFlavorContainer(t *testing.T) {
	g := NewWithT(t)
	made := parse(g, generate(g, all(g)[containerTemplate], few()))
	g.Expect(made.checks).To(HaveLen(2))
	g.Expect(made.checks[0].Spec.Selector.MatchLabels).To(Equal(map[string]string{clusterv1.MachineControlPlaneLabel: ""}))
	atMost := func(check clusterv1.MachineHealthCheck, machines int) int {
		allowed, err := intstr.GetScaledValueFromIntOrPercent(check.Spec.Remediation.TriggerIf.UnhealthyLessThanOrEqualTo, machines, false)
		g.Expect(err).NotTo(HaveOccurred())
		return allowed
	}
	for machines, healed := range map[int]int{1: 0, 3: 1, 5: 2} {
		g.Expect(atMost(made.checks[0], machines)).To(Equal(healed), "of %d", machines)
		g.Expect(atMost(made.checks[1], machines)).To(Equal(machines), "of %d", machines)
	}

	class := readClass(g, classes()[containerTopologyTemplate])
	controlPlane, workers := class.Spec.ControlPlane.HealthCheck, class.Spec.Workers.MachineDeployments[0].HealthCheck
	g.Expect(controlPlane.Checks.UnhealthyNodeConditions).To(Equal(made.checks[0].Spec.Checks.UnhealthyNodeConditions))
	g.Expect(workers.Checks.UnhealthyNodeConditions).To(Equal(made.checks[1].Spec.Checks.UnhealthyNodeConditions))
	g.Expect(controlPlane.Remediation.TriggerIf).To(BeEquivalentTo(made.checks[0].Spec.Remediation.TriggerIf))
	g.Expect(workers.Remediation.TriggerIf).To(BeEquivalentTo(made.checks[1].Spec.Remediation.TriggerIf))
	g.Expect(controlPlane.Checks.NodeStartupTimeoutSeconds).To(Equal(made.checks[0].Spec.Checks.NodeStartupTimeoutSeconds))
}

// readTopologyOf is the Cluster that flavor container-topology makes of variables.
func readTopologyOf(g Gomega, variables map[string]string) *clusterv1.Cluster {
	cluster := &clusterv1.Cluster{}
	g.Expect(yaml.UnmarshalStrict([]byte(generate(g, all(g)[containerTopologyTemplate], variables)), cluster)).To(Succeed())

	return cluster
}

// expectPatchedPods looks at what the variables become.
func expectPatchedPods(g Gomega, made []*unstructured.Unstructured, all bool) {
	infra := as[infrav1.TalosClusterTemplate](g, made[0])
	g.Expect(infra.Spec.Template.Spec.ControlPlaneEndpoint).To(BeZero())
	g.Expect(infra.Spec.Template.Spec.Container.ControlPlaneService).To(Equal(infrav1.ControlPlaneServiceSpec{Type: infrav1.ControlPlaneServiceClusterIP, Port: ptr.To(int32(6443))}))
	limits := map[int]string{2: "3Gi", 4: "2Gi"}
	if all {
		limits = map[int]string{2: "4Gi", 4: "5Gi"}
	}
	for i, limit := range limits {
		container := as[infrav1.TalosMachineTemplate](g, made[i]).Spec.Template.Spec.Container
		g.Expect(container.Talos).To(Equal(infrav1.TalosReleaseSpec{Version: "v1.13.9", Image: officialImage}))
		g.Expect(container.Storage).To(Equal(infrav1.ContainerStorage{Type: infrav1.ContainerStorageEphemeral}))
		g.Expect(container.Resources.Limits[corev1.ResourceMemory]).To(Equal(resource.MustParse(limit)))
		g.Expect(container.Resources.Requests).To(HaveLen(map[bool]int{false: 2, true: (i - 2) / 2}[all]), "the variable takes the place of all that the class says")
	}
}
