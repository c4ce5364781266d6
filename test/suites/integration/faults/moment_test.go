package faults

import (
	"errors"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// moment is something that a control plane is in the middle of.
type moment struct {
	name string
	// from and to are the replicas before and after it; 0 is no cluster yet.
	from, to func(size int) int
	// surge is the maxSurge of the rollout; nil leaves the default.
	surge *int64
	// remediated has a MachineHealthCheck from the start.
	remediated bool
	// begin is what a user does.
	begin func(*run) error
	// subject is the machine that comes or goes, once it does; nil before that.
	subject func(*run) (*talossim.Machine, error)
}

func all(size int) int   { return size }
func none(int) int       { return 0 }
func fewer(size int) int { return size - 2 }

func moments() []moment {
	one, zero := int64(1), int64(0)
	return []moment{
		{name: "bootstrap", from: none, to: all, begin: (*run).create, subject: first},
		{name: "scale-up", from: fewer, to: all, begin: scale, subject: joining},
		{name: "scale-down", from: all, to: fewer, begin: scale, subject: leaving},
		{name: "surge-1", from: all, to: all, surge: &one, begin: upgrade, subject: surging},
		{name: "surge-0", from: all, to: all, surge: &zero, begin: upgrade, subject: leaving},
		{name: "remediation", from: all, to: all, remediated: true, begin: condemn, subject: leaving},
		{name: "deletion", from: all, to: all, begin: remove, subject: leaving},
	}
}

// oldVersion is what a control plane runs that is to be upgraded.
const oldVersion = "v1.36.2"

func scale(r *run) error {
	return r.changeControlPlane(func(controlPlane *controlplanev1.TalosControlPlane) {
		replicas := int32(r.moment.to(r.replicas)) //nolint:gosec // a handful
		controlPlane.Spec.Replicas = &replicas
	})
}

func upgrade(r *run) error {
	return r.changeControlPlane(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.Version = simfleet.KubernetesVersion
	})
}

// condemn has the MachineHealthCheck find a healthy Machine unhealthy, by the
// annotation that people use for it.
func condemn(r *run) error {
	machines, err := r.controlPlaneMachines()
	if err != nil {
		return err
	}
	machine := &machines[0]
	before := machine.DeepCopy()
	if machine.Annotations == nil {
		machine.Annotations = map[string]string{}
	}
	machine.Annotations[clusterv1.RemediateMachineAnnotation] = ""
	return world.Client.Patch(r.ctx, machine, client.MergeFrom(before))
}

// remove is kubectl delete machine.
func remove(r *run) error {
	machines, err := r.controlPlaneMachines()
	if err != nil {
		return err
	}
	return world.Client.Delete(r.ctx, &machines[0])
}

// first is the machine that is to become the first member. At five replicas it has
// become that.
func first(r *run) (*talossim.Machine, error) {
	for _, m := range r.machines() {
		if r.replicas == 5 && m.HasEtcdData() || r.replicas == 3 && m.Configuration() != nil {
			return m, nil
		}
	}
	return nil, errors.New("no machine has been configured")
}

// joining is a machine that has joined etcd since the moment began.
func joining(r *run) (*talossim.Machine, error) {
	for _, m := range r.machines() {
		if m.HasEtcdData() && !r.before[m] {
			return m, nil
		}
	}
	return nil, errors.New("no further machine has joined etcd")
}

// leaving is the machine of a Machine that is being deleted.
func leaving(r *run) (*talossim.Machine, error) {
	machines, err := r.controlPlaneMachines()
	if err != nil {
		return nil, err
	}
	for _, machine := range machines {
		if machine.DeletionTimestamp.IsZero() {
			continue
		}
		for _, m := range r.machines() {
			if m.Hostname() == machine.Name {
				return m, nil
			}
		}
		return nil, fmt.Errorf("machine %s is gone already", machine.Name)
	}
	return nil, errors.New("no machine is being deleted")
}

// surging is the new machine at three replicas, and the first old one that goes at
// five.
func surging(r *run) (*talossim.Machine, error) {
	if r.replicas == 3 {
		return joining(r)
	}
	return leaving(r)
}

// choose tells which machine breaks.
func (r *run) choose(subject *talossim.Machine) *talossim.Machine {
	if r.replicas == 5 || r.moment.from(r.replicas) == 0 {
		return subject
	}
	var other *talossim.Machine
	for _, m := range r.machines() {
		if m == subject || !m.HasEtcdData() {
			continue
		}
		if other == nil || r.fleet.Sim.Leads(m) {
			other = m
		}
	}
	return other
}
