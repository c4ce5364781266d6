package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/cluster-api/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// specManager owns what the provider sets once in objects that it creates,
	// and what it keeps in Machines.
	specManager = "capt-taloscontrolplane"
	// metadataManager owns the labels and annotations that the provider keeps
	// in infrastructure machines and TalosConfigs. It is a manager of its own,
	// so that removed ones really disappear without touching the spec.
	metadataManager = "capt-taloscontrolplane-metadata"
)

// applyMemory is how long it is remembered that an object is as it should be.
const applyMemory = 10 * time.Minute

// applied remembers that an object, at a resource version, is as it should be.
type applied struct{ key string }

// Key implements cache.Entry.
func (a applied) Key() string { return a.key }

// applier writes objects by server-side apply, and only when that may change
// something.
type applier struct {
	client client.Client
	known  cache.Cache[applied]
}

func newApplier(ctx context.Context, c client.Client) *applier {
	return &applier{client: c, known: cache.New[applied](ctx, applyMemory)}
}

// apply writes desired as manager. current is the object as it was read, nil
// when it is to be created; with it the write fails when the object was deleted
// in between, instead of creating it again.
func (a *applier) apply(ctx context.Context, manager string, desired *unstructured.Unstructured, current client.Object) error {
	if current != nil {
		desired.SetUID(current.GetUID())
		key, err := applyKey(manager, desired, current.GetResourceVersion())
		if err != nil {
			return err
		}
		if _, known := a.known.Has(key); known {
			return nil
		}
	}
	written := desired.DeepCopy()
	if err := a.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(written), client.FieldOwner(manager), client.ForceOwnership); err != nil {
		return fmt.Errorf("applying %s %s: %w", desired.GetKind(), desired.GetName(), err)
	}
	desired.SetUID(written.GetUID())
	key, err := applyKey(manager, desired, written.GetResourceVersion())
	if err != nil {
		return err
	}
	a.known.Add(applied{key: key})

	return nil
}

func applyKey(manager string, desired *unstructured.Unstructured, resourceVersion string) (string, error) {
	raw, err := json.Marshal(desired.Object)
	if err != nil {
		return "", fmt.Errorf("encoding %s %s: %w", desired.GetKind(), desired.GetName(), err)
	}
	digest := sha256.Sum256(raw)

	return manager + "/" + resourceVersion + "/" + hex.EncodeToString(digest[:]), nil
}

// toApply turns a typed object into what is applied: without status and without
// fields that the API server sets.
func toApply(object client.Object, gvk schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("converting %s %s: %w", gvk.Kind, object.GetName(), err)
	}
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(gvk)
	unstructured.RemoveNestedField(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")

	return u, nil
}
