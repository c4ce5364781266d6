package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// stopUnwantedLeaves ends the calls that the decision does not wait for: Talos
// would go on trying after what made the leave safe has changed. Once the member is
// out, the call goes on: Talos stops etcd and wipes its data by it.
func (r *Reconciler) stopUnwantedLeaves(s *scope) {
	for _, machine := range s.machines {
		waited := s.decision.Machine == machine.Name && s.decision.Action == plan.WaitForLeave
		if !waited && !s.facts.HasLeft(machine.Name) {
			r.leaves.Stop(nodes.KeyOf(machine))
		}
	}
}

// leaveEtcd asks the node of the decision to leave etcd, and does not wait for it.
func (r *Reconciler) leaveEtcd(ctx context.Context, s *scope) error {
	machine, member := s.machine(s.decision.Machine), s.decision.MemberID
	node, err := r.connectAsAdmin(ctx, s, machine)
	if err != nil {
		return fmt.Errorf("asking the node of Machine %s to leave etcd: %w", machine.Name, err)
	}
	log := ctrl.LoggerFrom(ctx).WithValues("Machine", logMachine(s, machine.Name))
	log.Info("Asking the node to leave etcd")
	r.event(s, normal, "EtcdLeaveRequested", "LeaveEtcd", "Asking the node of Machine %s to leave etcd", machine.Name)

	started := r.leaves.Start(nodes.KeyOf(machine), func(ctx context.Context) {
		defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
		nodes.Leave(ctx, node, member, r.Clock, log)
	})
	if !started {
		_ = node.Close() // As above.
	}

	return nil
}

// removeMember takes the member of the decision out of etcd through the node of
// another one, which follows the leader.
func (r *Reconciler) removeMember(ctx context.Context, s *scope) error {
	// The cache may lack the Machine whose member it is.
	live := &scope{cluster: s.cluster, controlPlane: s.controlPlane}
	if err := listMachines(ctx, r.APIReader, live); err != nil {
		return err
	}
	if !slices.Equal(machineNames(live), machineNames(s)) || !slices.Equal(configuredNames(live), configuredNames(s)) {
		return nil // Its event starts another reconcile.
	}
	id, judged := s.decision.MemberID, s.facts.Etcd
	for _, machine := range s.machines {
		own, listed := ownMember(s.nodes[machine.Name])
		if !listed || own.ID == id || !judged.Answers(own.ID) {
			continue
		}
		node, err := r.connectAsAdmin(ctx, s, machine)
		if err != nil {
			return fmt.Errorf("removing an etcd member through the node of Machine %s: %w", machine.Name, err)
		}
		defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
		if err := node.EtcdRemoveMember(ctx, id); err != nil && !errors.Is(err, talosclient.ErrMemberNotFound) {
			return fmt.Errorf("removing an etcd member through the node of Machine %s: %w", machine.Name, err)
		}
		ctrl.LoggerFrom(ctx).Info(s.decision.Message, "member", etcd.FormatID(id), "through", machine.Name)
		r.event(s, warning, "EtcdMemberRemoved", "RemoveMember", "%s, through the node of Machine %s", s.decision.Message, machine.Name)

		return nil
	}

	return fmt.Errorf("removing etcd member %s: %w", etcd.FormatID(id), nodes.ErrNotAsked)
}

// configuredNames are the Machines that have a configuration, and so may join etcd. One that
// got it after it was looked at may have joined by the time the nodes told the members.
func configuredNames(s *scope) []string {
	var names []string
	for _, machine := range s.machines {
		if machine.Spec.Bootstrap.DataSecretName != nil {
			names = append(names, machine.Name)
		}
	}

	return names
}

// connectAsAdmin opens a connection to the node of a Machine on which it can be
// changed. The caller closes it.
func (r *Reconciler) connectAsAdmin(ctx context.Context, s *scope, machine *clusterv1.Machine) (talosclient.Node, error) {
	credentials, err := r.certificates.For(s.clusterKey(), s.bundle, secrets.RoleAdmin)
	if err != nil {
		return nil, fmt.Errorf("making a client certificate for the Talos API: %w", err)
	}

	return talosclient.Reach(ctx, r.Dialer, credentials, r.observer().Target(machine))
}
