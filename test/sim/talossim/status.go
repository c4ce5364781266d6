package talossim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// setStage changes the stage of the machine, and tells it at once.
func (b *boot) setStage(ctx context.Context, stage runtime.MachineStage) {
	b.sim.update(func() { b.machine.stage = stage })
	b.tellStatus(ctx)
}

// publish tells the status of the machine at each change, until ctx ends.
func (b *boot) publish(ctx context.Context) {
	for {
		var changed chan struct{}
		b.sim.look(func() { changed = b.sim.changed })
		b.tellStatus(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (b *boot) tellStatus(ctx context.Context) {
	b.resources.mu.Lock()
	defer b.resources.mu.Unlock()
	status := runtime.NewMachineStatus()
	b.sim.look(func() {
		status.TypedSpec().Stage = b.machine.stage
		status.TypedSpec().Status.UnmetConditions = b.unmet()
	})
	status.TypedSpec().Status.Ready = len(status.TypedSpec().Status.UnmetConditions) == 0

	present, err := b.resources.state.Get(ctx, status.Metadata())
	if err != nil {
		_ = b.resources.state.Create(ctx, status) // It fails only when the boot has ended.
		return
	}
	if told, ok := present.(*runtime.MachineStatus); ok && told.TypedSpec().Stage == status.TypedSpec().Stage &&
		slices.Equal(told.TypedSpec().Status.UnmetConditions, status.TypedSpec().Status.UnmetConditions) {
		return
	}
	status.Metadata().SetVersion(present.Metadata().Version())
	_ = b.resources.state.Update(ctx, status)
}

// unmet is what keeps the machine from being ready, in Talos' names and words
// (internal/app/machined/pkg/controllers/runtime/machine_status.go). Only stages
// booting and running have checks. The lock is held.
func (b *boot) unmet() []runtime.UnmetCondition {
	if b.machine.stage != runtime.MachineStageBooting && b.machine.stage != runtime.MachineStageRunning {
		return nil
	}
	var unmet []runtime.UnmetCondition
	if !b.synced() {
		unmet = append(unmet, runtime.UnmetCondition{Name: "time", Reason: "time is not synced"})
	}
	var services []string
	for _, service := range b.serviceStates() {
		switch {
		case service.state != stateRunning:
			services = append(services, service.id+" not running")
		case service.known && !service.healthy:
			services = append(services, service.id+" not healthy")
		}
	}
	if len(services) > 0 {
		unmet = append(unmet, runtime.UnmetCondition{Name: "services", Reason: strings.Join(services, ", ")})
	}
	if b.services && !b.machine.joined {
		unmet = append(unmet, runtime.UnmetCondition{
			Name: "nodeReady", Reason: fmt.Sprintf("node %q status is not available yet", b.settings.hostname),
		})
	}
	return unmet
}

// stateRunning is the state of a service that runs, in Talos' word.
const stateRunning = string(etcdRunning)

// serviceState is the state of one service.
type serviceState struct {
	id, state, message string
	started            time.Time
	known, healthy     bool
}

// What services wait for, in Talos' words.
const (
	forCRI  = `service "cri" to be "up"`
	forTime = "time sync"
)

// waits is the state of a service that waits.
func waits(id, what string) serviceState {
	return serviceState{id: id, state: "Waiting", message: "Waiting for " + what}
}

// serviceStates are the services of the machine, in the order of their names.
// The lock is held.
func (b *boot) serviceStates() []serviceState {
	up := func(id string) serviceState {
		return serviceState{id: id, state: stateRunning, message: "Health check successful", known: true, healthy: true}
	}
	states := []serviceState{up("apid"), up("containerd"), up("machined")}
	if b.settings == nil {
		return states
	}
	switch {
	case b.machine.faults.StuckBooting:
		states = append(states, waits("cri", "network"), waits("kubelet", forCRI))
	case !b.synced():
		states = append(states, up("cri"), waits("kubelet", forTime))
	default:
		kubelet := up("kubelet")
		if b.machine.faults.DeadKubelet {
			kubelet.healthy = false
			kubelet.message = "Get \"http://127.0.0.1:10248/healthz\": context deadline exceeded"
		}
		states = append(states, up("cri"), kubelet)
	}
	if b.settings.controlPlane {
		trustd := up("trustd")
		if !b.synced() {
			trustd = waits("trustd", forTime)
		}
		states = append(states, b.etcdService(), trustd)
	}
	slices.SortFunc(states, func(x, y serviceState) int { return strings.Compare(x.id, y.id) })
	return states
}

// etcdService is the state of etcd. The lock is held.
func (b *boot) etcdService() serviceState {
	state := serviceState{id: "etcd", state: string(b.machine.etcd), started: b.machine.etcdStarted}
	switch b.machine.etcd {
	case etcdRunning:
		state.known, state.healthy, state.message = true, b.healthy(), "Health check successful"
		switch {
		case b.member().Learner:
			state.message = errLearner.Error()
		case !state.healthy:
			state.message = "Health check failed: etcdserver: no leader"
		}
	case etcdPreparing:
		state.message = "Running pre state"
	case etcdFailed:
		state.message = cmp.Or(b.machine.etcdFailure, "Failed: etcd has ended")
	case etcdFinished:
		state.message = "Service finished successfully"
	default:
		if b.cri {
			return waits(state.id, forTime)
		}
		return waits(state.id, forCRI)
	}
	return state
}
