package faults

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// fault is something that goes wrong, and is mended after a while.
type fault struct {
	name string
	// breaks is what is wrong with the victim while it lasts.
	breaks talossim.Faults
	// everywhere breaks all machines.
	everywhere bool
	// reboots takes the power for a moment when it comes and when it goes.
	reboots bool
	// wipes empties the disk of the victim. Nothing mends that: the machine is
	// replaced.
	wipes bool
	// offline has machines without a discovery service: API servers alone tell a node
	// where etcd is that it is to join.
	offline bool
	// forGood never mends it at five replicas: the machine is replaced.
	forGood bool
}

// slowness is how long each call takes of a slow machine.
const slowness = 2 * time.Second

func faults() []fault {
	return []fault{
		{name: "silent", breaks: talossim.Faults{Silent: true, Parted: true}},
		{name: "slow", breaks: talossim.Faults{Slow: slowness}},
		{name: "no-managers", breaks: talossim.Faults{Silent: true}},
		{name: "no-peers", breaks: talossim.Faults{Parted: true}},
		{name: "etcd-dead", breaks: talossim.Faults{DeadEtcd: true}},
		{name: "nospace", breaks: talossim.Faults{Alarm: "NOSPACE"}},
		{name: "disk-wiped", wipes: true},
		{name: "other-id", breaks: talossim.Faults{OtherMachine: true}, reboots: true},
		{name: "api-down", breaks: talossim.Faults{DeadAPIServer: true}, everywhere: true, offline: true},
		{name: "kubelet-dead", breaks: talossim.Faults{DeadKubelet: true}},
		{name: "gone", breaks: talossim.Faults{Gone: true}, forGood: true},
	}
}

// replaces reports whether the victim does not come back, so that a
// MachineHealthCheck must find it.
func (c cell) replaces() bool { return c.fault.wipes || c.fault.forGood && c.replicas == 5 }

// strike breaks the victim.
func (r *run) strike() error {
	if r.victim == nil {
		return errors.New("no machine to break")
	}
	switch {
	case r.fault.wipes:
		err := r.await("the disk to be empty", momentTimeout, often, func() error {
			if r.victim.Configuration() == nil {
				return nil
			}
			// A machine that is about to boot, with the configuration that it has just
			// got, does not hear it.
			r.victim.LoseDisk()
			return fmt.Errorf("%s still has its configuration", r.victim.Spec().Name)
		})
		if err != nil {
			return err
		}
		return r.vouch()
	case r.fault.everywhere:
		for _, m := range r.machines() {
			m.Break(r.fault.breaks)
		}
	default:
		r.victim.Break(r.fault.breaks)
	}
	if r.fault.reboots {
		r.victim.PowerCycle()
	}
	return nil
}

// vouch is what a person does whose machine has another disk: its host is not proven wiped
// by itself.
func (r *run) vouch() error {
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:""}}}`, infrav1.HostRetryAnnotation))
	return r.await("the host to be annotated", momentTimeout, seldom, func() error {
		host := &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Namespace: r.name(), Name: r.victim.Spec().Name}}
		return world.Client.Patch(r.ctx, host, patch)
	})
}

// broken is nil once the fault has come into effect. An alarm needs an etcd that runs;
// that of a machine which leaves may have gone before.
func (r *run) broken() error {
	gone := r.before[r.victim] && !r.victim.HasEtcdData()
	if r.fault.breaks.Alarm != "" && !r.victim.Alarmed() && !gone {
		return fmt.Errorf("%s has not raised its alarm", r.victim.Spec().Name)
	}
	return nil
}

// heal mends what can be mended.
func (r *run) heal() {
	if r.replaces() {
		return
	}
	for _, m := range r.machines() {
		m.Break(talossim.Faults{})
	}
	if r.fault.reboots {
		r.victim.PowerCycle()
	}
}
