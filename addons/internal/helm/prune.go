package helm

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	helmrelease "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// lostByFailure is how Helm says that an object is in the cluster, and not in the failed
// revision that it compares with (pkg/kube/client.go, Update).
var lostByFailure = regexp.MustCompile(`no \S+ with the name "[^"]+" found`)

// failedSince are the revisions that have failed since one was deployed last. They may have
// made objects that no other revision has.
func failedSince(config *action.Configuration, name string) ([]*helmrelease.Release, error) {
	history, err := config.Releases.History(name)
	if err != nil {
		if errors.Is(err, driver.ErrReleaseNotFound) {
			return nil, nil
		}
		return nil, fmt.Errorf("reading the history of the release: %w", err)
	}
	deployed := 0
	for _, revision := range history {
		if revision.Info.Status == helmrelease.StatusDeployed {
			deployed = max(deployed, revision.Version)
		}
	}
	var failed []*helmrelease.Release
	for _, revision := range history {
		if revision.Info.Status == helmrelease.StatusFailed && revision.Version > deployed {
			failed = append(failed, revision)
		}
	}

	return failed, nil
}

// objectKey tells objects of a cluster apart.
type objectKey struct {
	schema.GroupKind
	client.ObjectKey
}

// prune deletes the objects of failed revisions that the newest one has not. Helm leaves
// them, since it compares with the last that was deployed alone.
func (c *Client) prune(ctx context.Context, config *action.Configuration, target release.Target, failed []*helmrelease.Release) error {
	if len(failed) == 0 {
		return nil
	}
	newest, err := config.Releases.Last(target.Name)
	if err != nil {
		return fmt.Errorf("reading the release: %w", err)
	}
	kept, err := c.objectsByKey(newest)
	if err != nil {
		return err
	}
	for _, revision := range failed {
		objects, err := c.objectsByKey(revision)
		if err != nil {
			return err
		}
		for key, object := range objects {
			if kept[key] == nil {
				if err := c.deleteOfRelease(ctx, object, target); err != nil {
					return err
				}
			}
		}
	}

	return nil
}

func (c *Client) objectsByKey(revision *helmrelease.Release) (map[objectKey]*unstructured.Unstructured, error) {
	objects, err := objectsOf(revision.Manifest)
	if err != nil {
		return nil, fmt.Errorf("reading the manifest of revision %d: %w", revision.Version, err)
	}
	byKey := map[objectKey]*unstructured.Unstructured{}
	for _, object := range objects {
		namespaced, err := c.live.IsObjectNamespaced(object)
		if err != nil {
			// The cluster does not know the kind, and so has no such object.
			continue
		}
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(revision.Namespace)
		}
		byKey[objectKey{object.GroupVersionKind().GroupKind(), client.ObjectKeyFromObject(object)}] = object
	}

	return byKey, nil
}

// deleteOfRelease deletes an object, if it is there, of this release, and not to be kept.
func (c *Client) deleteOfRelease(ctx context.Context, object *unstructured.Unstructured, target release.Target) error {
	if object.GetAnnotations()[kube.ResourcePolicyAnno] == kube.KeepPolicy {
		return nil
	}
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(object.GroupVersionKind())
	if err := c.live.Get(ctx, client.ObjectKeyFromObject(object), found); err != nil {
		return ignoreMissing(err, object)
	}
	annotations := found.GetAnnotations()
	if annotations[release.NameAnnotation] != target.Name || annotations[release.NamespaceAnnotation] != target.Namespace {
		return nil
	}

	return ignoreMissing(c.live.Delete(ctx, found, client.PropagationPolicy(metav1.DeletePropagationBackground)), object)
}

// ignoreMissing is an error of a call about an object, unless that is not there.
func ignoreMissing(err error, object client.Object) error {
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting %s %s, which only a failed revision has: %w", object.GetObjectKind().GroupVersionKind().Kind, object.GetName(), err)
	}

	return nil
}
