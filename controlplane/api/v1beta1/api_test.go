package v1beta1

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/cluster-api/util/contract"
)

var _ conditions.Setter = &TalosControlPlane{}

func TestKindsAreInTheScheme(t *testing.T) {
	g := NewWithT(t)
	scheme := runtime.NewScheme()
	g.Expect(AddToScheme(scheme)).To(Succeed())
	for _, kind := range []string{TalosControlPlaneKind, TalosControlPlaneKind + "List", TalosControlPlaneTemplateKind, TalosControlPlaneTemplateKind + "List"} {
		g.Expect(scheme.Recognizes(GroupVersion.WithKind(kind))).To(BeTrue(), kind)
	}
}

// TestResourceNames holds the names in the markers to what core Cluster API
// calculates when it looks for the CRD of a kind.
func TestResourceNames(t *testing.T) {
	g := NewWithT(t)
	g.Expect(contract.CalculateCRDName(GroupVersion.Group, TalosControlPlaneKind)).To(Equal("taloscontrolplanes.controlplane.cluster.x-k8s.io"))
	g.Expect(contract.CalculateCRDName(GroupVersion.Group, TalosControlPlaneTemplateKind)).To(Equal("taloscontrolplanetemplates.controlplane.cluster.x-k8s.io"))
}
