package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// applying is a way in which users, and tools for GitOps, apply manifests.
type applying struct {
	// args are those of kubectl.
	args []string
	// manager is the name under which the API server keeps the user's fields.
	manager string
}

var (
	serverSide = applying{args: []string{"--server-side", "--field-manager=gitops"}, manager: "gitops"}
	clientSide = applying{manager: "kubectl-client-side-apply"}
)

// TestAppliedTwiceThereIsNoDifference applies what users keep in a repository,
// lets our controllers work on it, and applies it again: nothing changes, and no
// field of the user's has become ours.
func TestAppliedTwiceThereIsNoDifference(t *testing.T) {
	t.Parallel()
	ofFlavor := func(name string, variables map[string]string) func(*testing.T, string) []byte {
		return func(t *testing.T, namespace string) []byte {
			t.Helper()
			return flavor(t, namespace, name, variables)
		}
	}
	endpoint := map[string]string{"CONTROL_PLANE_ENDPOINT_HOST": "lb.example.com"}
	for source, tt := range map[string]struct {
		manifests func(*testing.T, string) []byte
		// ends is where it ends for now: no host fits, and nobody schedules Pods.
		ends string
	}{
		"samples":         {samples, infrav1.NoHostFitsReason},
		"flavor-default":  {ofFlavor("", endpoint), infrav1.NoHostFitsReason},
		"flavor-topology": {ofFlavor("topology", endpoint), infrav1.NoHostFitsReason},
		"flavor-metal-vip": {ofFlavor("metal-vip", map[string]string{
			"CONTROL_PLANE_VIP": "192.0.2.1", "CONTROL_PLANE_VIP_LINK": "eno1", "CONTROL_PLANE_SUBNET": "192.0.2.0/24",
		}), infrav1.NoHostFitsReason},
		"flavor-container":          {ofFlavor("container", nil), infrav1.PodNotScheduledReason},
		"flavor-container-topology": {ofFlavor("container-topology", nil), infrav1.PodNotScheduledReason},
	} {
		for way, apply := range map[string]applying{"server": serverSide, "client": clientSide} {
			t.Run(source+" "+way+" side", func(t *testing.T) {
				t.Parallel()
				namespace := source + "-" + way
				createNamespace(t, namespace)
				allowPods(t, namespace)
				forgetHosts(t, namespace)
				repository := newRepository(t, namespace, apply, tt.manifests(t, namespace))
				repository.apply(t, NewWithT(t))
				NewWithT(t).Eventually(func(g Gomega) {
					everyMachine(infrav1.AllocatedCondition, tt.ends)(t.Context(), g, namespace)
					for _, machine := range append(machinesOf(t.Context(), g, namespace, true), machinesOf(t.Context(), g, namespace, false)...) {
						g.Expect(machine.Spec.Bootstrap.DataSecretName).NotTo(BeNil(), machine.Name)
					}
					g.Expect(controlPlanes(t.Context(), g, namespace)).To(HaveEach(HaveField("Status.Conditions", Not(BeEmpty()))))
				}).WithTimeout(timeout).Should(Succeed())
				repository.expectNoDifference(t)
				t.Cleanup(func() { deleteEverything(t, namespace) })
			})
		}
	}
}

// TestAppliedTwiceARunningClusterStaysAsItIs does the same with a cluster that
// runs, and with the TalosHosts that it runs on. When a host is released, the
// provider clears its maintenanceCertFingerprint: that alone.
func TestAppliedTwiceARunningClusterStaysAsItIs(t *testing.T) {
	t.Parallel()
	for way, apply := range map[string]applying{"server": serverSide, "client": clientSide} {
		t.Run(way+" side", func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			namespace := "gitops-" + way
			machines := newFleet(t, simfleet.Options{})
			createNamespace(t, namespace)
			hosts := addHosts(t, machines, namespace, 2)
			manifests, err := world.Stack.Generate(ctx, machines, management.Shape{Namespace: namespace, ControlPlanes: 1, Workers: 1})
			g.Expect(err).NotTo(HaveOccurred())
			expectStates(t, namespace, infrav1.HostAvailable, len(hosts))
			for _, host := range hosts {
				found := &infrav1.TalosHost{}
				g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: host.Name}, found)).To(Succeed())
				manifest := host.Manifest(namespace, map[string]string{"rack": "r1"})
				manifest.Spec.MaintenanceCertFingerprint = found.Status.MaintenanceCertFingerprint
				manifest.Spec.FailureDomain = "r1"
				manifests = slices.Concat(manifests, []byte("---\n"), asManifest(g, manifest))
				// The user's own, from its first moment on.
				g.Expect(world.Client.Delete(ctx, found)).To(Succeed())
			}
			g.Eventually(func(g Gomega) {
				list := &infrav1.TalosHostList{}
				g.Expect(world.Client.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
				g.Expect(list.Items).To(BeEmpty())
			}).WithTimeout(timeout).Should(Succeed())

			repository := newRepository(t, namespace, apply, manifests)
			repository.apply(t, g)
			awaitAvailable(t, namespace)
			repository.expectNoDifference(t)

			deleteClusters(t, namespace, namespace)
			expectStates(t, namespace, infrav1.HostAvailable, len(hosts))
			repository.expectCleared(t, "TalosHost", ".spec.maintenanceCertFingerprint")
		})
	}
}

