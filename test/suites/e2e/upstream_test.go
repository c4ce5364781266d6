package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	kubeadmv1 "sigs.k8s.io/cluster-api/api/controlplane/kubeadm/v1beta2"
	upstream "sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const (
	// podsFlavor is the template of clusters in Pods, topologyFlavor the one of such
	// clusters of a ClusterClass.
	podsFlavor, topologyFlavor = "container", "container-topology"
	// upstreamLabel is on all of upstream's specs, before a label of each.
	upstreamLabel = "upstream"
)

// upstreamSpecs are Cluster API's own specs, unchanged. docs/testing.md lists those
// that are not here, each with the line that stops it.
func upstreamSpecs(ctx context.Context) {
	upstreamLeavesNothing()
	Context("QuickStart", Label(upstreamLabel, "quick-start"), func() {
		upstream.QuickStartSpec(ctx, func() upstream.QuickStartSpecInput {
			return upstream.QuickStartSpecInput{
				E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("quick-start"),
				Flavor: ptr.To(podsFlavor), ControlPlaneWaiters: waiters(),
			}
		})
	})
	Context("QuickStart with a ClusterClass", Label(upstreamLabel, "quick-start-topology"), func() {
		upstream.QuickStartSpec(ctx, func() upstream.QuickStartSpecInput {
			return upstream.QuickStartSpecInput{
				E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("quick-start-topology"),
				Flavor: ptr.To(topologyFlavor), ControlPlaneWaiters: waiters(),
			}
		})
	})
	Context("MachineDeploymentScale", Label(upstreamLabel, "md-scale"), func() {
		upstream.MachineDeploymentScaleSpec(ctx, func() upstream.MachineDeploymentScaleSpecInput {
			return upstream.MachineDeploymentScaleSpecInput{
				E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("md-scale"),
				Flavor: podsFlavor, ControlPlaneWaiters: waiters(),
			}
		})
	})
	Context("MachineDeploymentRemediation", Label(upstreamLabel, "md-remediation"), func() {
		upstream.MachineDeploymentRemediationSpec(ctx, func() upstream.MachineDeploymentRemediationSpecInput {
			return upstream.MachineDeploymentRemediationSpecInput{
				E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("md-remediation"),
				Flavor: ptr.To(remediationFlavor), ControlPlaneWaiters: waiters(),
			}
		})
	})
	Context("ClusterDeletion", Label(upstreamLabel, "cluster-deletion"), func() {
		upstream.ClusterDeletionSpec(ctx, func() upstream.ClusterDeletionSpecInput {
			return upstream.ClusterDeletionSpecInput{
				E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("cluster-deletion"),
				Flavor: ptr.To(topologyFlavor), ControlPlaneMachineCount: ptr.To(int64(3)), ControlPlaneWaiters: waiters(), ClusterDeletionPhases: deletionPhases(),
			}
		})
	})
	Context("ClusterClassChanges", Label(upstreamLabel, "clusterclass-changes"), func() {
		upstream.ClusterClassChangesSpec(ctx, clusterClassChanges)
	})
	Context("NodeDrainTimeout", Label(upstreamLabel, "node-drain"), func() {
		upstream.NodeDrainTimeoutSpec(ctx, func() upstream.NodeDrainTimeoutSpecInput {
			return upstream.NodeDrainTimeoutSpecInput{
				E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("node-drain"),
				Flavor: ptr.To(topologyFlavor), ControlPlaneWaiters: waiters(),
			}
		})
	})
}

// allowPods lets machines be Pods in the namespace of a spec.
func allowPods(proxy framework.ClusterProxy, name string) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	label := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, infrav1.PodSecurityLabel, infrav1.PodSecurityPrivileged)
	Expect(proxy.GetClient().Patch(context.Background(), namespace, client.RawPatch(types.MergePatchType, []byte(label)))).To(Succeed())
}

// folder is where a spec of upstream's keeps what it collects.
func folder(spec string) string { return filepath.Join(world.artifacts, "upstream", spec) }

