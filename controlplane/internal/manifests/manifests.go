// Package manifests brings Talos' own manifests in a cluster, such as those of kube-proxy
// and CoreDNS, to what a node renders.
package manifests

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/constants"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// InventoryAnnotation is on objects that Talos counts among its own. It belongs to
// Talos' field manager, and so would go if it were not applied again.
const InventoryAnnotation = "config.k8s.io/owning-inventory"

// Node renders manifests.
type Node interface {
	// Manifests are those of the machine configuration of the node.
	Manifests(ctx context.Context) ([]map[string]any, error)
}

// Read are the manifests that a node renders, as they can be sent.
func Read(ctx context.Context, node Node) ([]*unstructured.Unstructured, error) {
	objects, err := node.Manifests(ctx)
	if err != nil {
		return nil, err
	}

	return decode(objects)
}

// decode turns objects into those that can be sent. They come with types of numbers that
// JSON does not know.
func decode(objects []map[string]any) ([]*unstructured.Unstructured, error) {
	var list []*unstructured.Unstructured
	for _, object := range objects {
		raw, err := json.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("encoding a manifest: %w", err)
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			return nil, fmt.Errorf("decoding a manifest: %w", err)
		}
		unstructured.RemoveNestedField(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		list = append(list, u)
	}

	return list, nil
}

// Apply changes an object of Talos if it is there, and names the fields that stay as others
// have set them. It acts as Talos, so that what a new version leaves out is removed. What
// is missing Talos makes itself, unless a person has deleted it; of a kind that the cluster
// does not know it has none.
func Apply(ctx context.Context, workload client.Client, manifest *unstructured.Unstructured) ([]string, error) {
	left, err := apply(ctx, workload, manifest)
	switch {
	case meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("applying %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	default:
		return left, nil
	}
}

func apply(ctx context.Context, workload client.Client, manifest *unstructured.Unstructured) ([]string, error) {
	if err := setScope(workload, manifest); err != nil {
		return nil, err
	}
	present := &unstructured.Unstructured{}
	present.SetGroupVersionKind(manifest.GroupVersionKind())
	if err := workload.Get(ctx, client.ObjectKeyFromObject(manifest), present); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if err := ownAsApplied(ctx, workload, present); err != nil {
		return nil, err
	}
	left, err := leaveToOthers(manifest, present)
	if err != nil {
		return nil, err
	}
	if inventory, found := present.GetAnnotations()[InventoryAnnotation]; found {
		annotations := manifest.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[InventoryAnnotation] = inventory
		manifest.SetAnnotations(annotations)
	}
	manifest.SetUID(present.GetUID()) // It may be deleted meanwhile, and is not to come back.

	return left, workload.Apply(ctx, client.ApplyConfigurationFromUnstructured(manifest),
		client.FieldOwner(constants.KubernetesFieldManagerName), client.ForceOwnership)
}

// setScope puts a manifest into the namespace that Talos would put it into, or into
// none.
func setScope(workload client.Client, manifest *unstructured.Unstructured) error {
	namespaced, err := workload.IsObjectNamespaced(manifest)
	switch {
	case err != nil:
		return err
	case !namespaced:
		manifest.SetNamespace("")
	case manifest.GetNamespace() == "":
		manifest.SetNamespace(metav1.NamespaceDefault)
	}

	return nil
}
