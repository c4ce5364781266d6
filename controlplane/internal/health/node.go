// Package health asks control plane nodes, each through the Talos API, and the
// API server through the control plane endpoint, how they are. It gathers facts
// and changes nothing; what cannot be observed stays unknown.
package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// DefaultTimeout bounds the questions to one node altogether.
const DefaultTimeout = 20 * time.Second

// EtcdData reports whether a node has etcd data.
type EtcdData int

const (
	// EtcdDataUnknown means that the node has not said it, which is never the
	// same as "absent".
	EtcdDataUnknown EtcdData = iota
	// EtcdDataAbsent means that etcd's data directory is empty and that its
	// service does not run.
	EtcdDataAbsent
	// EtcdDataPresent means that etcd's data directory has content.
	EtcdDataPresent
)

// Facts are what a node said.
type Facts struct {
	// Err says why the node could not be asked; nil when it answered. All other
	// facts are unknown then.
	Err error
	// Address is where the node answered.
	Address string
	// EtcdData reports whether the node has etcd data.
	EtcdData EtcdData
	// Etcd is what the node's etcd says; nil when it does not answer.
	Etcd *etcd.View
	// EtcdErr says why Etcd is nil.
	EtcdErr error
	// EtcdAddresses are the hosts of the peer URLs with which the node joins etcd, as it
	// says itself; nil when it has not said it.
	EtcdAddresses []string
	// Services are the Talos system services by ID; nil when unknown.
	Services map[string]talosclient.Service
	// ServicesErr says why Services is nil.
	ServicesErr error
	// StaticPods are the static Pods; nil when StaticPodsErr is set.
	StaticPods []talosclient.StaticPod
	// StaticPodsErr says why StaticPods is nil.
	StaticPodsErr error
}

// Inspector asks nodes.
type Inspector struct {
	// Dialer opens the connections.
	Dialer talosclient.Dialer
	// Timeout bounds the questions to one node altogether; 0 means
	// DefaultTimeout.
	Timeout time.Duration
}

// Inspect asks one node for all facts. It does not fail: what it could not
// learn is marked in the facts.
func (i Inspector) Inspect(ctx context.Context, creds talosclient.Credentials, target talosclient.Target) Facts {
	timeout := i.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	node, err := talosclient.Reach(ctx, i.Dialer, creds, target)
	if err != nil {
		return Facts{Err: err}
	}
	defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.

	facts := Facts{Address: node.Address, EtcdAddresses: node.Etcd.AdvertisedAddresses}
	facts.Services, facts.ServicesErr = services(ctx, node)
	facts.StaticPods, facts.StaticPodsErr = node.StaticPods(ctx)
	if facts.Etcd, facts.EtcdErr = etcdView(ctx, node, facts.Services); facts.Etcd != nil {
		facts.Etcd.DBQuotaBytes = node.Etcd.QuotaBytes
	}
	facts.EtcdData = EtcdDataPresent
	if !facts.isMember() {
		facts.EtcdData = etcdData(ctx, node, facts.Services)
	}

	return facts
}

// isMember reports whether the node's etcd answers and is a member: then it has data.
func (f Facts) isMember() bool {
	if f.Etcd == nil {
		return false
	}
	_, listed := f.Etcd.Own()

	return listed
}

func services(ctx context.Context, node Node) (map[string]talosclient.Service, error) {
	list, err := node.Services(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the Talos services: %w", err)
	}
	byID := make(map[string]talosclient.Service, len(list))
	for _, service := range list {
		byID[service.ID] = service
	}

	return byID, nil
}

// etcdData needs two witnesses for "absent": the data directory, and the
// service that would write to it. A node that has not loaded the service (yet)
// is not at the point where etcd waits for its bootstrap.
func etcdData(ctx context.Context, node Node, services map[string]talosclient.Service) EtcdData {
	exists, err := node.EtcdDataExists(ctx)
	switch {
	case err != nil:
		return EtcdDataUnknown
	case exists:
		return EtcdDataPresent
	}
	service, loaded := services[talosclient.EtcdService]
	if !loaded || service.IsRunning() {
		return EtcdDataUnknown
	}

	return EtcdDataAbsent
}

func etcdView(ctx context.Context, node etcd.Node, services map[string]talosclient.Service) (*etcd.View, error) {
	// etcd does not answer then, and the call would only take its time.
	if services != nil && !services[talosclient.EtcdService].IsRunning() {
		return nil, errors.New("the etcd service does not run")
	}

	return etcd.Look(ctx, node)
}
