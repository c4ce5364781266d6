package addons

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/releaseutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/yaml"
)

// objects are the objects of a release, by kind and name: "Deployment.apps/demo".
type objects map[string]metav1.PartialObjectMetadata

func (o objects) names() []string { return slices.Sorted(maps.Keys(o)) }

// first is the first object of a kind: "Deployment.apps".
func (o objects) first(kind string) metav1.PartialObjectMetadata {
	for _, name := range o.names() {
		if strings.HasPrefix(name, kind+"/") {
			return o[name]
		}
	}

	return metav1.PartialObjectMetadata{}
}

// kept are those that stay when the release is uninstalled: the chart says so, or they are
// what the folder crds has.
func (o objects) kept() []string {
	return slices.DeleteFunc(o.names(), func(name string) bool {
		return o[name].Annotations[kube.ResourcePolicyAnno] != kube.KeepPolicy
	})
}

func nameOf(kind schema.GroupKind, name string) string { return kind.String() + "/" + name }

func parse(g Gomega, into objects, text string) {
	for _, manifest := range releaseutil.SplitManifests(text) {
		object := metav1.PartialObjectMetadata{}
		g.Expect(yaml.Unmarshal([]byte(manifest), &object)).To(Succeed())
		if object.Kind != "" {
			into[nameOf(object.GroupVersionKind().GroupKind(), object.Name)] = object
		}
	}
}

// rendered are the objects that Helm itself renders, but for hooks, with what the folder
// crds has. The latter are marked as kept.
func rendered(t *testing.T, loaded *chart.Chart, release, namespace string, values map[string]any) objects {
	t.Helper()
	g := NewWithT(t)
	client, err := discovery.NewDiscoveryClientForConfig(workloadConfig)
	g.Expect(err).NotTo(HaveOccurred())
	server, err := client.ServerVersion()
	g.Expect(err).NotTo(HaveOccurred())
	install := action.NewInstall(&action.Configuration{})
	install.ClientOnly, install.DryRun, install.ReleaseName, install.Namespace = true, true, release, namespace
	install.KubeVersion = &chartutil.KubeVersion{Version: server.GitVersion, Major: server.Major, Minor: server.Minor}
	made, err := install.RunWithContext(t.Context(), loaded, values)
	g.Expect(err).NotTo(HaveOccurred())
	found := objects{}
	for _, file := range loaded.CRDObjects() {
		parse(g, found, string(file.File.Data))
	}
	for name, object := range found {
		metav1.SetMetaDataAnnotation(&object.ObjectMeta, kube.ResourcePolicyAnno, kube.KeepPolicy)
		found[name] = object
	}
	parse(g, found, made.Manifest)

	return found
}

// inventory are the objects of a release that the workload cluster has: all in its
// namespace, those elsewhere that are marked as its own, and those of the names that are
// given.
func inventory(ctx context.Context, g Gomega, release, namespace string, named objects) objects {
	found := objects{}
	live, err := metadata.NewForConfig(workloadConfig)
	g.Expect(err).NotTo(HaveOccurred())
	for kind, resource := range listable(g) {
		list, err := live.Resource(resource).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			// Another test has removed the kind meanwhile.
			continue
		}
		g.Expect(err).NotTo(HaveOccurred(), resource.String())
		for _, object := range list.Items {
			name := nameOf(kind, object.Name)
			_, isNamed := named[name]
			isMarked := object.Annotations["meta.helm.sh/release-name"] == release || object.Labels["app.kubernetes.io/instance"] == release
			if isNamed || isMarked || object.Namespace == namespace {
				found[name] = object
			}
		}
	}

	return found
}

// isRecord reports whether an object is a record of Helm, of which each revision has one.
func isRecord(name string) bool { return strings.HasPrefix(name, "Secret/sh.helm.release.v1.") }

// withoutRecords are the names of objects but the records of Helm.
func (o objects) withoutRecords() []string { return slices.DeleteFunc(o.names(), isRecord) }

// listable are the resources of the workload cluster whose objects can be listed, by kind.
func listable(g Gomega) map[schema.GroupKind]schema.GroupVersionResource {
	client, err := discovery.NewDiscoveryClientForConfig(workloadConfig)
	g.Expect(err).NotTo(HaveOccurred())
	lists, err := client.ServerPreferredResources()
	if !discovery.IsGroupDiscoveryFailedError(err) {
		// The API of metrics-server has nobody who serves it.
		g.Expect(err).NotTo(HaveOccurred())
	}
	found := map[schema.GroupKind]schema.GroupVersionResource{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		g.Expect(err).NotTo(HaveOccurred())
		for _, resource := range list.APIResources {
			if resource.Kind != "Event" && resource.Kind != "ComponentStatus" && slices.Contains(resource.Verbs, "list") {
				found[schema.GroupKind{Group: version.Group, Kind: resource.Kind}] = version.WithResource(resource.Name)
			}
		}
	}

	return found
}