// repository is what a user keeps, and how it is applied.
type repository struct {
	applying
	namespace string
	file      string
	objects   []*unstructured.Unstructured
	// fields are those that the user says, and that admission adds, by object.
	fields map[string]*fieldpath.Set
}

// newRepository asks the API server which fields will be the user's, without
// storing anything.
func newRepository(t *testing.T, namespace string, apply applying, manifests []byte) *repository {
	t.Helper()
	g := NewWithT(t)
	r := &repository{
		applying: apply, namespace: namespace, file: filepath.Join(t.TempDir(), "manifests.yaml"),
		objects: objects(g, manifests), fields: map[string]*fieldpath.Set{},
	}
	g.Expect(os.WriteFile(r.file, manifests, 0o600)).To(Succeed())
	out, err := r.kubectl(t, "apply", "--dry-run=server", "--output=json", "--show-managed-fields")
	g.Expect(err).NotTo(HaveOccurred())
	answer := &unstructured.UnstructuredList{}
	g.Expect(json.Unmarshal([]byte(out), answer)).To(Succeed())
	g.Expect(answer.Items).To(HaveLen(len(r.objects)))
	for i := range answer.Items {
		object := &answer.Items[i]
		r.fields[nameOf(object)] = fieldsOf(g, object, func(manager string) bool { return manager == r.manager })
		g.Expect(r.fields[nameOf(object)].Empty()).To(BeFalse())
	}
	return r
}

func (r *repository) kubectl(t *testing.T, command string, args ...string) (string, error) {
	t.Helper()
	return world.Stack.Kubectl(t.Context(), slices.Concat([]string{command, "--namespace", r.namespace, "--filename", r.file}, r.args, args)...)
}

func (r *repository) apply(t *testing.T, g Gomega) {
	t.Helper()
	_, err := r.kubectl(t, "apply")
	g.Expect(err).NotTo(HaveOccurred())
}

// read reads the objects as they are now.
func (r *repository) read(t *testing.T, g Gomega) []*unstructured.Unstructured {
	t.Helper()
	found := make([]*unstructured.Unstructured, 0, len(r.objects))
	for _, object := range r.objects {
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(object.GroupVersionKind())
		g.Expect(world.Client.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: object.GetName()}, now)).To(Succeed())
		found = append(found, now)
	}
	return found
}

// expectNoDifference applies all a second time, and again for as long as others
// write between: in the end an apply changes nothing.
func (r *repository) expectNoDifference(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	// A status that is written while kubectl reads twice is a difference too.
	g.Eventually(func(g Gomega) {
		out, err := r.kubectl(t, "diff")
		g.Expect(err).NotTo(HaveOccurred(), out)
		g.Expect(out).To(BeEmpty())
	}).WithTimeout(timeout).Should(Succeed())
	var after []*unstructured.Unstructured
	g.Eventually(func(g Gomega) {
		before := r.read(t, g)
		r.apply(t, g)
		after = r.read(t, g)
		g.Expect(contents(g, after)).To(Equal(contents(g, before)))
		for i, object := range after {
			if fmt.Sprint(object.Object["status"]) == fmt.Sprint(before[i].Object["status"]) {
				g.Expect(object.GetResourceVersion()).To(Equal(before[i].GetResourceVersion()), nameOf(object))
			}
		}
	}).WithTimeout(timeout).Should(Succeed())
	for _, object := range after {
		user := fieldsOf(g, object, func(manager string) bool { return manager == r.manager })
		g.Expect(r.fields[nameOf(object)].Leaves().Difference(user).String()).To(BeEmpty(), "fields of the user's that somebody else has changed in %s", nameOf(object))
		ours := fieldsOf(g, object, isOurs)
		g.Expect(ours.Leaves().Intersection(user.Leaves()).String()).To(BeEmpty(), "fields of the user's that we have claimed in %s", nameOf(object))
	}
}

