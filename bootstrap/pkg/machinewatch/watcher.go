// Package machinewatch watches machines. A Watcher wakes a controller when the status
// of a machine changes; a Tracker reports which machines need not be asked, because
// nothing has changed since they were.
package machinewatch

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

// Watcher keeps one watch per object. It saves polling only: a reconcile asks the
// machine itself.
type Watcher struct {
	ctx    context.Context //nolint:containedctx // The life of the watches is the manager's, not that of a reconcile.
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
	// latest is the last status that is known; the Watcher's lock guards it.
	latest talosclient.MachineStatus
}

// dial opens the connection of a watch.
type dial func(ctx context.Context) (machine, error)

// machine is what a watch needs of a connection.
type machine interface {
	Fingerprint() string
	WatchMachineStatus(ctx context.Context, fn func(talosclient.MachineStatus)) error
	Close() error
}

// New returns a Watcher whose watches end with ctx. object makes the object of
// an event from the key of a watch.
func New(ctx context.Context, dialer talosclient.Dialer, object func(client.ObjectKey) client.Object) *Watcher {
	return &Watcher{
		ctx: ctx, dialer: dialer, object: object, events: make(chan event.GenericEvent, eventBuffer), watches: map[client.ObjectKey]*watch{},
	}
}

// Events tell the objects whose machine has changed.
func (w *Watcher) Events() <-chan event.GenericEvent {
	return w.events
}

// Watch watches the machine at address for the object of key. known is the
// status that the caller has seen: only another one makes an event. A machine
// that is watched at that address already stays so.
func (w *Watcher) Watch(key client.ObjectKey, address string, creds talosclient.Credentials, known talosclient.MachineStatus) {
	w.start(key, &watch{
		address: address, trust: sha256.Sum256(creds.CA), latest: known,
		dial: func(ctx context.Context) (machine, error) { return w.dialer.Secure(ctx, address, creds) },
	})
}

// WatchMaintenance is Watch for a machine in maintenance mode, in the boot of
// the given certificate.
func (w *Watcher) WatchMaintenance(key client.ObjectKey, address, fingerprint string, known talosclient.MachineStatus) {
	w.start(key, &watch{
		address: address, trust: sha256.Sum256([]byte("maintenance " + fingerprint)), latest: known,
		dial: func(ctx context.Context) (machine, error) {
			return w.dialer.Maintenance(ctx, address, fingerprint)
		},
	})
}

func (w *Watcher) start(key client.ObjectKey, one *watch) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if old, found := w.watches[key]; found {
		if old.address == one.address && old.trust == one.trust {
			return
		}
		old.cancel()
	}
	ctx, cancel := context.WithCancel(w.ctx)
	one.cancel = cancel
	w.watches[key] = one
	go w.run(ctx, key, one, one.latest)
}

// Stop ends the watch for an object, if there is one.
func (w *Watcher) Stop(key client.ObjectKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one, found := w.watches[key]; found {
		one.cancel()
		delete(w.watches, key)
	}
}

// Watching reports whether the machine of an object is watched.
func (w *Watcher) Watching(key client.ObjectKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, found := w.watches[key]

	return found
}

// Latest is the last status that is known of the machine of an object; false
// when it is not watched.
func (w *Watcher) Latest(key client.ObjectKey) (talosclient.MachineStatus, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one, found := w.watches[key]
	if !found {
		return talosclient.MachineStatus{}, false
	}

	return one.latest, true
}

func (w *Watcher) run(ctx context.Context, key client.ObjectKey, one *watch, known talosclient.MachineStatus) {
	defer one.cancel()
	err := w.watch(ctx, key, one, known)

	w.mu.Lock()
	replaced := w.watches[key] != one
	if !replaced {
		delete(w.watches, key)
	}
	w.mu.Unlock()
	if replaced || ctx.Err() != nil {
		return
	}
	ctrl.LoggerFrom(ctx).V(3).Info("Watching a machine has ended", "object", key.String(), "reason", fmt.Sprint(err))
	w.wake(ctx, key)
}

// watch tells the changes of a machine, until it cannot be reached any more, or
// another one answers. A node ends a quiet connection now and then, because gRPC
// servers take only so many keepalive pings: then the watch goes on in the next
// one, and nobody is woken.
func (w *Watcher) watch(ctx context.Context, key client.ObjectKey, one *watch, known talosclient.MachineStatus) error {
	node, err := one.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()

	certificate, last := node.Fingerprint(), fmt.Sprint(known)
	for range maxConnections {
		told := false
		err = w.watchOnce(ctx, node, certificate, func(status talosclient.MachineStatus) {
			told = true
			now := fmt.Sprint(status)
			if now == last {
				return
			}
			last = now
			w.mu.Lock()
			one.latest = status
			w.mu.Unlock()
			w.wake(ctx, key)
		})
		if !told || ctx.Err() != nil || errors.Is(err, errOther) {
			break
		}
	}

	return err
}

// watchOnce is a watch over one connection: to the machine, in the boot, of the
// given certificate.
func (w *Watcher) watchOnce(ctx context.Context, node machine, certificate string, tell func(talosclient.MachineStatus)) error {
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

func (w *Watcher) wake(ctx context.Context, key client.ObjectKey) {
	select {
	case w.events <- event.GenericEvent{Object: w.object(key)}:
	case <-ctx.Done():
	}
}
