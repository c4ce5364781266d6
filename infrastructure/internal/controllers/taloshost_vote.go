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
	"github.com/capi-talos/capi-talos/infrastructure/internal/quorum"
	"github.com/capi-talos/capi-talos/infrastructure/internal/wipe"
)

// vote finds out whether a machine votes in the etcd that it had left. The others
// tell, at once, while it may still be stopping etcd; where nobody else follows a
// leader it tells itself. Nobody needs its vote when the Cluster is gone, or goes.
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
	if told, err := r.voteByOthers(ctx, host, cluster); err != nil || told != wipe.MayVote {
		return told, err
	}
	switch status, err := node.EtcdStatus(ctx); {
	case err != nil:
		return wipe.MayVote, nil //nolint:nilerr // Nobody tells, which is a fact.
	case status.Learner:
		return wipe.NoVote, nil
	default:
		return wipe.Votes, nil
	}
}

// voteByOthers asks the other control plane machines of the Cluster. Those that follow
// no leader are not believed.
func (r *HostReconciler) voteByOthers(ctx context.Context, host *infrav1.TalosHost, cluster *clusterv1.Cluster) (wipe.Vote, error) {
	key := client.ObjectKeyFromObject(cluster)
	credentials, err := r.Credentials.Reader(ctx, key, host)
	if err != nil {
		return wipe.MayVote, nil //nolint:nilerr // Nobody can be asked then, which is a fact.
	}
	others, err := quorum.Without(ctx, r.Client, r.Dialer, credentials, key, host.Spec.Handover.ProviderID)
	if err != nil {
		return wipe.NoVote, err
	}
	if others.Leader == 0 {
		return wipe.MayVote, nil
	}
	for _, member := range others.Members {
		if !member.Learner && member.IsAt(append(contact.Addresses(host), host.Status.Address)) {
			return wipe.Votes, nil
		}
	}

	return wipe.NoVote, nil
}