// expectCleared says that of all objects of a kind one field of the user's was
// cleared, and no other.
func (r *repository) expectCleared(t *testing.T, kind, field string) {
	t.Helper()
	g := NewWithT(t)
	looked := 0
	for _, object := range r.objects {
		if object.GetKind() != kind {
			continue
		}
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(object.GroupVersionKind())
		g.Eventually(func(g Gomega) {
			g.Expect(world.Client.Get(t.Context(), client.ObjectKeyFromObject(object), now)).To(Succeed())
			user := fieldsOf(g, now, func(manager string) bool { return manager == r.manager })
			g.Expect(r.fields[nameOf(object)].Leaves().Difference(user).String()).To(Equal(field))
		}).WithTimeout(timeout).Should(Succeed())
		_, present, _ := unstructured.NestedString(now.Object, strings.Split(strings.TrimPrefix(field, "."), ".")...)
		g.Expect(present).To(BeFalse())
		looked++
	}
	g.Expect(looked).NotTo(BeZero())
}

// contents are objects without their status, which goes on: all that an apply
// could write, with who has written it when.
func contents(g Gomega, objects []*unstructured.Unstructured) map[string]string {
	found := map[string]string{}
	for _, object := range objects {
		content := object.DeepCopy()
		delete(content.Object, "status")
		content.SetResourceVersion("")
		content.SetManagedFields(slices.DeleteFunc(content.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return entry.Subresource == "status" }))
		raw, err := json.Marshal(content)
		g.Expect(err).NotTo(HaveOccurred())
		found[nameOf(object)] = string(raw)
	}
	return found
}

func nameOf(object *unstructured.Unstructured) string {
	return object.GetKind() + " " + object.GetName()
}

// fieldsOf are the fields, but for the status, of the managers that are meant.
func fieldsOf(g Gomega, object client.Object, meant func(manager string) bool) *fieldpath.Set {
	found := fieldpath.NewSet()
	for _, entry := range object.GetManagedFields() {
		if !meant(entry.Manager) || entry.Subresource != "" {
			continue
		}
		raw, err := json.Marshal(entry.FieldsV1)
		g.Expect(err).NotTo(HaveOccurred())
		set := &fieldpath.Set{}
		g.Expect(set.FromJSON(bytes.NewReader(raw))).To(Succeed())
		found = found.Union(set)
	}
	return found
}

// samples are config/samples, as a user would keep them for a namespace.
func samples(t *testing.T, _ string) []byte {
	t.Helper()
	out, err := world.Stack.Kubectl(t.Context(), "kustomize", filepath.Join(world.Source, "config", "samples"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return []byte(out)
}

// flavor is a template of templates/ with variables as a user would give them.
func flavor(t *testing.T, namespace, name string, variables map[string]string) []byte {
	t.Helper()
	args := []string{"--infrastructure", "talos", "--target-namespace", namespace, "--kubernetes-version", "v1.36.3",
		"--control-plane-machine-count", "1", "--worker-machine-count", "2"}
	if name != "" {
		args = append(args, "--flavor", name)
	}
	out, err := world.Stack.Clusterctl.Generate(t.Context(), "kept", variables, args...)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return out
}

// asManifest is an object as a user would write it.
func asManifest(g Gomega, object client.Object) []byte {
	raw, err := json.Marshal(object)
	g.Expect(err).NotTo(HaveOccurred())
	content := map[string]any{}
	g.Expect(json.Unmarshal(raw, &content)).To(Succeed())
	delete(content, "status")
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	text, err := yaml.Marshal(content)
	g.Expect(err).NotTo(HaveOccurred())
	return text
}

// deleteEverything deletes the clusters of a namespace and what nobody owns.
func deleteEverything(t *testing.T, namespace string) {
	t.Helper()
	g := NewWithT(t)
	ctx := contextAfter(t)
	g.Expect(world.Client.DeleteAllOf(ctx, &clusterv1.Cluster{}, client.InNamespace(namespace))).To(Succeed())
	g.Eventually(func(g Gomega) {
		clusters := &metav1.PartialObjectMetadataList{}
		clusters.SetGroupVersionKind(clusterv1.GroupVersion.WithKind("ClusterList"))
		g.Expect(world.Client.List(ctx, clusters, client.InNamespace(namespace))).To(Succeed())
		g.Expect(clusters.Items).To(BeEmpty())
	}).WithTimeout(timeout).Should(Succeed())
}
