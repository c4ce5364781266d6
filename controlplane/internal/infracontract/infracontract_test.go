package infracontract

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

const (
	namespace = "fleet"
	lost      = "talos://lost"
)

// object is one of our infrastructure provider.
func object(kind, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(infrav1.GroupVersion.WithKind(kind))
	u.SetNamespace(namespace)
	u.SetName(name)

	return u
}

func cluster() *clusterv1.Cluster {
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one"},
		Spec: clusterv1.ClusterSpec{InfrastructureRef: clusterv1.ContractVersionedObjectReference{
			APIGroup: infrav1.GroupVersion.Group, Kind: infrav1.TalosClusterKind, Name: "one",
		}},
	}
}

func contract(objects ...client.Object) Contract {
	scheme := runtime.NewScheme()
	for _, kind := range []string{infrav1.TalosHostKind, infrav1.TalosMachineKind, infrav1.TalosClusterKind, infrav1.TalosMachineTemplateKind} {
		scheme.AddKnownTypeWithName(infrav1.GroupVersion.WithKind(kind), &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(infrav1.GroupVersion.WithKind(kind+"List"), &unstructured.UnstructuredList{})
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()

	return Contract{Cached: c, Live: c}
}

// gone is a TalosCluster that records that nothing is left of a machine.
func gone(providerID string) *unstructured.Unstructured {
	found := object(infrav1.TalosClusterKind, "one", map[string]any{})
	found.SetAnnotations(map[string]string{infrav1.GoneMachinesAnnotation: providerID})

	return found
}

func TestProvenGone(t *testing.T) {
	wiped := func(name, of string) *unstructured.Unstructured {
		return object(infrav1.TalosHostKind, name, map[string]any{"wiped": []any{map[string]any{"providerID": of}}})
	}
	for name, tc := range map[string]struct {
		contract Contract
		want     bool
	}{
		"nothing is known":                     {contract(), false},
		"its host is wiped":                    {contract(wiped("a", lost)), true},
		"another machine's host is":            {contract(wiped("a", "talos://other")), false},
		"another host still has it":            {contract(wiped("a", lost), object(infrav1.TalosHostKind, "b", map[string]any{"handover": map[string]any{"providerID": lost}})), false},
		"its Pod is recorded as gone":          {contract(gone(lost)), true},
		"another Pod is":                       {contract(gone("talos://other")), false},
		"its Pod is, and its TalosMachine not": {contract(gone(lost), object(infrav1.TalosMachineKind, "a", map[string]any{"providerID": lost})), false},
		"it is another vendor's":               {Contract{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			found, err := tc.contract.ProvenGone(t.Context(), cluster(), lost)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(Equal(tc.want))
		})
	}
}

// deaf reads nothing.
type deaf struct{ client.Reader }

func (deaf) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not now")
}

func TestWhatCannotBeReadIsNotProven(t *testing.T) {
	g := NewWithT(t)
	found, err := Contract{Live: deaf{}}.ProvenGone(t.Context(), cluster(), lost)
	g.Expect(err).To(MatchError(ContainSubstring("not now")))
	g.Expect(found).To(BeFalse())
}

func TestKindMismatch(t *testing.T) {
	template := func(of string) *unstructured.Unstructured {
		return object(infrav1.TalosMachineTemplateKind, of, map[string]any{"template": map[string]any{"spec": map[string]any{of: map[string]any{}}}})
	}
	pods := object(infrav1.TalosClusterKind, "one", map[string]any{"container": map[string]any{}})
	metal := object(infrav1.TalosClusterKind, "one", map[string]any{"metal": map[string]any{}})
	others := template("metal")
	others.SetKind("OtherMachineTemplate")
	for name, tc := range map[string]struct {
		contract Contract
		template *unstructured.Unstructured
		says     string
	}{
		"both in Pods":            {contract(pods), template("container"), ""},
		"both on metal":           {contract(metal), template("metal"), ""},
		"only the machines":       {contract(metal), template("container"), "name a template with metal"},
		"only the endpoint":       {contract(pods), template("metal"), "name a template with container"},
		"there is no cluster":     {contract(), template("metal"), ""},
		"there is no template":    {contract(pods), nil, ""},
		"another vendor's":        {contract(pods), others, ""},
		"nothing is known at all": {Contract{}, template("metal"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			found, err := tc.contract.KindMismatch(t.Context(), tc.template, cluster())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found == "").To(Equal(tc.says == ""))
			g.Expect(found).To(ContainSubstring(tc.says))
		})
	}
}

// TestAnotherVendorsAnswers: what the zero value says of objects that are not ours.
func TestAnotherVendorsAnswers(t *testing.T) {
	g := NewWithT(t)
	machine := &clusterv1.Machine{}
	g.Expect(Contract{}.NoSpareCapacity(machine)).To(BeFalse())
	g.Expect(Contract{}.HasCapacity(clusterv1.FailureDomain{Name: "a"})).To(BeTrue())
	g.Expect(Contract{}.OtherRelease(machine)).To(BeEmpty())
	hosts, sure := Contract{}.PeerAddresses(nil, []string{"10.0.0.1"})
	g.Expect(hosts).To(Equal([]string{"10.0.0.1"}))
	g.Expect(sure).To(BeFalse())
}

// TestWhatATemplateSays: of a machine whose template is gone, what came after it was made
// is no difference. Of another vendor's, only Cluster API says what that is.
func TestWhatATemplateSays(t *testing.T) {
	spec := func() map[string]any {
		return map[string]any{
			"size": "large", "providerID": "x", "failureDomain": "rack-1",
			"hostRef": map[string]any{"name": "host", "claim": "Bound"}, "pod": map[string]any{"etcdAddress": "10.96.0.7"},
		}
	}
	for kind, want := range map[string][]string{
		infrav1.TalosMachineKind: {"size"},
		"VendorMachine":          {"size", "hostRef", "pod"},
	} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			machine := object(kind, "one", spec())
			found, err := Contract{}.TemplatedSpec(machine)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(slices.Collect(maps.Keys(found))).To(ConsistOf(want))
			g.Expect(machine.Object["spec"]).To(Equal(spec()), "the object itself is from a cache")
		})
	}
	_, err := Contract{}.TemplatedSpec(&unstructured.Unstructured{Object: map[string]any{"spec": "none"}})
	NewWithT(t).Expect(err).To(HaveOccurred())
}
