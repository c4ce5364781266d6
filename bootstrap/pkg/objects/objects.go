// Package objects writes objects of the management cluster so that nothing that others
// have written in between is lost, and says how writes have ended.
package objects

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	capilabels "sigs.k8s.io/cluster-api/util/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Patch writes the difference of two versions of an object, if there is one. When somebody
// else has changed the object since before was read, it writes nothing and returns a
// conflict. After it, after is what the management cluster has.
func Patch(ctx context.Context, c client.Client, before, after client.Object) error {
	if reflect.DeepEqual(before, after) {
		return nil
	}

	return c.Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// PatchStatus writes the difference of two versions of an object's status, as Patch does of
// the rest of it. It is for kinds whose status has one writer: conditions and all else go
// with one call.
func PatchStatus(ctx context.Context, c client.Client, before, after client.Object) error {
	if reflect.DeepEqual(before, after) {
		return nil
	}

	return c.Status().Patch(ctx, after, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// ReadLive is a client that reads single objects live, whatever they hold already, and does
// all else as c does. Cluster API's patch.Helper wants it: before it writes conditions it
// reads those of others, and fails when they have changed since, so that a cache that is
// behind would fail it.
func ReadLive(c client.Client, live client.Reader) client.Client {
	return liveClient{Client: c, live: live}
}

type liveClient struct {
	client.Client

	live client.Reader
}

// Get implements client.Reader.
func (c liveClient) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	// An answer is decoded on top of what is there.
	if _, ok := into.(runtime.Unstructured); !ok {
		reflect.ValueOf(into).Elem().SetZero()
	}

	return c.live.Get(ctx, key, into, opts...)
}

// Change writes what change makes of an object, as Patch does.
func Change[T client.Object](ctx context.Context, c client.Client, object T, change func(T)) error {
	before := object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // It is a copy of one.
	change(object)

	return Patch(ctx, c, before, object)
}

// IsRefused reports whether the API server will refuse the same again: it is invalid, or
// forbidden to the manager. A name or an address that is in use, and a quota that is used
// up, are refused so too, and may be free later.
func IsRefused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// Selects reports whether a selector selects an object by its labels. An empty selector
// selects nothing, as users who forget it expect; all are selected where all is true.
func Selects(selector metav1.LabelSelector, all *bool, object metav1.Object) (bool, error) {
	if all != nil && *all {
		return true, nil
	}
	parsed, err := metav1.LabelSelectorAsSelector(&selector)
	if err != nil {
		return false, err
	}

	return !parsed.Empty() && parsed.Matches(labels.Set(object.GetLabels())), nil
}

// Record reads the record that an annotation of an object has as JSON; nil when there is none
// that can be read.
func Record[T any](object metav1.Object, annotation string) *T {
	value, found := object.GetAnnotations()[annotation]
	if !found {
		return nil
	}
	record := new(T)
	if err := json.Unmarshal([]byte(value), record); err != nil {
		return nil
	}

	return record
}

// WatchAs gives an object that is made for another one the label of the watch filter that
// the other has, if any: a manager with --watch-filter sees no object without it.
func WatchAs(of, made metav1.Object) {
	if value, ok := of.GetLabels()[clusterv1.WatchLabel]; ok {
		capilabels.AddLabels(made, map[string]string{clusterv1.WatchLabel: value})
	}
}

// KindOf is the kind of a typed object, by the name of its type.
func KindOf(object client.Object) string {
	return reflect.TypeOf(object).Elem().Name()
}

// DeleteOwned deletes an object that owner controls, if there is one, and reports whether
// it is still there. What belongs to somebody else is left alone. It is read through live.
func DeleteOwned(ctx context.Context, c client.Client, live client.Reader, owner metav1.Object, object client.Object) (bool, error) {
	kind, key := KindOf(object), client.ObjectKeyFromObject(object)
	read := func() (bool, error) {
		err := live.Get(ctx, key, object)
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("reading %s %s: %w", kind, key.Name, err)
		}

		return true, nil
	}
	if there, err := read(); err != nil || !there || !metav1.IsControlledBy(object, owner) {
		return false, err
	}
	if !object.GetDeletionTimestamp().IsZero() {
		return true, nil
	}
	uid := object.GetUID()
	if err := c.Delete(ctx, object, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("deleting %s %s: %w", kind, key.Name, err)
	}
	// What has no finalizer is gone with the answer.
	there, err := read()

	return there && object.GetUID() == uid, err
}
