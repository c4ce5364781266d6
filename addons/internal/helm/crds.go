package helm

import (
	"context"
	"fmt"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

const (
	// establishTimeout is how long a new kind may take to be served, and
	// establishInterval how often that is looked for.
	establishTimeout  = time.Minute
	establishInterval = 500 * time.Millisecond
)

// applyCRDs brings what is in the folder crds of a chart to the cluster, as the policy
// says. It is ours and not Helm's: Helm does so at an installation only.
func (c *Client) applyCRDs(ctx context.Context, loaded *chart.Chart, request release.Request) error {
	if request.Options.CRDs == addonv1.CRDSkip {
		return nil
	}
	var written []*unstructured.Unstructured
	for _, file := range loaded.CRDObjects() {
		objects, err := objectsOf(string(file.File.Data))
		if err != nil {
			return &release.RefusedError{Reason: addonv1.ChartInvalidReason, Message: fmt.Sprintf("reading %s of the chart: %v", file.Filename, err)}
		}
		for _, object := range objects {
			isWritten, err := c.applyCRD(ctx, object, request)
			if err != nil {
				return err
			}
			if isWritten {
				written = append(written, object)
			}
		}
	}
	for _, object := range written {
		if err := c.waitUntilServed(ctx, object); err != nil {
			return err
		}
	}

	return nil
}

// applyCRD creates or replaces one of them, and reports whether it was written.
func (c *Client) applyCRD(ctx context.Context, object *unstructured.Unstructured, request release.Request) (bool, error) {
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(object.GroupVersionKind())
	err := c.live.Get(ctx, client.ObjectKeyFromObject(object), found)
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("reading %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	if err == nil {
		if request.Options.CRDs == addonv1.CRDCreate {
			return false, nil
		}
		if owner := ownerOfCRD(found, request); owner != "" {
			return false, &release.RefusedError{Reason: addonv1.CRDConflictReason, Message: fmt.Sprintf(
				"%s %s belongs to %s; set release.crds to Create or Skip, or remove it there", object.GetKind(), object.GetName(), owner)}
		}
	}
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[addonv1.OwnerLabel] = request.Owner
	object.SetLabels(labels)
	if err := c.live.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), release.FieldOwner, client.ForceOwnership); err != nil {
		return false, fmt.Errorf("applying %s %s: %w", object.GetKind(), object.GetName(), err)
	}

	return true, nil
}

// ownerOfCRD says whose a CustomResourceDefinition is, when it is somebody else's.
func ownerOfCRD(found *unstructured.Unstructured, request release.Request) string {
	name, namespace := found.GetAnnotations()[release.NameAnnotation], found.GetAnnotations()[release.NamespaceAnnotation]
	if name != "" && (name != request.Name || namespace != request.Namespace) {
		return fmt.Sprintf("the release %s/%s", namespace, name)
	}
	if owner := found.GetLabels()[addonv1.OwnerLabel]; owner != "" && owner != request.Owner {
		return "another TalosClusterAddon"
	}

	return ""
}

// waitUntilServed waits until a new kind is served, and discovery tells of it, which comes a
// moment later: by discovery Helm knows kinds.
func (c *Client) waitUntilServed(ctx context.Context, object *unstructured.Unstructured) error {
	err := wait.PollUntilContextTimeout(ctx, establishInterval, establishTimeout, true, func(ctx context.Context) (bool, error) {
		definition := &unstructured.Unstructured{}
		definition.SetGroupVersionKind(object.GroupVersionKind())
		if err := c.live.Get(ctx, client.ObjectKeyFromObject(object), definition); err != nil {
			return false, client.IgnoreNotFound(err)
		}
		if !isEstablished(definition) {
			return false, nil
		}
		return c.isDiscovered(definition)
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("waiting until %s %s is served: %w", object.GetKind(), object.GetName(), err)
	}

	return nil
}

// isDiscovered reports whether discovery tells of the versions of a kind that are served.
func (c *Client) isDiscovered(definition *unstructured.Unstructured) (bool, error) {
	kind := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(definition.Object, kind); err != nil {
		return false, fmt.Errorf("reading %s: %w", definition.GetName(), err)
	}
	// What it has been told stays as it is, so that each look needs another one.
	fresh, err := newGetter(c.config, "")
	if err != nil {
		return false, err
	}
	for _, version := range kind.Spec.Versions {
		if !version.Served {
			continue
		}
		_, err := fresh.mapper.RESTMapping(schema.GroupKind{Group: kind.Spec.Group, Kind: kind.Spec.Names.Kind}, version.Name)
		if meta.IsNoMatchError(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("asking for kind %s: %w", kind.Spec.Names.Kind, err)
		}
	}

	return true, nil
}

func isEstablished(definition *unstructured.Unstructured) bool {
	found, _, err := unstructured.NestedSlice(definition.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, entry := range found {
		if condition, is := entry.(map[string]any); is &&
			condition["type"] == string(apiextensionsv1.Established) && condition["status"] == string(apiextensionsv1.ConditionTrue) {
			return true
		}
	}

	return false
}
