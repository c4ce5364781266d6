package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"sync"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
)

const (
	// EndpointPort is that of endpoints, and of the API servers behind them.
	EndpointPort = 6443
	// Addresses of endpoints in their network, by their last byte.
	firstEndpoint, lastEndpoint = 150, 191
)

// Endpoints are the endpoints of a network that this machine has a device in. Each has an
// address of its own, of those that end in 150 to 191, and a Balancer.
type Endpoints struct {
	// Device is that of the network on this machine.
	Device string
	// Subnet are its 256 addresses.
	Subnet netip.Prefix
	// Targets are those of each Balancer.
	Targets func() []string

	mu        sync.Mutex
	names     map[string]fleet.Endpoint
	balancers []*Balancer
}

// Address is an address of a network of 256 by its last byte.
func Address(subnet netip.Prefix, last int) string {
	bytes := subnet.Addr().As4()
	bytes[3] = byte(last) //nolint:gosec // It is below 256.
	return netip.AddrFrom4(bytes).String()
}

// Get is the endpoint of a name. This machine is given its address: only root can do that.
func (e *Endpoints) Get(ctx context.Context, name string) (fleet.Endpoint, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if found, ok := e.names[name]; ok {
		return found, nil
	}
	last := firstEndpoint + len(e.names)
	if last > lastEndpoint {
		return fleet.Endpoint{}, fmt.Errorf("reserving endpoint %s: a fleet has at most %d", name, lastEndpoint-firstEndpoint+1)
	}
	endpoint := fleet.Endpoint{Host: Address(e.Subnet, last), Port: EndpointPort}
	out, err := exec.CommandContext(ctx, "ip", "address", "replace", endpoint.Host+"/32", "dev", e.Device).CombinedOutput() //nolint:gosec // an address of ours
	if err != nil {
		return fleet.Endpoint{}, fmt.Errorf("giving this machine the address of endpoint %s: %w: %s", name, err, out)
	}
	started, err := Start(ctx, Options{Host: endpoint.Host, Port: strconv.Itoa(EndpointPort), Targets: e.Targets})
	if err != nil {
		return fleet.Endpoint{}, err
	}
	if e.names == nil {
		e.names = map[string]fleet.Endpoint{}
	}
	e.balancers, e.names[name] = append(e.balancers, started), endpoint
	return endpoint, nil
}

// Close ends all of them. It may be called twice.
func (e *Endpoints) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var failures []error
	for _, b := range e.balancers {
		failures = append(failures, b.Close())
	}
	e.balancers = nil
	return errors.Join(failures...)
}
