// Package config holds the generated kinds to the contract of Cluster API.
package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/util/contract"
	"sigs.k8s.io/yaml"
)

const (
	bootstrapGroup      = "bootstrap.cluster.x-k8s.io"
	controlPlaneGroup   = "controlplane.cluster.x-k8s.io"
	infrastructureGroup = "infrastructure.cluster.x-k8s.io"
	addonsGroup         = "addons.cluster.x-k8s.io"
	backupGroup         = "backup.cluster.x-k8s.io"

	// contractLabel names, as its value, our API versions that follow the
	// contract of its key.
	contractLabelPrefix = "cluster.x-k8s.io/"
	contractVersion     = "v1beta2"

	moveHierarchyLabel = "clusterctl.cluster.x-k8s.io/move-hierarchy"
)

// wantKind is what the contract and the design say about a kind.
type wantKind struct {
	folder, group, version, shortName string
	// status reports whether the kind has a status subresource; of the templates only that
	// of machines has one, for autoscaling from zero.
	status bool
	// scale reports whether kubectl scale works on it.
	scale bool
	// inventory reports whether objects of the kind move with clusterctl though no
	// Cluster owns them.
	inventory bool
}

func wantKinds() map[string]wantKind {
	return map[string]wantKind{
		"TalosConfig":               {folder: "bootstrap", group: bootstrapGroup, version: "v1beta1", shortName: "tcfg", status: true},
		"TalosConfigTemplate":       {folder: "bootstrap", group: bootstrapGroup, version: "v1beta1", shortName: "tcfgt"},
		"TalosControlPlane":         {folder: "controlplane", group: controlPlaneGroup, version: "v1beta1", shortName: "tcp", status: true, scale: true},
		"TalosControlPlaneTemplate": {folder: "controlplane", group: controlPlaneGroup, version: "v1beta1", shortName: "tcpt"},
		"TalosCluster":              {folder: "infrastructure", group: infrastructureGroup, version: "v1alpha1", shortName: "tc", status: true},
		"TalosClusterTemplate":      {folder: "infrastructure", group: infrastructureGroup, version: "v1alpha1", shortName: "tct"},
		"TalosMachine":              {folder: "infrastructure", group: infrastructureGroup, version: "v1alpha1", shortName: "tm", status: true},
		"TalosMachineTemplate":      {folder: "infrastructure", group: infrastructureGroup, version: "v1alpha1", shortName: "tmt", status: true},
		"TalosHost":                 {folder: "infrastructure", group: infrastructureGroup, version: "v1alpha1", shortName: "th", status: true, inventory: true},
		"TalosClusterAddon":         {folder: "addons", group: addonsGroup, version: "v1alpha1", shortName: "tca", status: true, inventory: true},
		"TalosClusterAddonRelease":  {folder: "addons", group: addonsGroup, version: "v1alpha1", shortName: "tcar", status: true},
		"TalosBackupStore":          {folder: "backup", group: backupGroup, version: "v1alpha1", shortName: "tbs", status: true, inventory: true},
		"TalosEtcdBackup":           {folder: "backup", group: backupGroup, version: "v1alpha1", shortName: "teb", status: true, inventory: true},
		"TalosEtcdBackupSchedule":   {folder: "backup", group: backupGroup, version: "v1alpha1", shortName: "tebs", status: true, inventory: true},
		"TalosEtcdRestore":          {folder: "backup", group: backupGroup, version: "v1alpha1", shortName: "ter", status: true, inventory: true},
	}
}

// generated is a generated kind and the folder of its provider.
type generated struct {
	folder, file string
	crd          *apiextensionsv1.CustomResourceDefinition
}

// kinds reads all generated kinds.
func kinds(t *testing.T) map[string]generated {
	t.Helper()
	g, found := NewWithT(t), map[string]generated{}
	files, err := filepath.Glob("*/crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		raw, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		crd := &apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict(raw, crd)).To(Succeed(), file)
		folder, _, _ := strings.Cut(file, string(filepath.Separator))
		found[crd.Spec.Names.Kind] = generated{folder: folder, file: filepath.Base(file), crd: crd}
	}

	return found
}

