// Package mortal ends the manager of a test at any of its effects, as a crash does: what
// it has written stays, and nothing more is written.
//
// An effect is a write to the management cluster, or a call that changes a machine. A test
// counts the effects of a run without a death first, and then dies at each of them in turn.
package mortal

import (
	"context"
	"errors"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// ErrDead is what every call of a dead manager ends with.
var ErrDead = errors.New("the manager was killed")

// Life is that of the managers of a test, one after the other. The zero value is one that
// does not end. It is safe for concurrent use.
type Life struct {
	mu      sync.Mutex
	effects int
	dieAt   int
	dead    bool
}

// DieAt lets the manager die at its n-th effect from now on, before it happens; 0 is never.
func (l *Life) DieAt(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dieAt = 0; n > 0 {
		l.dieAt = l.effects + n
	}
}

// Restart starts another manager, which lives on.
func (l *Life) Restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead, l.dieAt = false, 0
}

// IsOver reports whether the manager has died.
func (l *Life) IsOver() bool {
	return l.Alive() != nil
}

// Effects is how many effects there have been, of all managers.
func (l *Life) Effects() int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.effects
}

// Effect counts an effect, and returns ErrDead when the manager does not live to have it.
func (l *Life) Effect() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return ErrDead
	}
	l.effects++
	if l.effects == l.dieAt {
		l.dead = true
		return ErrDead
	}

	return nil
}

// Alive returns ErrDead when the manager has died.
func (l *Life) Alive() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dead {
		return ErrDead
	}

	return nil
}

// Around is a call that changes a machine. The manager may die before it, and after it
// without knowing how it has ended: it counts as two effects.
func (l *Life) Around(call func() error) error {
	if err := l.Effect(); err != nil {
		return err
	}
	err := call()
	if dead := l.Effect(); dead != nil {
		return dead
	}

	return err
}

// Client is what a manager has of a client: its writes are effects.
func (l *Life) Client(c client.WithWatch) client.WithWatch {
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return l.read(func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return l.read(func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return l.write(func() error { return c.Create(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return l.write(func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return l.write(func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return l.write(func() error { return c.Apply(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return l.write(func() error { return c.Delete(ctx, o, opts...) })
		},
		DeleteAllOf: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteAllOfOption) error {
			return l.write(func() error { return c.DeleteAllOf(ctx, o, opts...) })
		},
		SubResourceCreate: func(ctx context.Context, c client.Client, name string, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
			return l.write(func() error { return c.SubResource(name).Create(ctx, o, sub, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, name string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return l.write(func() error { return c.SubResource(name).Update(ctx, o, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			return l.write(func() error { return c.SubResource(name).Patch(ctx, o, p, opts...) })
		},
	})
}

func (l *Life) read(call func() error) error {
	if err := l.Alive(); err != nil {
		return err
	}

	return call()
}

func (l *Life) write(call func() error) error {
	if err := l.Effect(); err != nil {
		return err
	}

	return call()
}