// clusterClassChanges changes what replaces workers, and what replaces no control
// plane machine.
func clusterClassChanges() upstream.ClusterClassChangesSpecInput {
	return upstream.ClusterClassChangesSpecInput{
		E2EConfig: world.config, ClusterctlConfigPath: world.tool.Config, BootstrapClusterProxy: world.proxy, PostNamespaceCreated: allowPods, ArtifactFolder: folder("clusterclass-changes"),
		Flavor: topologyFlavor, ControlPlaneWaiters: waiters(),
		ModifyControlPlaneFields: map[string]any{"spec.etcd.leaveTimeoutSeconds": int64(150)},
		ModifyMachineDeploymentBootstrapConfigTemplateFields: map[string]any{
			"spec.template.spec.configPatches": []any{map[string]any{"op": "add", "path": "/machine/nodeLabels", "value": map[string]any{"changed": "yes"}}},
		},
		ModifyMachineDeploymentInfrastructureMachineTemplateFields: map[string]any{
			"spec.template.spec.container.podMetadata.annotations": map[string]any{"changed": "yes"},
		},
	}
}

// deletionPhases are the order in which the objects of a cluster go: workers, the
// control plane, the infrastructure.
func deletionPhases() []upstream.ClusterDeletionPhase {
	kind := func(names ...string) func(corev1.ObjectReference, []metav1.OwnerReference) bool {
		return func(object corev1.ObjectReference, _ []metav1.OwnerReference) bool {
			return slices.Contains(names, object.Kind)
		}
	}
	machineOf := func(owners ...string) func(corev1.ObjectReference, []metav1.OwnerReference) bool {
		return func(object corev1.ObjectReference, references []metav1.OwnerReference) bool {
			return object.Kind == "Machine" && slices.ContainsFunc(references, func(reference metav1.OwnerReference) bool { return slices.Contains(owners, reference.Kind) }) ||
				slices.Contains(owners, object.Kind)
		}
	}
	return []upstream.ClusterDeletionPhase{
		{ObjectFilter: machineOf("MachineDeployment", "MachineSet"), BlockingObjectFilter: kind("Machine")},
		{ObjectFilter: machineOf("TalosControlPlane"), BlockingObjectFilter: kind("Machine")},
		{ObjectFilter: kind("TalosCluster"), BlockingObjectFilter: kind("TalosCluster")},
	}
}

// waiters wait for a TalosControlPlane where upstream waits for a
// KubeadmControlPlane. Upstream's specs ask the latter for its name and size: they
// get ours under its type.
func waiters() clusterctl.ControlPlaneWaiters {
	return clusterctl.ControlPlaneWaiters{
		WaitForControlPlaneInitialized: func(ctx context.Context, input clusterctl.ApplyCustomClusterTemplateAndWaitInput, result *clusterctl.ApplyCustomClusterTemplateAndWaitResult) {
			Eventually(func(g Gomega) {
				controlPlane := controlPlaneOf(ctx, g, result)
				g.Expect(controlPlane.Status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
			}, input.WaitForControlPlaneIntervals...).Should(Succeed())
		},
		WaitForControlPlaneMachinesReady: func(ctx context.Context, input clusterctl.ApplyCustomClusterTemplateAndWaitInput, result *clusterctl.ApplyCustomClusterTemplateAndWaitResult) {
			Eventually(func(g Gomega) {
				controlPlane := controlPlaneOf(ctx, g, result)
				g.Expect(conditions.IsTrue(controlPlane, controlplanev1.AvailableCondition)).To(BeTrue(), conditions.GetMessage(controlPlane, controlplanev1.AvailableCondition))
				g.Expect(controlPlane.Status.ReadyReplicas).To(Equal(controlPlane.Spec.Replicas))
				result.ControlPlane = &kubeadmv1.KubeadmControlPlane{
					ObjectMeta: metav1.ObjectMeta{Namespace: controlPlane.Namespace, Name: controlPlane.Name},
					Spec:       kubeadmv1.KubeadmControlPlaneSpec{Replicas: controlPlane.Spec.Replicas, Version: controlPlane.Spec.Version},
				}
			}, input.WaitForControlPlaneIntervals...).Should(Succeed())
		},
	}
}

// controlPlaneOf reads the control plane of a cluster that upstream has made.
func controlPlaneOf(ctx context.Context, g Gomega, result *clusterctl.ApplyCustomClusterTemplateAndWaitResult) *controlplanev1.TalosControlPlane {
	controlPlane := &controlplanev1.TalosControlPlane{}
	g.Expect(result.Cluster.Spec.ControlPlaneRef.Kind).To(Equal("TalosControlPlane"))
	key := client.ObjectKey{Namespace: result.Cluster.Namespace, Name: result.Cluster.Spec.ControlPlaneRef.Name}
	g.Expect(world.client.Get(ctx, key, controlPlane)).To(Succeed())
	return controlPlane
}
