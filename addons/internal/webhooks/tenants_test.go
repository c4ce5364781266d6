package webhooks_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

// fieldsOf are the paths of all fields of a schema.
func fieldsOf(path string, schema apiextensionsv1.JSONSchemaProps) []string {
	var found []string
	for name, below := range schema.Properties {
		found = append(found, path+"."+name)
		found = append(found, fieldsOf(path+"."+name, below)...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		found = append(found, fieldsOf(path+"[]", *schema.Items.Schema)...)
	}

	return found
}

// TestNoReferenceLeavesTheNamespace: no field of an add-on can name a namespace of the
// management cluster, and those of that word are namespaces of workload clusters.
func TestNoReferenceLeavesTheNamespace(t *testing.T) {
	g := NewWithT(t)
	files, err := filepath.Glob("../../../config/addons/crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	var named []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		kind := apiextensionsv1.CustomResourceDefinition{}
		g.Expect(yaml.UnmarshalStrict(text, &kind)).To(Succeed())
		g.Expect(kind.Spec.Scope).To(Equal(apiextensionsv1.NamespaceScoped))
		for _, version := range kind.Spec.Versions {
			for _, field := range fieldsOf(kind.Spec.Names.Kind, *version.Schema.OpenAPIV3Schema) {
				if strings.Contains(strings.ToLower(field[strings.LastIndexByte(field, '.'):]), "namespace") {
					named = append(named, field)
				}
			}
		}
	}
	slices.Sort(named)
	g.Expect(named).To(Equal([]string{
		"TalosClusterAddon.spec.release.namespace", "TalosClusterAddon.spec.release.namespacePolicy", "TalosClusterAddonRelease.spec.releaseNamespace",
	}))
}

// TestPasswordsAreNotWrittenIntoAnAddon, where everybody who may read it reads them, nor
// sent where everybody on the way does.
func TestPasswordsAreNotWrittenIntoAnAddon(t *testing.T) {
	for name, tt := range map[string]struct {
		source  addonv1.AddonSource
		message string
	}{
		"in a url":              {addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "https://user:hunter2@charts.example.com", Chart: "demo"}}, "credentialsSecretName"},
		"in a url of HTTP":      {addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "http://user@charts.example.com", Chart: "demo", Insecure: addonv1.AllowHTTP}}, "credentialsSecretName"},
		"in that of a registry": {addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://user:hunter2@registry.example.com/demo"}}, "spec.source.registry.url"},
		"to a registry by HTTP": {addonv1.AddonSource{Registry: addonv1.RegistrySource{
			URL: "oci://registry.example.com/demo", Insecure: addonv1.AllowHTTP, CredentialsSecretName: "login",
		}}, "cannot be used with insecure"},
	} {
		t.Run(name, func(t *testing.T) {
			addon := addonOf(func(a *addonv1.TalosClusterAddon) { a.Spec.Source = tt.source })
			NewWithT(t).Expect(management.Create(t.Context(), addon)).To(MatchError(ContainSubstring(tt.message)))
		})
	}
	addon := addonOf(func(a *addonv1.TalosClusterAddon) {
		a.Name, a.Spec.Source.Repository.URL, a.Spec.Source.IntervalSeconds = "at", "https://charts.example.com/@scope", ptr.To(int32(0))
	})
	NewWithT(t).Expect(management.Create(t.Context(), addon)).To(Succeed())
}
