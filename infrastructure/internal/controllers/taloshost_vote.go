package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/quorum"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/wipe"
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
	if lacksEtcdData(ctx, node) {
		return wipe.NoVote, nil
	}
	known, err := r.known(ctx, host, cluster, node)
	if err != nil {
		return wipe.NoVote, err
	}
	if told, err := r.voteByOthers(ctx, host, cluster, known); err != nil || told != wipe.MayVote {
		return told, err
	}
	switch {
	case known.status == nil:
		return wipe.MayVote, nil // Nobody tells, which is a fact.
	case known.status.Learner:
		return wipe.NoVote, nil
	default:
		return wipe.Votes, nil
	}
}

// lacksEtcdData reports whether a machine is known to have no data of etcd. A machine that
// boots shows none before its volumes are mounted, which is when Talos prepares etcd.
func lacksEtcdData(ctx context.Context, node talosclient.Node) bool {
	if exists, err := node.EtcdDataExists(ctx); err != nil || exists {
		return false
	}
	services, err := node.Services(ctx)

	return err == nil && slices.ContainsFunc(services, func(service talosclient.Service) bool {
		return service.ID == talosclient.EtcdService && (service.IsPreparing() || service.HasEnded())
	})
}

// knownMember is by what the etcd member of a machine is known.
type knownMember struct {
	// status is what its own etcd says; nil when that does not answer.
	status *talosclient.EtcdStatus
	// recorded is the ID that the control plane provider has recorded, of before the
	// machine has left etcd; 0 when there is none.
	recorded uint64
	// hosts are those of its peer URLs, as the machine says itself; nil when it does not.
	hosts []string
	// addresses are the addresses of the host, which need not be those of its etcd.
	addresses []string
}

// known finds out by what the member of a machine is known.
func (r *HostReconciler) known(ctx context.Context, host *infrav1.TalosHost, cluster *clusterv1.Cluster, node talosclient.Node) (knownMember, error) {
	found := knownMember{addresses: append(taloshost.AddressesOf(host), host.Status.Address)}
	if status, err := node.EtcdStatus(ctx); err == nil {
		found.status = &status
	}
	if spec, err := node.EtcdSpec(ctx); err == nil {
		found.hosts = spec.AdvertisedAddresses
	}
	machines := &clusterv1.MachineList{}
	err := r.Client.List(ctx, machines, client.InNamespace(cluster.Namespace), client.MatchingLabels{clusterv1.ClusterNameLabel: cluster.Name})
	if err != nil {
		return knownMember{}, fmt.Errorf("listing Machines: %w", err)
	}
	for i := range machines.Items {
		if machines.Items[i].Spec.ProviderID == host.Spec.Handover.ProviderID {
			found.recorded = recordedMember(&machines.Items[i])
		}
	}

	return found, nil
}

// recordedMember is the ID of the etcd member that the control plane provider has
// recorded on a Machine; 0 when it has not.
func recordedMember(machine *clusterv1.Machine) uint64 {
	record := controlplanev1.EtcdMemberRecord{}
	if err := json.Unmarshal([]byte(machine.Annotations[controlplanev1.EtcdMemberAnnotation]), &record); err != nil {
		return 0
	}
	id, err := strconv.ParseUint(record.ID, 16, 64)
	if err != nil {
		return 0
	}

	return id
}

// is reports whether a member is the machine's.
func (k knownMember) is(member etcd.Member) bool {
	return k.status != nil && k.status.MemberID == member.ID || k.recorded == member.ID && k.recorded != 0 ||
		member.IsAt(k.hosts) || member.IsAt(k.addresses)
}

// voteByOthers asks the other control plane machines of the Cluster. Those that follow
// no leader are not believed. That they have no such member is believed only where the
// machine itself says by what its member is known: etcd may be in another network than
// the addresses of the host.
func (r *HostReconciler) voteByOthers(ctx context.Context, host *infrav1.TalosHost, cluster *clusterv1.Cluster, known knownMember) (wipe.Vote, error) {
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
	listed := false
	for _, member := range others.Members {
		if !known.is(member) {
			continue
		}
		if listed = true; !member.Learner {
			return wipe.Votes, nil
		}
	}
	if !listed && known.status == nil && len(known.hosts) == 0 {
		return wipe.MayVote, nil
	}

	return wipe.NoVote, nil
}

// leftToEtcd says why a machine that was about to be wiped, to be configured again, is
// not: etcd cannot do without it by now. The machine may have been silent for long since
// that was asked for, and another one may have died. One whose Machine is not there
// counts as one of the control plane.
func (r *HostReconciler) leftToEtcd(ctx context.Context, s *hostScope) (wipe.Decision, error) {
	if !taloshost.IsReprovisioned(s.host) || s.consumer == nil || s.cluster == nil {
		return wipe.Decision{}, nil
	}
	machine, err := util.GetOwnerMachine(ctx, r.Client, s.consumer.ObjectMeta)
	if client.IgnoreNotFound(err) != nil {
		return wipe.Decision{}, fmt.Errorf("reading the Machine of TalosMachine %s: %w", s.consumer.Name, err)
	}
	if machine != nil && !util.IsControlPlaneMachine(machine) {
		return wipe.Decision{}, nil
	}
	others := backends.Etcd{Live: r.APIReader, Dialer: r.Dialer, Credentials: r.Credentials}
	refusal, err := others.Refuse(ctx, s.cluster, s.consumer)
	if err != nil || refusal.Reason == "" {
		return wipe.Decision{}, err
	}

	return wipe.Decision{Action: wipe.Wait, Reason: refusal.Reason, Message: refusal.Message}, nil
}
