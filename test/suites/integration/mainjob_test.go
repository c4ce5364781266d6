package integration

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// TestTheMainJob runs the demo's scenario on metal, where machines have disks.
func TestTheMainJob(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{Personality: talossim.Metal})
	looked := false
	scenario := newScenario(t, machines, "main-job", func(ctx context.Context, step string, do func(context.Context) error) error {
		err := do(ctx)
		if step == "nodes" && err == nil {
			looked = true
			expectContract(t, "main-job")
		}
		return err
	})
	results, err := scenario.Run(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(looked).To(BeTrue())
	demo.Table(t.Output(), results)
	g.Expect(machines.Bootstraps()).To(Equal(1))
}

// expectContract looks at what Cluster API and users read of a running cluster.
func expectContract(t *testing.T, name string) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	inNamespace := client.InNamespace(name)

	controlPlane := &controlplanev1.TalosControlPlane{}
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
		g.Expect(conditions.IsTrue(controlPlane, "Available")).To(BeTrue())
		g.Expect(controlPlane.Status.ReadyReplicas).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(controlPlane.Status.AvailableReplicas).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(controlPlane.Status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(1)))
		g.Expect(controlPlane.Status.Initialization.ControlPlaneInitialized).To(HaveValue(BeTrue()))
	}).WithTimeout(timeout).Should(Succeed())

	hosts := &infrav1.TalosHostList{}
	g.Expect(world.Client.List(ctx, hosts, inNamespace)).To(Succeed())
	ids := map[string]bool{}
	for _, host := range hosts.Items {
		if host.Spec.ConsumerRef.Name == "" {
			continue
		}
		g.Expect(ids).NotTo(HaveKey(host.Spec.ConsumerRef.ProviderID))
		ids[host.Spec.ConsumerRef.ProviderID] = true
		g.Eventually(func(g Gomega) { // Its status is written meanwhile.
			g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&host), &host)).To(Succeed())
			g.Expect(host.Spec.Handover.Progress).To(Equal(infrav1.HandoverRan))
			g.Expect(host.Status.State).To(Equal(infrav1.HostProvisioned))
			g.Expect(host.Status.Hardware.Disks).NotTo(BeEmpty())
			g.Expect(world.Client.Delete(ctx, &host)).To(MatchError(ContainSubstring("has claimed it")), "a host in use is not deleted")
			moved := host.DeepCopy()
			moved.Spec.Addresses = []string{"192.0.2.1"}
			g.Expect(world.Client.Update(ctx, moved)).To(MatchError(ContainSubstring("spec.addresses")))
			stolen := host.DeepCopy()
			stolen.Spec.ConsumerRef = infrav1.ConsumerReference{}
			g.Expect(world.Client.Update(ctx, stolen)).To(MatchError(ContainSubstring("belongs to the infrastructure provider")))
		}).WithTimeout(timeout).Should(Succeed())
	}
	g.Expect(ids).To(HaveLen(2))

	machines := &clusterv1.MachineList{}
	g.Expect(world.Client.List(ctx, machines, inNamespace)).To(Succeed())
	for _, machine := range machines.Items {
		g.Expect(ids).To(HaveKey(machine.Spec.ProviderID))
		g.Expect(machine.Status.Addresses).To(ContainElement(HaveField("Type", clusterv1.MachineInternalIP)))
	}
	expectSecrets(t, name)
}

// expectSecrets looks at the Secrets of a cluster: they are labelled, and leave
// with it.
func expectSecrets(t *testing.T, name string) {
	t.Helper()
	g := NewWithT(t)
	for secret, key := range map[string]string{
		name + "-talos": "bundle", name + "-ca": "tls.crt", name + "-talosconfig": "talosconfig", name + "-kubeconfig": "value",
	} {
		found := &corev1.Secret{}
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: name, Name: secret}, found)).To(Succeed(), secret)
		g.Expect(found.Data).To(HaveKey(key), secret)
		g.Expect(found.Labels).To(HaveKeyWithValue(clusterv1.ClusterNameLabel, name), secret)
		g.Expect(found.OwnerReferences).NotTo(BeEmpty(), secret)
	}
	owned := &metav1.PartialObjectMetadataList{}
	owned.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	g.Expect(world.Client.List(t.Context(), owned, client.InNamespace(name))).To(Succeed())
	g.Expect(owned.Items).NotTo(BeEmpty())
}

// TestTwentyWorkers goes from nothing to 1 + 20 machines, and back.
func TestTwentyWorkers(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{})
	scenario := newScenario(t, machines, "twenty", nil)
	scenario.Workers = []int{20}
	results, err := scenario.Run(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	demo.Table(t.Output(), results)
	g.Expect(machines.Bootstraps()).To(Equal(1))
}
