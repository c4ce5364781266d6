// Package secretcache reads Secrets of the management cluster from a cache that keeps the
// data of few, and live where the data is not there: it is never silently empty.
package secretcache

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// withoutDataAnnotation marks Secrets in a cache whose data was dropped. It exists in the
// cache only.
const withoutDataAnnotation = "bootstrap.cluster.x-k8s.io/data-not-cached"

// KeepData is the transform of a cache of Secrets: it keeps the data of those whose names
// end so, and of all others the metadata only. What is read through NewClient has
// its data nevertheless.
func KeepData(endings []string) toolscache.TransformFunc {
	return func(in any) (any, error) {
		secret, ok := in.(*corev1.Secret)
		if !ok {
			return in, nil
		}
		secret.SetManagedFields(nil)
		kept := slices.ContainsFunc(endings, func(ending string) bool { return strings.HasSuffix(secret.Name, ending) })
		// It is called again for what it has returned: the mark stays.
		if !kept && len(secret.Data) > 0 {
			secret.Data = nil
			metav1.SetMetaDataAnnotation(&secret.ObjectMeta, withoutDataAnnotation, "")
		}

		return secret, nil
	}
}

// MetadataOnly asks for a Secret without its data, which is thus never read live only
// because the cache does not keep the data.
type MetadataOnly struct{}

// ApplyToGet implements client.GetOption.
func (MetadataOnly) ApplyToGet(*client.GetOptions) {}

func isMetadataOnly(opt client.GetOption) bool {
	_, ok := opt.(MetadataOnly)

	return ok
}

// NewClient is cached, a client that reads from a cache with the transform
// KeepData, but for Secrets without their data: one is read live, and a list with one
// is an error.
func NewClient(cached client.Client, live client.Reader) client.Client {
	return cachingClient{Client: cached, live: live}
}

type cachingClient struct {
	client.Client

	live client.Reader
}

// Get implements client.Reader.
func (c cachingClient) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if err := c.Client.Get(ctx, key, into, opts...); err != nil {
		return err
	}
	secret, ok := into.(*corev1.Secret)
	switch {
	case !ok:
		return nil
	case slices.ContainsFunc(opts, isMetadataOnly):
		secret.Data = nil
		delete(secret.Annotations, withoutDataAnnotation)
		return nil
	case !metav1.HasAnnotation(secret.ObjectMeta, withoutDataAnnotation):
		return nil
	}
	// An answer is decoded on top of what is there.
	*secret = corev1.Secret{}

	return c.live.Get(ctx, key, secret, opts...)
}

// List implements client.Reader.
func (c cachingClient) List(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	if err := c.Client.List(ctx, into, opts...); err != nil {
		return err
	}
	list, ok := into.(*corev1.SecretList)
	if !ok {
		return nil
	}
	for i := range list.Items {
		if secret := &list.Items[i]; metav1.HasAnnotation(secret.ObjectMeta, withoutDataAnnotation) {
			return fmt.Errorf("listing Secrets from the cache: the data of Secret %s is not kept there", client.ObjectKeyFromObject(secret))
		}
	}

	return nil
}

// NewReader reads a Secret from the cache, and live when the cache lacks it: the
// cache lags behind, and holds only what carries the label of a cluster, which a
// Secret that a user brings may not.
func NewReader(cached, live client.Reader) client.Reader {
	return reader{Reader: cached, live: live}
}

type reader struct {
	client.Reader

	live client.Reader
}

// Get implements client.Reader.
func (r reader) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, into, opts...)
	if apierrors.IsNotFound(err) {
		return r.live.Get(ctx, key, into, opts...)
	}
	return err
}
