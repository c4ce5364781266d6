package controllers

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/contact"
	"github.com/capi-talos/capi-talos/infrastructure/internal/wipe"
)

// vote finds out whether a machine votes in the etcd that it had left: it tells
// itself, or the others do while its etcd is silent. Nobody needs its vote when the
// Cluster is gone, or goes.
func (r *HostReconciler) vote(ctx context.Context, host *infrav1.TalosHost, node talosclient.Node) (wipe.Vote, error) {
	cluster := &clusterv1.Cluster{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: host.Namespace, Name: host.Spec.Release.LeftEtcdOf}, cluster)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && !cluster.DeletionTimestamp.IsZero()):
		return wipe.NoVote, nil
	case err != nil:
		return wipe.NoVote, fmt.Errorf("reading Cluster %s: %w", host.Spec.Release.LeftEtcdOf, err)
	}
	if exists, err := node.EtcdDataExists(ctx); err == nil && !exists {
		return wipe.NoVote, nil
	}
	switch status, err := node.EtcdStatus(ctx); {
	case err != nil:
		return r.voteByOthers(ctx, host, cluster)
	case status.Learner:
		return wipe.NoVote, nil
	default:
		return wipe.Votes, nil
	}
}

// voteByOthers asks the control plane machines of the Cluster, until one answers
// that follows a leader: a leave that was broken off after the member was removed
// leaves its data behind, and an etcd that ends as often as Talos starts it.
func (r *HostReconciler) voteByOthers(ctx context.Context, host *infrav1.TalosHost, cluster *clusterv1.Cluster) (wipe.Vote, error) {
	machines := &infrav1.TalosMachineList{}
	if err := r.Client.List(ctx, machines, client.InNamespace(host.Namespace),
		client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name}, client.HasLabels{clusterv1.MachineControlPlaneLabel}); err != nil {
		return wipe.NoVote, fmt.Errorf("listing TalosMachines: %w", err)
	}
	credentials, err := r.Credentials.Reader(ctx, client.ObjectKeyFromObject(cluster), host)
	if err != nil {
		return wipe.MayVote, nil //nolint:nilerr // Nobody can be asked then, which is a fact.
	}
	for i := range machines.Items {
		if machines.Items[i].Spec.ProviderID == host.Spec.Handover.ProviderID {
			continue
		}
		members, err := r.membersBy(ctx, &machines.Items[i], credentials)
		if err != nil {
			continue // Another one may answer.
		}
		for _, member := range members {
			if !member.Learner && member.IsAt(append(contact.Addresses(host), host.Status.Address)) {
				return wipe.Votes, nil
			}
		}
		return wipe.NoVote, nil
	}

	return wipe.MayVote, nil
}

// membersBy are the members of etcd, as a machine tells them that follows a leader.
func (r *HostReconciler) membersBy(ctx context.Context, machine *infrav1.TalosMachine, credentials talosclient.Credentials) ([]talosclient.EtcdMember, error) {
	err := fmt.Errorf("TalosMachine %s has no address", machine.Name)
	for _, address := range machine.Status.Addresses {
		if address.Type != clusterv1.MachineInternalIP {
			continue
		}
		var members []talosclient.EtcdMember
		if members, err = r.membersAt(ctx, address.Address, credentials); err == nil {
			return members, nil
		}
	}

	return nil, err
}

func (r *HostReconciler) membersAt(ctx context.Context, address string, credentials talosclient.Credentials) ([]talosclient.EtcdMember, error) {
	node, err := r.Dialer.Secure(ctx, address, credentials)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", address, err)
	}
	defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
	status, err := node.EtcdStatus(ctx)
	if err != nil {
		return nil, err
	}
	if status.Leader == 0 {
		return nil, fmt.Errorf("the etcd of %s follows no leader", address)
	}

	return node.EtcdMembers(ctx)
}
