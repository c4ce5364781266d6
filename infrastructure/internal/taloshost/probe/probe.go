// Package probe reaches the machine of a TalosHost: it tries the addresses, and makes
// sure that the right machine answers.
package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// attemptTimeout bounds what is asked of one address, on a machine that takes
// seconds for each call too.
const attemptTimeout = 15 * time.Second

// Outcome is how a machine has answered.
type Outcome string

const (
	// Silent says that no address answers.
	Silent Outcome = "Silent"
	// Foreign says that a configured machine answers that does not accept the
	// credentials at hand, or that there are none.
	Foreign Outcome = "Foreign"
	// WrongFingerprint says that a machine in maintenance mode answers, but not
	// with the demanded certificate.
	WrongFingerprint Outcome = "WrongFingerprint"
	// WrongClock says that a machine of the cluster of the credentials answers, and
	// that its clock differs too much from ours for either to believe the other.
	WrongClock Outcome = "WrongClock"
	// WrongMachine says that a machine of another identity answers.
	WrongMachine Outcome = "WrongMachine"
	// InMaintenance says that the machine is in maintenance mode.
	InMaintenance Outcome = "InMaintenance"
	// Configured says that the machine is configured, and accepts the
	// credentials.
	Configured Outcome = "Configured"
)

// rank orders the outcomes of several addresses: the one that tells most wins.
var rank = []Outcome{Silent, Foreign, WrongFingerprint, WrongClock, WrongMachine}

// WrongClockText says what is wrong with the machine of an answer with outcome
// WrongClock, and what to do.
const WrongClockText = "The machine answers, but its clock and that of the management cluster differ by more than ten minutes, " +
	"so that they refuse each other's certificates; set the time servers of both"

// Target is a machine to reach.
type Target struct {
	// Addresses are tried in order.
	Addresses []string
	// Identity is what the machine must be.
	Identity infrav1.HostIdentity
	// Ambiguous picks UUIDs that identify no machine; it may be nil.
	Ambiguous taloshost.AmbiguousUUIDs
	// Fingerprint, when set, is the only maintenance certificate that is taken.
	Fingerprint string
	// Credentials, when set, are tried before the maintenance service.
	Credentials *talosclient.Credentials
}

// Answer is what a machine has answered. Its Node is set, and must be closed,
// when the outcome is InMaintenance or Configured.
type Answer struct {
	// Outcome is how the machine has answered.
	Outcome Outcome
	// Node is the connection to it.
	Node talosclient.Node
	// Address is the address at which it has answered.
	Address string
	// Hardware is what it has told about itself.
	Hardware talosclient.Hardware
	// Verdict is what the comparison of its identity has found; empty when it
	// was not compared.
	Verdict taloshost.Verdict
	// Err is the last error, for logs.
	Err error
}

// Close gives the connection back.
func (a Answer) Close() {
	if a.Node != nil {
		// The connection is given up: its error tells nothing to act on.
		_ = a.Node.Close()
	}
}

// WrongMachineText says what is wrong with the machine of an answer with outcome
// WrongMachine.
func (a Answer) WrongMachineText() string {
	if a.Verdict == taloshost.IdentityUnusable {
		return "The machine at " + a.Address + " cannot be told from others: it has neither a usable SMBIOS UUID nor hardware addresses, " +
			"or several machines tell the UUID that spec.identity names; name spec.identity.macAddresses"
	}

	return "Another machine than the host's answers at " + a.Address
}

// Reach tries the addresses, the next one when one has failed or is slow, and returns
// what the right machine has answered first. Where it answers at none, that is the
// answer which tells most.
func Reach(ctx context.Context, dialer talosclient.Dialer, target Target) Answer {
	var mu sync.Mutex
	others := map[string]Answer{}
	right, err := talosclient.First(ctx, target.Addresses, func(ctx context.Context, address string) (closer, error) {
		answer := try(ctx, dialer, target, address)
		if answer.Node == nil {
			mu.Lock()
			defer mu.Unlock()
			others[address] = answer
		}

		return closer{answer}, answer.Err
	})
	if err == nil {
		return right.Answer
	}
	best := Answer{Outcome: Silent, Err: err}
	for i, address := range target.Addresses {
		answer := others[address]
		if i == 0 || slices.Index(rank, answer.Outcome) > slices.Index(rank, best.Outcome) {
			best = answer
		}
	}

	return best
}

// closer is an answer that is closed where nobody waits for it any more.
type closer struct{ Answer }

// Close implements io.Closer.
func (c closer) Close() error {
	c.Answer.Close()

	return nil
}

func try(ctx context.Context, dialer talosclient.Dialer, target Target, address string) Answer {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()

	answer := dial(ctx, dialer, target, address)
	if answer.Node == nil {
		return answer
	}
	hardware, err := answer.Node.Hardware(ctx)
	var ambiguous []string
	if err == nil && target.Ambiguous != nil {
		ambiguous, err = target.Ambiguous(ctx, target.Identity.UUID, hardware.SystemUUID)
	}
	if err != nil {
		answer.Close()
		return Answer{Outcome: Silent, Address: address, Err: fmt.Errorf("identifying the machine at %s: %w", address, err)}
	}
	answer.Hardware = hardware
	answer.Verdict = taloshost.VerifyIdentity(target.Identity, hardware, ambiguous)
	if !answer.Verdict.OK() {
		answer.Close()
		return Answer{
			Outcome: WrongMachine, Address: address, Hardware: hardware, Verdict: answer.Verdict,
			Err: fmt.Errorf("the machine at %s is another one", address),
		}
	}

	return answer
}

func dial(ctx context.Context, dialer talosclient.Dialer, target Target, address string) Answer {
	if target.Credentials != nil {
		node, err := dialer.Secure(ctx, address, *target.Credentials)
		switch {
		case err == nil:
			return Answer{Outcome: Configured, Address: address, Node: node}
		case errors.Is(err, talosclient.ErrClock):
			return Answer{Outcome: WrongClock, Address: address, Err: err}
		case !errors.Is(err, talosclient.ErrUntrusted):
			return Answer{Outcome: Silent, Address: address, Err: err}
		}
	}
	node, err := dialer.Maintenance(ctx, address, target.Fingerprint)
	switch {
	case err == nil:
		return Answer{Outcome: InMaintenance, Address: address, Node: node}
	case errors.Is(err, talosclient.ErrFingerprintMismatch):
		return Answer{Outcome: WrongFingerprint, Address: address, Err: err}
	case errors.Is(err, talosclient.ErrNotInMaintenance):
		return Answer{Outcome: Foreign, Address: address, Err: err}
	}

	return Answer{Outcome: Silent, Address: address, Err: err}
}
