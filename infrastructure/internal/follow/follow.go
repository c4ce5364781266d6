// Package follow watches the stage of configured machines, and wakes the
// controller of their TalosMachines at each change.
package follow

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// eventBuffer lets watches report while the controller is busy.
const eventBuffer = 1024

// Follower keeps one watch per TalosMachine. It saves polling only: a pass asks
// the machine itself.
type Follower struct {
	ctx    context.Context //nolint:containedctx // The life of the watches is the manager's, not a pass's.
	dialer talosclient.Dialer
	events chan event.GenericEvent

	mu      sync.Mutex
	watches map[client.ObjectKey]*watch
}

type watch struct {
	address string
	// credentials tells clusters apart, not certificates: a watch outlives them.
	credentials [sha256.Size]byte
	cancel      context.CancelFunc
}

// New returns a Follower whose watches end with ctx.
func New(ctx context.Context, dialer talosclient.Dialer) *Follower {
	return &Follower{ctx: ctx, dialer: dialer, events: make(chan event.GenericEvent, eventBuffer), watches: map[client.ObjectKey]*watch{}}
}

// Events wake the TalosMachines whose machine has changed.
func (f *Follower) Events() <-chan event.GenericEvent {
	return f.events
}

// Follow watches the machine at address for a TalosMachine. known is the
// status that the caller has seen: only another one wakes the TalosMachine. A
// machine that is followed at that address already stays so.
func (f *Follower) Follow(key client.ObjectKey, address string, creds talosclient.Credentials, known talosclient.MachineStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()

	ca := sha256.Sum256(creds.CA)
	if old, found := f.watches[key]; found {
		if old.address == address && old.credentials == ca {
			return
		}
		old.cancel()
	}
	ctx, cancel := context.WithCancel(f.ctx)
	w := &watch{address: address, credentials: ca, cancel: cancel}
	f.watches[key] = w
	go f.run(ctx, key, w, creds, known)
}

// Stop ends the watch for a TalosMachine, if there is one.
func (f *Follower) Stop(key client.ObjectKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w, found := f.watches[key]; found {
		w.cancel()
		delete(f.watches, key)
	}
}

// Following tells whether the machine of a TalosMachine is watched.
func (f *Follower) Following(key client.ObjectKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, found := f.watches[key]

	return found
}

func (f *Follower) run(ctx context.Context, key client.ObjectKey, w *watch, creds talosclient.Credentials, known talosclient.MachineStatus) {
	defer w.cancel()
	err := f.watch(ctx, key, w.address, creds, known)

	f.mu.Lock()
	replaced := f.watches[key] != w
	if !replaced {
		delete(f.watches, key)
	}
	f.mu.Unlock()
	if replaced || ctx.Err() != nil {
		return
	}
	ctrl.LoggerFrom(ctx).V(3).Info("Watching a machine has ended", "TalosMachine", key.String(), "reason", fmt.Sprint(err))
	f.wake(ctx, key)
}

func (f *Follower) watch(ctx context.Context, key client.ObjectKey, address string, creds talosclient.Credentials, known talosclient.MachineStatus) error {
	node, err := f.dialer.Secure(ctx, address, creds)
	if err != nil {
		return err
	}
	defer func() { _ = node.Close() }()

	last := fmt.Sprint(known)

	return node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) {
		if now := fmt.Sprint(status); now != last {
			last = now
			f.wake(ctx, key)
		}
	})
}

func (f *Follower) wake(ctx context.Context, key client.ObjectKey) {
	object := &infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	select {
	case f.events <- event.GenericEvent{Object: object}:
	case <-ctx.Done():
	}
}
