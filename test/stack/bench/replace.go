package bench

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// replacements prints how long it takes to replace a control plane Machine that
// was deleted, on pretended machines, and who was waited for.
func (b *Bench) replacements(ctx context.Context) error {
	const name = "replace"
	hosts, err := b.Sim.Add(ctx, controlPlanes+1)
	if err != nil {
		return err
	}
	objects, err := b.generate(ctx, b.Sim, name, controlPlanes)
	if err != nil {
		return err
	}
	if err := b.client.addHosts(ctx, name, hosts); err != nil {
		return err
	}
	if err := b.client.createAll(ctx, objects); err != nil {
		return err
	}
	if err := b.client.awaitAvailable(ctx, name, controlPlanes); err != nil {
		return err
	}
	var rounds [][]milestone
	for range b.Rounds {
		if err := b.bounded(ctx, func(ctx context.Context) error {
			found, err := b.replace(ctx, name, hosts)
			rounds = append(rounds, found)
			return err
		}); err != nil {
			return err
		}
	}
	b.printReplacements(rounds)
	return b.client.deleteCluster(ctx, name)
}

// Who a milestone is waited for.
const (
	byUs      = "ours"
	byMachine = "the machine"
	byCore    = "Cluster API"
)

// milestone is one of the things that happen while a Machine is replaced, in the
// order in which they happen.
type milestone struct {
	name string
	// by is who makes it happen once the one before has.
	by string
	// happened looks whether it has.
	happened func(context.Context) bool
	// took is how long it took after the one before.
	took time.Duration
}

// replacement is a control plane Machine that is being replaced.
type replacement struct {
	bench  *Bench
	name   string
	hosts  []fleet.Host
	victim *clusterv1.Machine
	// old is the victim's machine, boots how often it was switched on before.
	old   *talossim.Machine
	boots int
	// before are the names of the Machines before, calls what each machine of the
	// fleet was asked.
	before map[string]bool
	calls  map[string]map[string]int
}

// replace deletes the oldest control plane Machine, and waits for each milestone.
func (b *Bench) replace(ctx context.Context, name string, hosts []fleet.Host) ([]milestone, error) {
	machines, err := b.client.machines(ctx, name)
	if err != nil {
		return nil, err
	}
	if len(machines) != controlPlanes {
		return nil, fmt.Errorf("there are %d control plane Machines", len(machines))
	}
	r := &replacement{bench: b, name: name, hosts: hosts, victim: machines[0], before: map[string]bool{}, calls: map[string]map[string]int{}}
	for _, machine := range machines {
		r.before[machine.Name] = true
	}
	for _, host := range hosts {
		machine := b.Sim.Machine(host)
		r.calls[host.Name] = machine.Calls()
		if machine.Hostname() == r.victim.Name {
			r.old, r.boots = machine, machine.Boots()
		}
	}
	if r.old == nil {
		return nil, fmt.Errorf("no machine is called %s", r.victim.Name)
	}
	last := time.Now()
	if err := b.client.Delete(ctx, r.victim); err != nil {
		return nil, err
	}
	milestones := r.milestones()
	for i := range milestones {
		if err := poll(ctx, func(ctx context.Context) error {
			if milestones[i].happened(ctx) {
				return nil
			}
			return fmt.Errorf("not yet: %s", milestones[i].name)
		}); err != nil {
			return nil, err
		}
		milestones[i].took = time.Since(last)
		last = time.Now()
	}
	return milestones, nil
}

func (r *replacement) milestones() []milestone {
	return []milestone{
		{name: "our hook has its turn", by: byCore, happened: r.hookHasItsTurn},
		{name: "the member is asked to leave", by: byUs, happened: func(context.Context) bool {
			return r.called(r.old, machineapi.MachineService_EtcdLeaveCluster_FullMethodName)
		}},
		{name: "etcd has no member of it", by: byMachine, happened: func(context.Context) bool { return r.votes(controlPlanes - 1) }},
		{name: "our hook is gone", by: byUs, happened: r.hookIsGone},
		{name: "the TalosMachine is deleted", by: byCore, happened: r.infrastructureIsDeleted},
		{name: "the machine is reset", by: byUs, happened: func(context.Context) bool { return r.called(r.old, machineapi.MachineService_Reset_FullMethodName) }},
		{name: "it is up again", by: byMachine, happened: func(context.Context) bool {
			return r.old.Boots() > r.boots && r.old.Stage() == talosclient.StageMaintenance
		}},
		{name: "the Machine is gone", by: byUs, happened: func(ctx context.Context) bool { return r.get(ctx, &clusterv1.Machine{}) == gone }},
		{name: "another Machine is there", by: byUs, happened: func(ctx context.Context) bool { return r.successor(ctx) != nil }},
		{name: "its configuration is handed over", by: byUs, happened: func(context.Context) bool {
			return slices.ContainsFunc(r.hosts, func(host fleet.Host) bool {
				return r.called(r.bench.Sim.Machine(host), machineapi.MachineService_ApplyConfiguration_FullMethodName)
			})
		}},
		{name: fmt.Sprintf("etcd has %d voters", controlPlanes), by: byMachine, happened: func(context.Context) bool { return r.votes(controlPlanes) }},
		{name: "its Node is known", by: byCore, happened: func(ctx context.Context) bool {
			machine := r.successor(ctx)
			return machine != nil && conditions.IsTrue(machine, clusterv1.MachineNodeReadyCondition)
		}},
		{name: "the control plane is whole", by: byUs, happened: r.isWhole},
	}
}

