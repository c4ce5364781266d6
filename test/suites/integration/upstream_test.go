package integration

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	addonsv1 "sigs.k8s.io/cluster-api/api/addons/v1beta2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/test/framework"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// The checks of upstream's test framework that any provider can take, with what is
// expected of our kinds. They are written for Ginkgo, and call its global handler.

// owners tell what is wrong with the owners of an object of a kind.
type owners = map[string]func(types.NamespacedName, []metav1.OwnerReference) error

// TestUpstreamsFramework: owners and finalizers come back, with the right versions, after
// all of them were taken away while nobody worked, and once all is as it should be nobody
// writes any more. It is a part of make test by itself: the framework waits no longer than
// managers take that have no other clusters.
func TestUpstreamsFramework(t *testing.T) {
	flag.Visit(func(given *flag.Flag) {
		if given.Name == "test.parallel" {
			t.Fatal("run it without -parallel: Ginkgo ends the process where that was given")
		}
	})
	scheme, err := demo.Scheme()
	NewWithT(t).Expect(errors.Join(err, addonsv1.AddToScheme(scheme))).To(Succeed())
	for name, topology := range map[string]bool{"upstream-flat": false, "upstream-classy": true} {
		machines := newFleet(t, simfleet.Options{})
		if topology {
			runTopology(t, machines, name, 1, 1, 0)
		} else {
			runCluster(t, machines, name, 1, 1)
		}
		Describe("a cluster, managed by a topology: "+fmt.Sprint(topology), Ordered, ContinueOnFailure, func() {
			proxy := framework.NewClusterProxy("rung-2", world.Stack.Kubeconfig, scheme)
			inNamespace := func(object unstructured.Unstructured) bool { return object.GetNamespace() == name }
			expected := expectedOwners(name, topology)
			It("gets its owners back", func(ctx SpecContext) {
				framework.ValidateOwnerReferencesResilience(ctx, proxy, name, name, inNamespace, expected)
			})
			It("gets the versions of its owners back", func(ctx SpecContext) {
				framework.ValidateOwnerReferencesOnUpdate(ctx, proxy, name, name, inNamespace, expected)
			})
			It("gets its finalizers back", func(ctx SpecContext) {
				framework.ValidateFinalizersResilience(ctx, proxy, name, name, inNamespace, expectedFinalizers(topology))
			})
			It("converges again, and does not change then", func(ctx SpecContext) {
				framework.ValidateResourceVersionStable(ctx, framework.ValidateResourceVersionStableInput{
					ClusterProxy: proxy, Namespace: name, OwnerGraphFilterFunction: inNamespace,
					WaitToBecomeStable: []any{"3m", "5s"}, WaitToRemainStable: []any{"45s", "3s"},
				})
			})
		})
	}
	RegisterFailHandler(Fail)
	var failed []string
	ReportAfterSuite("tells what failed", func(report Report) {
		for _, spec := range report.SpecReports {
			if spec.Failed() {
				failed = append(failed, spec.FullText()+": "+spec.FailureMessage())
			}
		}
	})
	RunSpecs(t, "Upstream's framework")
	// Ginkgo tells it while other tests speak, far from what go test says of this one.
	t.Cleanup(func() {
		if len(failed) > 0 {
			t.Log(strings.Join(failed, "\n"))
		}
	})
	for _, name := range []string{"upstream-flat", "upstream-classy"} {
		deleteClusters(t, name, name)
		expectStates(t, name, infrav1.HostAvailable, 2)
	}
}

// expectedOwners are those of our kinds, and of Cluster API's where they depend on
// ours.
func expectedOwners(name string, topology bool) owners {
	cluster := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster"}
	managed := cluster
	if topology {
		managed.Controller = ptr.To(true)
	}
	class := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "ClusterClass"}
	machine := controller(clusterv1.GroupVersion.String(), "Machine")
	machineSet := controller(clusterv1.GroupVersion.String(), "MachineSet")
	controlPlane := controller(controlplanev1.GroupVersion.String(), controlplanev1.TalosControlPlaneKind)
	host := controller(infrav1.GroupVersion.String(), infrav1.TalosHostKind)
	config := controller(bootstrapv1.GroupVersion.String(), bootstrapv1.TalosConfigKind)
	exactly := func(wanted ...metav1.OwnerReference) func(types.NamespacedName, []metav1.OwnerReference) error {
		return func(_ types.NamespacedName, found []metav1.OwnerReference) error {
			return framework.HasExactOwners(found, wanted...)
		}
	}
	oneOf := func(wanted ...metav1.OwnerReference) func(types.NamespacedName, []metav1.OwnerReference) error {
		return func(_ types.NamespacedName, found []metav1.OwnerReference) error {
			var possible [][]metav1.OwnerReference
			for _, owner := range wanted {
				possible = append(possible, []metav1.OwnerReference{owner})
			}
			return framework.HasOneOfExactOwners(found, possible...)
		}
	}
	all := maps.Clone(framework.CoreOwnerReferenceAssertion)
	maps.Copy(all, owners{
		"Machine":                                    oneOf(machineSet, controlPlane),
		infrav1.TalosClusterKind:                     exactly(managed),
		infrav1.TalosClusterTemplateKind:             exactly(class),
		infrav1.TalosMachineKind:                     exactly(machine),
		infrav1.TalosMachineTemplateKind:             oneOf(cluster, class),
		infrav1.TalosHostKind:                        exactly(),
		bootstrapv1.TalosConfigKind:                  exactly(machine),
		bootstrapv1.TalosConfigTemplateKind:          oneOf(cluster, class),
		controlplanev1.TalosControlPlaneKind:         exactly(managed),
		controlplanev1.TalosControlPlaneTemplateKind: exactly(class),
		"Secret": func(secret types.NamespacedName, found []metav1.OwnerReference) error {
			switch secret.Name {
			case name + "-kubeconfig":
				return framework.HasExactOwners(found, controlPlane)
			case name + "-talos", name + "-ca", name + "-talosconfig":
				return framework.HasExactOwners(found, cluster)
			}
			return framework.HasOneOfExactOwners(found, []metav1.OwnerReference{config}, []metav1.OwnerReference{host})
		},
	})
	return all
}

func controller(apiVersion, kind string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Controller: ptr.To(true)}
}

// expectedFinalizers are all that there are.
func expectedFinalizers(topology bool) map[string]func(types.NamespacedName) []string {
	all := maps.Clone(framework.CoreFinalizersAssertionWithLegacyClusters)
	if topology {
		all = maps.Clone(framework.CoreFinalizersAssertionWithClassyClusters)
	}
	for kind, finalizer := range map[string]string{
		infrav1.TalosClusterKind: infrav1.TalosClusterFinalizer, infrav1.TalosMachineKind: infrav1.TalosMachineFinalizer, infrav1.TalosHostKind: infrav1.TalosHostFinalizer,
		controlplanev1.TalosControlPlaneKind: controlplanev1.TalosControlPlaneFinalizer,
	} {
		all[kind] = func(types.NamespacedName) []string { return []string{finalizer} }
	}
	// The credentials of a host outlive its cluster, and are kept until it is wiped.
	all["Secret"] = func(secret types.NamespacedName) []string {
		if strings.HasSuffix(secret.Name, infrav1.AdminSecretSuffix) {
			return []string{infrav1.TalosHostFinalizer}
		}
		return nil
	}
	return all
}
