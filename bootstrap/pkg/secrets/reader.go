package secrets

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

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