// votes reports whether etcd has that many voters.
func (r *replacement) votes(count int) bool {
	return slices.ContainsFunc(r.hosts, func(host fleet.Host) bool {
		return r.bench.Sim.Sim.Voters(r.bench.Sim.Machine(host)).Voters == count
	})
}

func (r *replacement) called(machine *talossim.Machine, method string) bool {
	return machine.Calls()[method] > r.calls[machine.Spec().Name][method]
}

// presence reports whether an object is there.
type presence int

const (
	unknown presence = iota
	there
	gone
)

// get reads the Machine that is being replaced.
func (r *replacement) get(ctx context.Context, into *clusterv1.Machine) presence {
	return presenceOf(r.bench.client.Get(ctx, client.ObjectKeyFromObject(r.victim), into))
}

func presenceOf(err error) presence {
	switch {
	case err == nil:
		return there
	case apierrors.IsNotFound(err):
		return gone
	default:
		return unknown
	}
}

func (r *replacement) hookHasItsTurn(ctx context.Context) bool {
	machine := &clusterv1.Machine{}
	return r.get(ctx, machine) == there &&
		conditions.GetReason(machine, clusterv1.MachineDeletingCondition) == clusterv1.MachineDeletingWaitingForPreTerminateHookReason
}

func (r *replacement) hookIsGone(ctx context.Context) bool {
	machine := &clusterv1.Machine{}
	found := r.get(ctx, machine)
	_, has := machine.Annotations[controlplanev1.EtcdPreTerminateHookAnnotation]
	return found == gone || found == there && !has
}

func (r *replacement) infrastructureIsDeleted(ctx context.Context) bool {
	machine := &infrav1.TalosMachine{}
	found := presenceOf(r.bench.client.Get(ctx, client.ObjectKey{Namespace: r.name, Name: r.victim.Spec.InfrastructureRef.Name}, machine))
	return found == gone || found == there && !machine.DeletionTimestamp.IsZero()
}

// successor is the Machine that was not there before; nil when there is none.
func (r *replacement) successor(ctx context.Context) *clusterv1.Machine {
	found, err := r.bench.client.machines(ctx, r.name)
	if err != nil {
		return nil
	}
	at := slices.IndexFunc(found, func(machine *clusterv1.Machine) bool { return !r.before[machine.Name] })
	if at < 0 {
		return nil
	}
	return found[at]
}

func (r *replacement) isWhole(ctx context.Context) bool {
	found, err := r.bench.client.controlPlane(ctx, r.name)
	return err == nil && conditions.IsTrue(found, controlplanev1.EtcdClusterHealthyCondition) &&
		ptr.Deref(found.Status.AvailableReplicas, 0) == controlPlanes && ptr.Deref(found.Status.Replicas, 0) == controlPlanes
}

// machines are the control plane Machines of a cluster, by age.
func (c *testClient) machines(ctx context.Context, name string) ([]*clusterv1.Machine, error) {
	list := &clusterv1.MachineList{}
	if err := c.List(ctx, list, client.InNamespace(name), client.HasLabels{clusterv1.MachineControlPlaneLabel}); err != nil {
		return nil, err
	}
	return collections.FromMachineList(list).SortedByCreationTimestamp(), nil
}

func (b *Bench) printReplacements(rounds [][]milestone) {
	out := tabwriter.NewWriter(b.Output, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\nA DELETED CONTROL PLANE MACHINE IS REPLACED, MEDIAN OF %d ON FLEET sim\tBY\tSECONDS\n", b.Rounds)
	sums := map[string]time.Duration{}
	for i, one := range rounds[0] {
		took := median(rounds, func(round []milestone) time.Duration { return round[i].took })
		sums[one.by] += took
		fmt.Fprintf(out, "%s\t%s\t%.1f\n", one.name, one.by, took.Seconds())
	}
	for _, by := range []string{byUs, byMachine, byCore} {
		fmt.Fprintf(out, "in all\t%s\t%.1f\n", by, sums[by].Seconds())
	}
	_ = out.Flush()
}
