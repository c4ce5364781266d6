package integration

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// vendor is the API of another vendor's infrastructure provider, in a group of
// its own.
var vendor = schema.GroupVersion{Group: "machines.example.com", Version: "v1"}

const (
	vendorMachine  = "VendorMachine"
	vendorTemplate = vendorMachine + clusterv1.TemplateSuffix
	vendorPlurals  = "vendormachines"
)

// TestMachinesOfAnotherVendor (G5, G6): the control plane manager makes machines
// of a kind that it has never heard of, in an API group of its own, by no other
// right than what that vendor's role grants to Cluster API's managers.
func TestMachinesOfAnotherVendor(t *testing.T) {
	t.Parallel()
	const name = "vendor"
	g, ctx := NewWithT(t), t.Context()
	installVendor(t)
	createNamespace(t, name)
	template := vendorObject(vendorTemplate, name, name+"-control-plane")
	template.Object["spec"] = map[string]any{"template": map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"vendor": "label"}, "annotations": map[string]any{"vendor": "annotation"}},
		"spec":     map[string]any{"flavor": "large"},
	}}
	g.Expect(world.Client.Create(ctx, template)).To(Succeed())
	machines := newFleet(t, simfleet.Options{})
	newCluster(t, machines, management.Shape{Namespace: name, ControlPlanes: 1}, func(object *unstructured.Unstructured) {
		setField("TalosControlPlane", map[string]any{"apiGroup": vendor.Group, "kind": vendorTemplate, "name": template.GetName()},
			"spec", "machineTemplate", "spec", "infrastructureRef")(object)
		setField("TalosControlPlane", map[string]any{"team": "a"}, "spec", "machineTemplate", "metadata", "labels")(object)
	})

	machine := vendorObject(vendorMachine, name, "")
	g.Eventually(func(g Gomega) {
		made := machinesOf(ctx, g, name, true)
		g.Expect(made).To(HaveLen(1))
		g.Expect(made[0].Spec.InfrastructureRef).To(Equal(clusterv1.ContractVersionedObjectReference{APIGroup: vendor.Group, Kind: vendorMachine, Name: made[0].Name}))
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(&made[0]), machine)).To(Succeed())
		g.Expect(machine.Object["spec"]).To(HaveKeyWithValue("flavor", "large"))
		g.Expect(machine.GetLabels()).To(And(
			HaveKeyWithValue(clusterv1.ClusterNameLabel, name), HaveKeyWithValue(clusterv1.MachineControlPlaneLabel, ""),
			HaveKeyWithValue(clusterv1.MachineControlPlaneNameLabel, name+"-control-plane"), HaveKeyWithValue("team", "a"),
		))
		g.Expect(machine.GetAnnotations()).To(And(
			HaveKeyWithValue(clusterv1.TemplateClonedFromNameAnnotation, template.GetName()),
			HaveKeyWithValue(clusterv1.TemplateClonedFromGroupKindAnnotation, vendor.WithKind(vendorTemplate).GroupKind().String()),
		))
		g.Expect(metav1.GetControllerOf(machine)).To(HaveField("Kind", "Machine"), "Cluster API's manager has taken it over")
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(template), template)).To(Succeed())
		g.Expect(template.GetOwnerReferences()).To(ContainElement(HaveField("Kind", "Cluster")), "it moves with the Cluster")
	}).WithTimeout(timeout).Should(Succeed())

	// Labels reach it in place.
	controlPlane := controlPlaneOf(ctx, g, name)
	before := controlPlane.DeepCopy()
	controlPlane.Spec.MachineTemplate.ObjectMeta.Labels = map[string]string{"team": "b"}
	g.Expect(world.Client.Patch(ctx, controlPlane, client.MergeFrom(before))).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(machine), machine)).To(Succeed())
		g.Expect(machine.GetLabels()).To(HaveKeyWithValue("team", "b"))
	}).WithTimeout(timeout).Should(Succeed())

	// The vendor needs nothing but the bootstrap data to bring the cluster up.
	g.Eventually(func(g Gomega) {
		g.Expect(machinesOf(ctx, g, name, true)[0].Spec.Bootstrap.DataSecretName).NotTo(BeNil())
	}).WithTimeout(timeout).Should(Succeed())
	hosts, err := machines.Add(ctx, 1)
	g.Expect(err).NotTo(HaveOccurred())
	boot(t, machinesOf(ctx, g, name, true)[0], machine, hosts[0])
	awaitAvailable(t, name)
	g.Expect(machines.Bootstraps()).To(Equal(1))

	deleteClusters(t, name, name)
	awaitGone(t, name)
	g.Eventually(func() error { return world.Client.Get(ctx, client.ObjectKeyFromObject(machine), machine) }).
		WithTimeout(timeout).Should(MatchError(ContainSubstring("not found")))
}

