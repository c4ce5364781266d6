package backends

import (
	"context"
	"fmt"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// RefusedInterval is how often the API server is asked again to take what it has
// refused: nothing tells when a quota, a name or a rule of a namespace changes.
const RefusedInterval = 20 * time.Second

// KindOf is the kind of an object, by the name of its type.
func KindOf(object client.Object) string {
	return reflect.TypeOf(object).Elem().Name()
}

// DeleteOwned deletes an object that owner controls, if there is one; it tells
// whether it is still there. What belongs to somebody else is left alone.
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
