package harness

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// liveReader counts what is read live.
type liveReader struct {
	client.Reader
	Environment *Environment
}

func (r liveReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	r.Environment.Reads++

	return r.Reader.Get(ctx, key, o, opts...)
}

// cachedReader reads what a cache holds.
type cachedReader struct {
	client.Reader
	Environment *Environment
}

func (r cachedReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	reads := r.Environment.Reads
	err := r.Reader.Get(ctx, key, o, opts...)
	if err == nil {
		r.Environment.Reads = reads
	}

	return err
}

// Behind reads the objects of one kind as one was some time ago, as a cache may.
type Behind[T interface {
	client.Object
	DeepCopyInto(into T)
}] struct {
	client.Client
	Old T
}

// Get implements client.Reader.
func (c Behind[T]) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if into, ok := o.(T); ok {
		c.Old.DeepCopyInto(into)
		return nil
	}

	return c.Client.Get(ctx, key, o, opts...)
}

// BehindOnce reads an object of one kind as it was some time ago, once.
type BehindOnce[T interface {
	client.Object
	DeepCopyInto(into T)
}] struct {
	client.Reader
	Old T
	// Told reports whether that was told.
	Told bool
}

// Get implements client.Reader.
func (r *BehindOnce[T]) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if into, ok := o.(T); ok && !r.Told {
		r.Told = true
		r.Old.DeepCopyInto(into)
		return nil
	}

	return r.Reader.Get(ctx, key, o, opts...)
}
