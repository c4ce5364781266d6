package talosclient

import (
	"context"
	"errors"
	"fmt"
)

// Target is a configured node to reach.
type Target struct {
	// Addresses are where the node may answer, in the order in which they are tried.
	Addresses []string
	// Hostname is the host name that the node must have; empty accepts any. It
	// tells the nodes of one cluster apart, whose certificates are of one CA.
	Hostname string
}

// Reached is a connection to the node of a Target.
type Reached struct {
	Node

	// Address is where the node has answered.
	Address string
	// Etcd is what it starts etcd with; the zero value when it has not said it.
	Etcd EtcdSpec
}

// ErrOtherNode says that an address is that of another node of the cluster.
var ErrOtherNode = errors.New("another node answers")

// Reach opens a connection to the node of target, at that of its addresses at which
// that node answers first. The caller closes it.
func Reach(ctx context.Context, dialer Dialer, creds Credentials, target Target) (*Reached, error) {
	return First(ctx, target.Addresses, func(ctx context.Context, address string) (*Reached, error) {
		node, err := dialer.Secure(ctx, address, creds)
		if err != nil {
			return nil, fmt.Errorf("connecting to the Talos API at %s: %w", address, err)
		}
		reached := &Reached{Node: node, Address: address}
		if err := reached.identify(ctx, target.Hostname); err != nil {
			_ = node.Close() // It was not used: there is nothing to lose.
			return nil, fmt.Errorf("identifying the node at %s: %w", address, err)
		}

		return reached, nil
	})
}

// identify makes sure of the node, and learns what it starts etcd with. That has its
// host name, too, which saves a call; it may be of before the last change of the name,
// so it cannot tell that the node is another one.
func (r *Reached) identify(ctx context.Context, want string) error {
	if spec, err := r.EtcdSpec(ctx); err == nil {
		r.Etcd = spec
	}
	if want == "" || r.Etcd.Hostname == want {
		return nil
	}
	got, err := r.Hostname(ctx)
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	if got != want {
		return fmt.Errorf("%w: its host name is %q instead of %q", ErrOtherNode, got, want)
	}

	return nil
}
