package integration

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// TestEveryFlavorIsAccepted generates each flavor with the real clusterctl, and
// has the API server and all webhooks look at it.
func TestEveryFlavorIsAccepted(t *testing.T) {
	for flavor, variables := range map[string]map[string]string{
		"":         {"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"},
		"metal":    {"CONTROL_PLANE_ENDPOINT_HOST": "192.0.2.1", "CONTROL_PLANE_ENDPOINT_PORT": "443"},
		"topology": {"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"},
		"metal-vip": {
			"CONTROL_PLANE_VIP": "192.0.2.1", "CONTROL_PLANE_VIP_LINK": "eno1", "CONTROL_PLANE_SUBNET": "192.0.2.0/24",
		},
		"container": nil, "container-topology": nil,
	} {
		t.Run("flavor "+flavor, func(t *testing.T) {
			g := NewWithT(t)
			args := []string{"--infrastructure", "talos", "--target-namespace", "default", "--kubernetes-version", "v1.36.3",
				"--control-plane-machine-count", "1", "--worker-machine-count", "3"}
			if flavor != "" {
				args = append(args, "--flavor", flavor)
			}
			if len(variables) > 0 {
				_, err := world.Stack.Clusterctl.Generate(t.Context(), "flavor", nil, args...)
				g.Expect(err).To(MatchError(ContainSubstring("CONTROL_PLANE_")), "a missing variable is named")
			}
			listed, err := world.Stack.Clusterctl.Generate(t.Context(), "flavor", nil, append(args, "--list-variables")...)
			g.Expect(err).NotTo(HaveOccurred())
			for name := range variables {
				g.Expect(string(listed)).To(ContainSubstring(name))
			}
			manifest, err := world.Stack.Clusterctl.Generate(t.Context(), "flavor", variables, args...)
			g.Expect(err).NotTo(HaveOccurred())
			made := objects(g, manifest)
			expected := map[string]int{"": 8, "metal": 8, "metal-vip": 8, "topology": 7, "container": 9, "container-topology": 7}
			g.Expect(made).To(HaveLen(expected[flavor]))
			if strings.HasSuffix(flavor, "topology") {
				g.Expect(made[0].GetKind()).To(Equal("ClusterClass"), "clusterctl adds the class")
			}
			for _, object := range made {
				g.Expect(world.Client.Create(t.Context(), object, client.DryRunAll)).To(Succeed(), object.GetKind())
			}
		})
	}
}

// TestImagesAreListed: what a user mirrors before "clusterctl init".
func TestImagesAreListed(t *testing.T) {
	g := NewWithT(t)
	out, err := world.Stack.Clusterctl.Run(t.Context(), nil, append([]string{"init", "list-images"}, world.Stack.Clusterctl.ProviderArgs()...)...)
	g.Expect(err).NotTo(HaveOccurred())
	ours, err := parts.Providers()
	g.Expect(err).NotTo(HaveOccurred())
	for _, provider := range ours {
		g.Expect(string(out)).To(ContainSubstring(provider.Image() + ":v0.1.0"))
	}
}

// TestNothingIsWrittenWhilePaused: of a paused Cluster only the condition Paused
// is written, by each of our controllers.
func TestNothingIsWrittenWhilePaused(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	const namespace = "paused"
	machines := newFleet(t, simfleet.Options{})
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	addHosts(t, machines, namespace, 2)
	createCluster(t, machines, namespace, "paused")
	g.Eventually(func(g Gomega) {
		// Cluster API deletes one whose Machine it could not make, and makes another one.
		g.Expect(talosMachines(g, ctx, namespace)).To(And(HaveLen(2), HaveEach(HaveField("Status.Initialization.Provisioned", HaveValue(BeTrue())))))
	}).WithTimeout(timeout).Should(Succeed())
	pause := func(paused bool) {
		cluster := &clusterv1.Cluster{}
		g.Eventually(func(g Gomega) {
			g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "paused"}, cluster)).To(Succeed())
			cluster.Spec.Paused = &paused
			g.Expect(world.Client.Update(ctx, cluster)).To(Succeed())
		}).WithTimeout(timeout).Should(Succeed())
	}
	pause(true)
	kinds := []client.ObjectList{
		&infrav1.TalosClusterList{}, &infrav1.TalosMachineList{}, &infrav1.TalosHostList{}, &bootstrapv1.TalosConfigList{}, &controlplanev1.TalosControlPlaneList{},
	}
	versions := func(g Gomega) map[string]string {
		found := map[string]string{}
		for _, list := range kinds {
			g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
			for _, object := range items(g, list) {
				getter, _ := object.(conditions.Getter)
				g.Expect(conditions.IsTrue(getter, clusterv1.PausedCondition)).To(BeTrue(), object.GetName())
				found[string(object.GetUID())] = object.GetResourceVersion()
			}
		}
		return found
	}
	var before map[string]string
	g.Eventually(func(g Gomega) { before = versions(g) }).WithTimeout(timeout).Should(Succeed())

	// Each controller is given a reason to act: a label that it sees.
	for _, list := range kinds {
		for _, object := range items(g, list) {
			touched, _ := object.DeepCopyObject().(client.Object)
			touched.SetLabels(map[string]string{"touched": "", clusterv1.ClusterNameLabel: object.GetLabels()[clusterv1.ClusterNameLabel]})
			g.Expect(world.Client.Patch(ctx, touched, client.MergeFrom(object))).To(Succeed())
			before[string(object.GetUID())] = touched.GetResourceVersion()
		}
	}
	const silence = 5 * time.Second
	g.Consistently(func(g Gomega) { g.Expect(versions(g)).To(Equal(before)) }, silence).Should(Succeed())

	pause(false)
	deleteClusters(t, namespace, "paused")
	expectStates(t, namespace, infrav1.HostAvailable, 2)
}

// items are the objects of a list.
func items(g Gomega, list client.ObjectList) []client.Object {
	raw, err := meta.ExtractList(list)
	g.Expect(err).NotTo(HaveOccurred())
	var found []client.Object
	for _, item := range raw {
		object, ok := item.(client.Object)
		g.Expect(ok).To(BeTrue())
		found = append(found, object)
	}
	return found
}

// objects reads manifests.
func objects(g Gomega, manifests []byte) []*unstructured.Unstructured {
	found, err := management.Objects(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	return found
}