// boot is what the vendor's controller does: it hands the bootstrap data over to a
// machine, with the provider ID that the machine has there, and reports it.
func boot(t *testing.T, of clusterv1.Machine, machine *unstructured.Unstructured, host fleet.Host) {
	t.Helper()
	const providerID = "vendor://1"
	g, ctx := NewWithT(t), t.Context()
	secret := &corev1.Secret{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: *of.Spec.Bootstrap.DataSecretName}, secret)).To(Succeed())
	patch, err := configpatcher.LoadPatch([]byte("machine:\n  kubelet:\n    extraArgs:\n      provider-id: " + providerID + "\n"))
	g.Expect(err).NotTo(HaveOccurred())
	patched, err := configpatcher.Apply(configpatcher.WithBytes(secret.Data["value"]), []configpatcher.Patch{patch})
	g.Expect(err).NotTo(HaveOccurred())
	configuration, err := patched.Bytes()
	g.Expect(err).NotTo(HaveOccurred())
	pool := talosclient.New()
	defer pool.Close()
	node, err := pool.Maintenance(ctx, host.Address, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.ApplyConfiguration(ctx, configuration)).To(Succeed())

	before := machine.DeepCopy()
	g.Expect(unstructured.SetNestedField(machine.Object, providerID, "spec", "providerID")).To(Succeed())
	g.Expect(world.Client.Patch(ctx, machine, client.MergeFrom(before))).To(Succeed())
	before = machine.DeepCopy()
	machine.Object["status"] = map[string]any{
		"initialization": map[string]any{"provisioned": true},
		"addresses":      []any{map[string]any{"type": string(clusterv1.MachineInternalIP), "address": host.Address}},
		"conditions": []any{map[string]any{
			"type": clusterv1.ReadyCondition, "status": "True", "reason": "Running", "message": "", "lastTransitionTime": metav1.Now().UTC().Format(time.RFC3339),
		}},
	}
	g.Expect(world.Client.Status().Patch(ctx, machine, client.MergeFrom(before))).To(Succeed())
}

// installVendor installs the kinds of the vendor, as its component file would, and
// its role for Cluster API's managers. Nothing else grants anything to ours.
func installVendor(t *testing.T) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	for _, kind := range []string{vendorMachine, vendorTemplate} {
		crd := vendorKind(kind)
		g.Expect(world.Stack.Client.Create(ctx, crd)).To(Succeed())
		t.Cleanup(func() { g.Expect(world.Stack.Client.Delete(contextAfter(t), crd)).To(Succeed()) })
		g.Eventually(func(g Gomega) {
			g.Expect(world.Stack.Client.Get(ctx, client.ObjectKeyFromObject(crd), crd)).To(Succeed())
			g.Expect(crd.Status.Conditions).To(ContainElement(And(
				HaveField("Type", apiextensionsv1.Established), HaveField("Status", apiextensionsv1.ConditionTrue))))
		}).WithTimeout(timeout).Should(Succeed())
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "vendor-system-capi", Labels: map[string]string{"cluster.x-k8s.io/aggregate-to-manager": "true"}},
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{vendor.Group}, Resources: []string{vendorPlurals, vendorPlurals + "/finalizers", "vendormachinetemplates"},
			Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"},
		}},
	}
	// It stays: the managers go on watching the kinds, and must not be denied that.
	g.Expect(world.Client.Create(ctx, role)).To(Succeed())
	g.Eventually(func(g Gomega) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:               world.Stack.Managers.Get(management.ControlPlane).User,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: vendor.Group, Resource: vendorPlurals, Verb: "watch"},
		}}
		g.Expect(world.Stack.Client.Create(ctx, review)).To(Succeed())
		g.Expect(review.Status.Allowed).To(BeTrue())
	}).WithTimeout(timeout).Should(Succeed())
}

func vendorKind(kind string) *apiextensionsv1.CustomResourceDefinition {
	name := contract.CalculateCRDName(vendor.Group, kind)
	plural := name[:len(name)-len(vendor.Group)-1]
	open := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{clusterv1.GroupVersion.String(): vendor.Version}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: vendor.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: plural[:len(plural)-1]},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: vendor.Version, Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: open},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
			}},
		},
	}
}

func vendorObject(kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(vendor.WithKind(kind))
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}
