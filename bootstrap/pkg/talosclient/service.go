package talosclient

import (
	"strings"
	"time"
)

// EtcdService is the Talos service that runs etcd on control plane nodes.
const EtcdService = "etcd"

// Service is a Talos system service. The zero value is one that is not loaded (yet).
type Service struct {
	ID string
	// State is the service's state ("Running", "Waiting", "Preparing", …).
	State string
	// HealthKnown reports whether Healthy was measured.
	HealthKnown bool
	Healthy     bool
	// LastMessage is the last event of the service.
	LastMessage string
	// Started is when the service began to start, for the last time: its first event
	// since then, by the clock of the node. It is zero when the node does not tell.
	Started time.Time
}

// IsRunning reports whether a service runs.
func (s Service) IsRunning() bool { return s.State == "Running" }

// HasFailed reports whether a service could not be started, or not be prepared.
func (s Service) HasFailed() bool { return s.State == "Failed" }

// WasStopped reports whether a service has ended because somebody stopped it.
func (s Service) WasStopped() bool { return s.State == "Finished" }

// HasEnded reports whether a service is down, and Talos does not start it again before
// the next boot (internal/app/machined/pkg/system/service_runner.go, StateEventDown).
func (s Service) HasEnded() bool {
	return s.HasFailed() || s.WasStopped() || s.State == "Skipped"
}

// IsPreparing reports whether Talos prepares a service: its volumes are mounted, its image is
// pulled, and etcd waits here for its bootstrap, or to be taken in by the others.
func (s Service) IsPreparing() bool { return s.State == "Preparing" }

// IsRestarting reports whether the program of a service has ended, and Talos waits to start it
// again. A service that has not been started since the node has booted waits in the same state,
// with other words: for its volumes, for other services, the time or the network
// (service_runner.go, waitFor; runner/restart/restart.go).
func (s Service) IsRestarting() bool {
	return s.State == "Waiting" && s.LastMessage != "" && !strings.HasPrefix(s.LastMessage, "Waiting for ")
}
