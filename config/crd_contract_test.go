// Package config_test holds the generated manifests to the contract of Cluster
// API (capi-contracts rules G1 to G4, T1).
package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// contract is what Cluster API and users rely on of a kind.
type contract struct {
	version, shortName string
	status, scale      bool
}

// kinds are all kinds that the component files install.
var kinds = map[string]contract{
	"talosconfigs.bootstrap.cluster.x-k8s.io":                  {version: "v1beta1", shortName: "tcfg", status: true},
	"talosconfigtemplates.bootstrap.cluster.x-k8s.io":          {version: "v1beta1", shortName: "tcfgt"},
	"taloscontrolplanes.controlplane.cluster.x-k8s.io":         {version: "v1beta1", shortName: "tcp", status: true, scale: true},
	"taloscontrolplanetemplates.controlplane.cluster.x-k8s.io": {version: "v1beta1", shortName: "tcpt"},
	"talosclusters.infrastructure.cluster.x-k8s.io":            {version: "v1alpha1", shortName: "tc", status: true},
	"talosclustertemplates.infrastructure.cluster.x-k8s.io":    {version: "v1alpha1", shortName: "tct"},
	"talosmachines.infrastructure.cluster.x-k8s.io":            {version: "v1alpha1", shortName: "tm", status: true},
	"talosmachinetemplates.infrastructure.cluster.x-k8s.io":    {version: "v1alpha1", shortName: "tmt"},
	"taloshosts.infrastructure.cluster.x-k8s.io":               {version: "v1alpha1", shortName: "th", status: true},
}

func TestTheKindsKeepTheContract(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("*/crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(files).To(HaveLen(len(kinds)))
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		kind := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict(text, kind)).To(Succeed())
		t.Run(kind.Name, func(t *testing.T) { expectContract(NewWithT(t), kind) })
	}
}

func expectContract(g *WithT, kind *apiextensionsv1.CustomResourceDefinition) {
	g.Expect(kinds).To(HaveKey(kind.Name))
	want := kinds[kind.Name]
	g.Expect(kind.Name).To(Equal(kind.Spec.Names.Plural + "." + kind.Spec.Group))
	g.Expect(kind.Spec.Names.Plural).To(Equal(strings.ToLower(kind.Spec.Names.Kind)+"s"), "Cluster API computes the name of the kind")
	g.Expect(kind.Spec.Scope).To(Equal(apiextensionsv1.NamespaceScoped))
	g.Expect(kind.Spec.Names.ListKind).To(Equal(kind.Spec.Names.Kind + "List"))
	g.Expect(kind.Spec.Names.ShortNames).To(ConsistOf(want.shortName))
	g.Expect(kind.Spec.Names.Categories).To(ConsistOf("cluster-api"))
	g.Expect(kind.Labels).To(HaveKeyWithValue("cluster.x-k8s.io/v1beta2", want.version), "the contract label")
	g.Expect(kind.Labels).NotTo(HaveKey("cluster.x-k8s.io/v1beta1"), "no other contract is kept")
	g.Expect(kind.Spec.Versions).To(HaveLen(1))

	version := kind.Spec.Versions[0]
	g.Expect(version.Name).To(Equal(want.version))
	g.Expect(version.Storage && version.Served).To(BeTrue())
	g.Expect(version.AdditionalPrinterColumns).NotTo(BeEmpty())
	g.Expect(version.Subresources != nil && version.Subresources.Status != nil).To(Equal(want.status), "subresource status")
	g.Expect(version.Subresources != nil && version.Subresources.Scale != nil).To(Equal(want.scale), "subresource scale")
	if want.scale {
		scale := version.Subresources.Scale
		g.Expect(scale.SpecReplicasPath).To(Equal(".spec.replicas"))
		g.Expect(scale.StatusReplicasPath).To(Equal(".status.replicas"))
		g.Expect(scale.LabelSelectorPath).To(HaveValue(Equal(".status.selector")))
	}
	if kind.Spec.Names.Kind == "TalosHost" {
		g.Expect(kind.Labels).To(HaveKey("clusterctl.cluster.x-k8s.io/move-hierarchy"), "hosts move with their cluster")
	}
}
