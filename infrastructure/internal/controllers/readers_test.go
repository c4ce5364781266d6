package controllers

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// liveReader counts what is read live.
type liveReader struct {
	client.Reader
	world *world
}

func (r liveReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	r.world.reads++

	return r.Reader.Get(ctx, key, o, opts...)
}

// cachedReader reads what a cache holds.
type cachedReader struct {
	client.Reader
	world *world
}

func (r cachedReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	reads := r.world.reads
	err := r.Reader.Get(ctx, key, o, opts...)
	if err == nil {
		r.world.reads = reads
	}

	return err
}

// behind reads the objects of one kind as one was some time ago, as a cache may.
type behind[T interface {
	client.Object
	DeepCopyInto(into T)
}] struct {
	client.Client
	old T
}

func (c behind[T]) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if into, ok := o.(T); ok {
		c.old.DeepCopyInto(into)
		return nil
	}

	return c.Client.Get(ctx, key, o, opts...)
}

// behindOnce reads an object of one kind as it was some time ago, once.
type behindOnce[T interface {
	client.Object
	DeepCopyInto(into T)
}] struct {
	client.Reader
	old  T
	told bool
}

func (r *behindOnce[T]) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if into, ok := o.(T); ok && !r.told {
		r.told = true
		r.old.DeepCopyInto(into)
		return nil
	}

	return r.Reader.Get(ctx, key, o, opts...)
}
