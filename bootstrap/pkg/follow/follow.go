// Package follow watches the status of configured machines, and wakes a
// controller at each change.
package follow

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// maxConnections bounds how often a watch goes on in another connection.
const maxConnections = 8

// errOther says that another machine answers, or the same in another boot.
var errOther = errors.New("the machine presents another certificate")

// eventBuffer lets watches report while the controller is busy.
const eventBuffer = 1024

// Follower keeps one watch per object. It saves polling only: a pass asks the
// machine itself.
type Follower struct {
	ctx    context.Context //nolint:containedctx // The life of the watches is the manager's, not a pass's.
	dialer talosclient.Dialer
	object func(client.ObjectKey) client.Object
	events chan event.GenericEvent

	mu      sync.Mutex
	watches map[client.ObjectKey]*watch
}

type watch struct {
	address string
	// trust tells apart what a machine is believed by: the CA of a cluster, not
	// the client certificate, which a watch outlives, or a maintenance certificate.
	trust  [sha256.Size]byte
	dial   dial
	cancel context.CancelFunc
	// latest is the last status that is known; the Follower's lock guards it.
	latest talosclient.MachineStatus
}

// dial opens the connection of a watch.
type dial func(ctx context.Context) (talosclient.Node, error)

// New returns a Follower whose watches end with ctx. object makes the object of
// an event from the key of a watch.
func New(ctx context.Context, dialer talosclient.Dialer, object func(client.ObjectKey) client.Object) *Follower {
	return &Follower{
		ctx: ctx, dialer: dialer, object: object, events: make(chan event.GenericEvent, eventBuffer), watches: map[client.ObjectKey]*watch{},
	}
}

// Events tell the objects whose machine has changed.
func (f *Follower) Events() <-chan event.GenericEvent {
	return f.events
}

// Follow watches the machine at address for the object of key. known is the
// status that the caller has seen: only another one makes an event. A machine
// that is followed at that address already stays so.
func (f *Follower) Follow(key client.ObjectKey, address string, creds talosclient.Credentials, known talosclient.MachineStatus) {
	f.follow(key, &watch{
		address: address, trust: sha256.Sum256(creds.CA), latest: known,
		dial: func(ctx context.Context) (talosclient.Node, error) { return f.dialer.Secure(ctx, address, creds) },
	})
}

// FollowMaintenance is Follow for a machine in maintenance mode, in the boot of
// the given certificate.
func (f *Follower) FollowMaintenance(key client.ObjectKey, address, fingerprint string, known talosclient.MachineStatus) {
	f.follow(key, &watch{
		address: address, trust: sha256.Sum256([]byte("maintenance " + fingerprint)), latest: known,
		dial: func(ctx context.Context) (talosclient.Node, error) {
			return f.dialer.Maintenance(ctx, address, fingerprint)
		},
	})
}

func (f *Follower) follow(key client.ObjectKey, w *watch) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if old, found := f.watches[key]; found {
		if old.address == w.address && old.trust == w.trust {
			return
		}
		old.cancel()
	}
	ctx, cancel := context.WithCancel(f.ctx)
	w.cancel = cancel
	f.watches[key] = w
	go f.run(ctx, key, w, w.latest)
}

// Stop ends the watch for an object, if there is one.
func (f *Follower) Stop(key client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w, found := f.watches[key]; found {
		w.cancel()
		delete(f.watches, key)
	}
}

// Following tells whether the machine of an object is watched.
func (f *Follower) Following(key client.ObjectKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, found := f.watches[key]

	return found
}

// Latest is the last status that is known of the machine of an object; false
// when it is not watched.
func (f *Follower) Latest(key client.ObjectKey) (talosclient.MachineStatus, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, found := f.watches[key]
	if !found {
		return talosclient.MachineStatus{}, false
	}

	return w.latest, true
}

func (f *Follower) run(ctx context.Context, key client.ObjectKey, w *watch, known talosclient.MachineStatus) {
	defer w.cancel()
	err := f.watch(ctx, key, w, known)

	f.mu.Lock()
	replaced := f.watches[key] != w
	if !replaced {
		delete(f.watches, key)
	}
	f.mu.Unlock()
	if replaced || ctx.Err() != nil {
		return
	}
	ctrl.LoggerFrom(ctx).V(3).Info("Watching a machine has ended", "object", key.String(), "reason", fmt.Sprint(err))
	f.wake(ctx, key)
}

// watch tells the changes of a machine, until it cannot be reached any more, or
// another one answers. A node ends a quiet connection now and then, because gRPC
// servers take only so many keepalive pings: then the watch goes on in the next
// one, and nobody is woken.
func (f *Follower) watch(ctx context.Context, key client.ObjectKey, w *watch, known talosclient.MachineStatus) error {
	node, err := w.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()

	certificate, last := node.Fingerprint(), fmt.Sprint(known)
	for range maxConnections {
		told := false
		err = f.watchOnce(ctx, node, certificate, func(status talosclient.MachineStatus) {
			told = true
			now := fmt.Sprint(status)
			if now == last {
				return
			}
			last = now
			f.mu.Lock()
			w.latest = status
			f.mu.Unlock()
			f.wake(ctx, key)
		})
		if !told || ctx.Err() != nil || errors.Is(err, errOther) {
			break
		}
	}

	return err
}

// watchOnce is a watch over one connection: to the machine, in the boot, of the
// given certificate.
func (f *Follower) watchOnce(ctx context.Context, node talosclient.Node, certificate string, tell func(talosclient.MachineStatus)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) {
		if node.Fingerprint() != certificate {
			cancel(errOther)
			return
		}
		tell(status)
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}

	return err
}

func (f *Follower) wake(ctx context.Context, key client.ObjectKey) {
	select {
	case f.events <- event.GenericEvent{Object: f.object(key)}:
	case <-ctx.Done():
	}
}
