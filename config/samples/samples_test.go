// Package samples holds the samples to our kinds.
package samples

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// folders have the samples of those who have another provider as well, by its group.
func folders() map[string]string {
	return map[string]string{addonv1.GroupVersion.Group: "addons", backupv1.GroupVersion.Group: "backup"}
}

// TestEachKindHasASample: each kind of ours has a sample, with fields of that kind
// only, no two have the same name, and the kustomization of their folder lists them.
func TestEachKindHasASample(t *testing.T) {
	g, scheme := NewWithT(t), runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clusterv1.AddToScheme, bootstrapv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme, addonv1.AddToScheme, backupv1.AddToScheme,
	} {
		g.Expect(add(scheme)).To(Succeed())
	}
	found := map[schema.GroupVersionKind][]string{}
	for _, folder := range append(slices.Sorted(maps.Values(folders())), ".") {
		for kind, names := range samplesIn(g, scheme, folder) {
			for _, name := range names {
				g.Expect(found[kind]).NotTo(ContainElement(name), "%s in %s", kind.Kind, folder)
			}
			found[kind] = append(found[kind], names...)
			if own, hasOwn := folders()[kind.Group]; hasOwn {
				g.Expect(folder).To(Equal(own), "%s needs another provider", kind.Kind)
			}
		}
	}
	// Nobody but the add-on provider makes these.
	generated := addonv1.GroupVersion.WithKind(addonv1.TalosClusterAddonReleaseKind)
	for _, group := range []schema.GroupVersion{bootstrapv1.GroupVersion, controlplanev1.GroupVersion, infrav1.GroupVersion, addonv1.GroupVersion, backupv1.GroupVersion} {
		for kind, of := range scheme.KnownTypes(group) {
			if of.PkgPath() == "k8s.io/apimachinery/pkg/apis/meta/v1" || isList(kind) {
				continue
			}
			g.Expect(len(found[group.WithKind(kind)]) == 0).To(Equal(group.WithKind(kind) == generated), "samples of %s", kind)
		}
	}
}

// samplesIn are the names of the samples in a folder.
func samplesIn(g Gomega, scheme *runtime.Scheme, folder string) map[schema.GroupVersionKind][]string {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	found, listed := map[schema.GroupVersionKind][]string{}, []string{}
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		listed = append(listed, filepath.Base(file))
		text, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			kind := &runtime.TypeMeta{}
			g.Expect(yaml.Unmarshal(document, kind)).To(Succeed(), file)
			object, err := scheme.New(kind.GroupVersionKind())
			g.Expect(err).NotTo(HaveOccurred(), file)
			g.Expect(yaml.UnmarshalStrict(document, object)).To(Succeed(), file)
			named, isNamed := object.(metav1.Object)
			g.Expect(isNamed).To(BeTrue(), file)
			g.Expect(found[kind.GroupVersionKind()]).NotTo(ContainElement(named.GetName()), file)
			found[kind.GroupVersionKind()] = append(found[kind.GroupVersionKind()], named.GetName())
		}
	}
	kustomization := struct{ Resources []string }{}
	text, err := os.ReadFile(filepath.Join(folder, "kustomization.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.Unmarshal(text, &kustomization)).To(Succeed())
	g.Expect(kustomization.Resources).To(ConsistOf(listed))

	return found
}

func isList(kind string) bool { return strings.HasSuffix(kind, "List") }
