package vms

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"

	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/vms/othervendor"
)

// Instances is a cloud of the machines of a fleet: each boots from a copy of an image of Talos
// for platform nocloud, and gets its user data over HTTP from where its firmware says.
type Instances struct {
	fleet    *Fleet
	base     string
	metadata *http.Server

	mu      sync.Mutex
	running map[string]*Machine
	// userData is what instances are handed, by their ID.
	userData map[string][]byte
}

var _ othervendor.Cloud = &Instances{}

// NewInstances starts the cloud. The fleet has part parts.TalosNocloudImage.
func NewInstances(ctx context.Context, machines *Fleet) (*Instances, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(machines.network.gateway(), "0"))
	if err != nil {
		return nil, fmt.Errorf("serving user data: %w", err)
	}
	i := &Instances{
		fleet: machines, base: "http://" + listener.Addr().String() + "/", running: map[string]*Machine{}, userData: map[string][]byte{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{id}/user-data", func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		data, found := i.userData[r.PathValue("id")]
		if !found {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	})
	// Talos asks for metadata and a network first, and takes this answer for none. Of another
	// one it asks for minutes again.
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	i.metadata = &http.Server{Handler: mux, ReadHeaderTimeout: readTimeout}
	go func() { _ = i.metadata.Serve(listener) }()
	return i, nil
}

// Close ends the server of user data. The machines are the fleet's.
func (i *Instances) Close() error { return i.metadata.Close() }

// Run implements othervendor.Cloud.
func (i *Instances) Run(ctx context.Context, name string, userData []byte) (othervendor.Instance, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	m, found := i.running[name]
	if !found {
		var err error
		if m, err = i.fleet.newMachine(ctx); err != nil {
			return othervendor.Instance{}, err
		}
		m.system = "ds=nocloud-net;s=" + i.base + m.Host.UUID + "/"
		if err := m.image(ctx, i.fleet.options.Built.Path(parts.TalosNocloudImage, parts.DiskFile)); err != nil {
			return othervendor.Instance{}, err
		}
		i.running[name], i.userData[m.Host.UUID] = m, userData
	}
	return othervendor.Instance{ID: m.Host.UUID, Address: m.Host.Address}, m.PowerOn()
}

// End implements othervendor.Cloud.
func (i *Instances) End(_ context.Context, name string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	m, found := i.running[name]
	if !found {
		return nil
	}
	if err := m.PowerOff(); err != nil {
		return err
	}
	delete(i.running, name)
	delete(i.userData, m.Host.UUID)
	var failures []error
	for disk := range disks {
		failures = append(failures, os.Remove(m.Disk(disk)))
	}
	return errors.Join(failures...)
}

// Balance implements othervendor.Cloud.
func (i *Instances) Balance(ctx context.Context, cluster string) (string, int32, error) {
	endpoint, err := i.fleet.Endpoint(ctx, cluster)
	return endpoint.Host, endpoint.Port, err
}

// Names are the names of the instances that run.
func (i *Instances) Names() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Sorted(maps.Keys(i.running))
}