func TestKindsFollowTheContract(t *testing.T) {
	found := kinds(t)
	NewWithT(t).Expect(slices.Sorted(maps.Keys(found))).To(Equal(slices.Sorted(maps.Keys(wantKinds()))))
	for kind, want := range wantKinds() {
		t.Run(kind, func(t *testing.T) {
			g, crd := NewWithT(t), found[kind].crd
			g.Expect(found[kind].folder).To(Equal(want.folder))
			g.Expect(crd.Spec.Group).To(Equal(want.group))
			g.Expect(crd.Spec.Scope).To(Equal(apiextensionsv1.NamespaceScoped))
			g.Expect(crd.Name).To(Equal(contract.CalculateCRDName(want.group, kind)), "Cluster API calculates this name")
			g.Expect(crd.Spec.Names.ListKind).To(Equal(kind + "List"))
			g.Expect(crd.Spec.Names.ShortNames).To(ConsistOf(want.shortName))
			g.Expect(crd.Spec.Names.Categories).To(ConsistOf("cluster-api"))
			_, moves := crd.Labels[moveHierarchyLabel]
			g.Expect(moves).To(Equal(want.inventory), "clusterctl moves objects of such a kind")

			var served []string
			for _, version := range crd.Spec.Versions {
				g.Expect(version.Served && version.Storage).To(BeTrue(), version.Name)
				served = append(served, version.Name)
				expectSubresources(g, version, want)
				g.Expect(version.AdditionalPrinterColumns).To(ContainElement(HaveField("Name", "Age")))
			}
			g.Expect(served).To(ConsistOf(want.version))
			g.Expect(crd.Labels).To(HaveKeyWithValue(contractLabelPrefix+contractVersion, strings.Join(served, "_")))
			g.Expect(crd.Labels).NotTo(HaveKey(contractLabelPrefix+"v1beta1"), "no other contract is kept")
		})
	}
}

func expectSubresources(g Gomega, version apiextensionsv1.CustomResourceDefinitionVersion, want wantKind) {
	subresources := version.Subresources
	if subresources == nil {
		subresources = &apiextensionsv1.CustomResourceSubresources{}
	}
	g.Expect(subresources.Status != nil).To(Equal(want.status), "status subresource")
	g.Expect(subresources.Scale != nil).To(Equal(want.scale), "scale subresource")
	if want.scale {
		g.Expect(subresources.Scale.SpecReplicasPath).To(Equal(".spec.replicas"))
		g.Expect(subresources.Scale.StatusReplicasPath).To(Equal(".status.replicas"))
		g.Expect(subresources.Scale.LabelSelectorPath).To(HaveValue(Equal(".status.selector")))
	}
	if want.status {
		conditions := version.Schema.OpenAPIV3Schema.Properties["status"].Properties["conditions"]
		g.Expect(conditions.MaxItems).To(HaveValue(BeEquivalentTo(32)))
		g.Expect(conditions.XListMapKeys).To(ConsistOf("type"))
		g.Expect(conditions.XListType).To(HaveValue(Equal("map")))
	}
}

// TestKindsAreInstalled: a kind that the kustomization of its provider forgets
// would be missing from the component files.
func TestKindsAreInstalled(t *testing.T) {
	g, files := NewWithT(t), map[string][]string{}
	for _, kind := range kinds(t) {
		files[kind.folder] = append(files[kind.folder], "bases/"+kind.file)
	}
	for folder, want := range files {
		raw, err := os.ReadFile(filepath.Join(folder, "crd", "kustomization.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		var kustomization struct {
			Resources []string `json:"resources"`
		}
		g.Expect(yaml.Unmarshal(raw, &kustomization)).To(Succeed())
		g.Expect(kustomization.Resources).To(ConsistOf(want), folder)
	}
}

// TestReleaseSeriesNamesTheContract: the contract in the labels and the one that
// clusterctl reads are the same.
func TestReleaseSeriesNamesTheContract(t *testing.T) {
	g := NewWithT(t)
	raw, err := os.ReadFile(filepath.Join("..", "metadata.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	metadata := &clusterctlv1.Metadata{}
	g.Expect(yaml.UnmarshalStrict(raw, metadata)).To(Succeed())
	g.Expect(metadata.APIVersion).To(Equal(clusterctlv1.GroupVersion.String()))
	g.Expect(metadata.Kind).To(Equal("Metadata"))
	g.Expect(metadata.ReleaseSeries).NotTo(BeEmpty())
	for _, series := range metadata.ReleaseSeries {
		g.Expect(series.Contract).To(Equal(contractVersion))
	}
}
