package e2e

import (
	"context"
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// bothSpecs have machines of both kinds at the same time.
func bothSpecs() {
	const metal, pods = "both-metal", "both-pods"
	describeFailure(metal, pods)
	leaveNothing(metal, pods)
	It("are in clusters side by side, and workers of both in one cluster", Label("both"), func(ctx SpecContext) {
		step(ctx, "both: side by side", func(ctx context.Context) string {
			addHosts(ctx, metal, 2)
			generateMetal(ctx, metal, parts.KubernetesVersion, 1, 1)
			generate(ctx, pods, "container", parts.KubernetesVersion, 1, 1, nil)
			awaitWhole(ctx, metal, 1, 1)
			awaitWhole(ctx, pods, 1, 1)
			world.memory = append(world.memory, memoryOfHosts(ctx, metal)...)
			return "2 clusters whole"
		})
		step(ctx, "both: in one cluster", func(ctx context.Context) string {
			addHosts(ctx, pods, 1)
			addMetalWorkers(ctx, pods, 1)
			awaitWhole(ctx, pods, 1, 2)
			expectKubelets(ctx, pods, parts.KubernetesVersion)
			hosts := &infrav1.TalosHostList{}
			Expect(world.client.List(ctx, hosts, client.InNamespace(pods))).To(Succeed())
			Expect(hosts.Items).To(HaveExactElements(HaveField("Status.State", infrav1.HostProvisioned)))
			return "a worker of each kind Ready"
		})
		step(ctx, "both: delete", func(ctx context.Context) string {
			deleteCluster(ctx, pods)
			deleteCluster(ctx, metal)
			awaitFreeHosts(ctx, pods)
			awaitFreeHosts(ctx, metal)
			awaitNothingLeft(ctx, pods)
			return "hosts wiped, nothing left of the Pods"
		})
		play("both")
	}, SpecTimeout(longTimeout*2))
}

// addMetalWorkers gives a cluster workers on hosts of its namespace.
func addMetalWorkers(ctx context.Context, name string, replicas int32) {
	GinkgoHelper()
	existing := &clusterv1.MachineDeployment{}
	Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-workers"}, existing)).To(Succeed())
	config := &bootstrapv1.TalosConfigTemplate{}
	Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: existing.Spec.Template.Spec.Bootstrap.ConfigRef.Name}, config)).To(Succeed())

	meta := metav1.ObjectMeta{Namespace: name, Name: name + "-metal"}
	// What machines in Pods are patched with is for those.
	spec := bootstrapv1.TalosConfigSpec{
		GenerateType: config.Spec.Template.Spec.GenerateType, TalosVersion: config.Spec.Template.Spec.TalosVersion, Hostname: config.Spec.Template.Spec.Hostname,
	}
	Expect(world.client.Create(ctx, &bootstrapv1.TalosConfigTemplate{
		ObjectMeta: meta, Spec: bootstrapv1.TalosConfigTemplateSpec{Template: bootstrapv1.TalosConfigTemplateResource{Spec: spec}},
	})).To(Succeed())
	Expect(world.client.Create(ctx, &infrav1.TalosMachineTemplate{
		ObjectMeta: meta,
		Spec: infrav1.TalosMachineTemplateSpec{Template: infrav1.TalosMachineTemplateResource{
			Spec: infrav1.TalosMachineSpec{Metal: &infrav1.TalosMachineMetalSpec{ReleasePolicy: infrav1.ReleaseWipeSystem}},
		}},
	})).To(Succeed())
	deployment := &clusterv1.MachineDeployment{ObjectMeta: meta, Spec: *existing.Spec.DeepCopy()}
	deployment.Spec.Replicas = ptr.To(replicas)
	// The selector and the labels are made anew from the name.
	deployment.Spec.Selector = metav1.LabelSelector{}
	deployment.Spec.Template.Labels = nil
	deployment.Spec.Template.Spec.Bootstrap.ConfigRef.Name = meta.Name
	deployment.Spec.Template.Spec.InfrastructureRef.Name = meta.Name
	Expect(world.client.Create(ctx, deployment)).To(Succeed())
	fmt.Fprintf(GinkgoWriter, "MachineDeployment %s has %d workers on metal\n", meta.Name, replicas)
}
