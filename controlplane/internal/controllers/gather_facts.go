package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/collections"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// gatherFacts puts together what is decided on, but for what answers at the endpoint.
func (r *Reconciler) gatherFacts(ctx context.Context, s *scope) error {
	backup, err := r.backupFacts(ctx, s)
	if err != nil {
		return err
	}
	spec := s.controlPlane.Spec
	replicas := ptr.Deref(spec.Replicas, controlplanev1.DefaultReplicas)
	facts := plan.Facts{
		ClusterDeleting:           !s.cluster.DeletionTimestamp.IsZero(),
		InfrastructureProvisioned: ptr.Deref(s.cluster.Status.Initialization.InfrastructureProvisioned, false),
		EndpointSet:               s.cluster.Spec.ControlPlaneEndpoint.IsValid(),
		ForeignMachines:           s.foreign,
		TemplateMismatch:          s.templateMismatch,
		TemplateMissing:           s.templateMissing,
		Replicas:                  replicas,
		RollingUpdate:             spec.Rollout.Strategy.Type != controlplanev1.OnDeleteStrategyType,
		MaxSurge:                  maxSurge(spec.Rollout.Strategy, replicas),
		Certificates:              s.certificates,
		Initialized:               s.initialized(),
		Intent:                    s.intent(),
		IntentWiped:               s.intentWiped,
		Override:                  s.controlPlane.Annotations[controlplanev1.BootstrapOverrideAnnotation],
		Etcd:                      etcd.Judge(s.views()),
		LeaveTimeout:              seconds(spec.Etcd.LeaveTimeoutSeconds, controlplanev1.DefaultEtcdLeaveTimeoutSeconds),
		VersionPending:            versionPending(s),
		ManifestsPending:          manifestsPending(s),
		Backup:                    backup,
		Restore:                   restoreOf(s.controlPlane, s.initialized()),
		Remediation: plan.RemediationFacts{
			InProgress:       objects.Record[controlplanev1.RemediationRecord](s.controlPlane, controlplanev1.RemediationInProgressAnnotation),
			MaxRetry:         spec.Remediation.MaxRetry,
			RetryPeriod:      seconds(spec.Remediation.RetryPeriodSeconds, 0),
			MinHealthyPeriod: seconds(spec.Remediation.MinHealthyPeriodSeconds, controlplanev1.DefaultMinHealthyPeriodSeconds),
			Now:              r.Clock.Now(),
		},
	}
	for _, machine := range s.machines {
		facts.Machines = append(facts.Machines, r.machineFacts(s, machine, facts.Etcd))
	}
	facts.NamelessFor = r.memberGrace(s, controlplanev1.WithoutNameGracePeriod, named(facts.Etcd.Members, ""))
	silentFor := r.grace.Observe(client.ObjectKeyFromObject(s.controlPlane), controlplanev1.EtcdSilentGracePeriod, silentMembers(facts))
	for i, machine := range facts.Machines {
		facts.Machines[i].EtcdSilentFor = silentFor[machine.Name]
		key, service := client.ObjectKey{Namespace: s.controlPlane.Namespace, Name: machine.Name}, s.nodes[machine.Name].EtcdService()
		facts.Machines[i].Leaving = r.leaves.Running(key)
		facts.Machines[i].LeaveStopped = r.leaves.Unsettled(key)
		facts.Machines[i].EtcdUpFor = r.etcdUpFor(service)
		facts.Machines[i].Bootstrapping = r.bootstraps.Pending(key, service) && !service.HasEnded()
		facts.Machines[i].Restarting = r.restarts.Pending(key, service)
	}
	facts.OrphanFor = r.memberGrace(s, controlplanev1.WithoutMachineGracePeriod, facts.Orphans())
	for i, machine := range facts.Machines {
		if facts.IsNeverPromoted(machine.Name) {
			facts.Machines[i].MemberProblem = neverPromoted
		}
	}
	s.facts = facts

	return nil
}

// maxSurge is how many Machines there may be beyond the replicas. Fewer replicas
// may have come by the scale subresource, which does not look at the strategy.
func maxSurge(strategy controlplanev1.TalosControlPlaneRolloutStrategy, replicas int32) int32 {
	if strategy.RollingUpdate.MaxSurge == nil || replicas < controlplanev1.MinReplicasWithoutSurge {
		return 1
	}

	return strategy.RollingUpdate.MaxSurge.IntVal
}

func seconds(value *int32, otherwise int32) time.Duration {
	return time.Duration(ptr.Deref(value, otherwise)) * time.Second
}

func (r *Reconciler) machineFacts(s *scope, machine *clusterv1.Machine, judged etcd.Health) plan.MachineFacts {
	node := s.nodes[machine.Name]
	facts := plan.MachineFacts{
		Name:          machine.Name,
		Created:       machine.CreationTimestamp.Time,
		ProviderID:    machine.Spec.ProviderID,
		FailureDomain: failureDomain(machine),
		Provisioned:   capimachine.IsProvisioned(machine),
		Held:          s.parts[machine.Name].held(),
		Configured:    machine.Spec.Bootstrap.DataSecretName != nil,
		Outdated:      len(s.outdated[machine.Name]) > 0,
		Marked:        metav1.HasAnnotation(machine.ObjectMeta, clusterv1.DeleteMachineAnnotation),
		Answers:       node.Err == nil,
		EtcdData:      node.EtcdData,
		EtcdStopped:   node.EtcdService().WasStopped(),
		MemberID:      memberID(machine, node),
		Addresses:     r.peerAddresses(machine, s.parts[machine.Name].infraMachine, node),
		Deleting:      !machine.DeletionTimestamp.IsZero(),
		Unhealthy:     collections.IsUnhealthyAndOwnerRemediated(machine),
		Retries:       objects.Record[controlplanev1.RemediationRecord](machine, controlplanev1.RemediationForAnnotation),
	}
	facts.Hook, facts.HookWaitsFor = hookState(s, machine)
	facts.NameInUse = facts.Held && slices.ContainsFunc(judged.Members, func(member etcd.Member) bool { return member.Hostname == machine.Name })
	if node.Etcd == nil {
		facts.MemberProblem = "the etcd member does not answer"
	} else {
		facts.MemberProblem = health.MemberProblem(*node.Etcd)
	}
	for _, condition := range health.Conditions(node) {
		if condition.Status != metav1.ConditionTrue && condition.Type != controlplanev1.MachineEtcdMemberHealthyCondition {
			facts.ComponentProblems = append(facts.ComponentProblems, condition.Message)
		}
	}
	if other := r.otherRelease(s, machine); other != "" {
		facts.ComponentProblems = append(facts.ComponentProblems, other)
	}

	return facts
}

// peerAddresses are the hosts of peer URLs that can only be a Machine's. Its node says
// them itself: etcd may be in another network than the address of the Node is. One that
// does not answer is looked for at all addresses that it has; nil says that nobody knows.
func (r *Reconciler) peerAddresses(machine *clusterv1.Machine, infraMachine *unstructured.Unstructured, node health.Facts) []string {
	if len(node.EtcdAddresses) > 0 {
		return node.EtcdAddresses
	}
	hosts, sure := r.infrastructure.PeerAddresses(infraMachine, capimachine.Addresses(machine))
	if !sure && node.Err == nil {
		return nil
	}

	return hosts
}

// failureDomain is where a Machine is, else where it should be.
func failureDomain(machine *clusterv1.Machine) string {
	if machine.Status.FailureDomain != "" {
		return machine.Status.FailureDomain
	}

	return machine.Spec.FailureDomain
}

// silentMembers are the Machines whose etcd does not answer, or does not follow
// the leader of the others.
func silentMembers(facts plan.Facts) []string {
	var silent []string
	for _, machine := range facts.Machines {
		if machine.MemberProblem != "" {
			silent = append(silent, machine.Name)
		}
	}

	return silent
}

// hookState is how far the deletion of a Machine is for our pre-terminate hook,
// and what comes before it: ours is the last of the hooks.
func hookState(s *scope, machine *clusterv1.Machine) (plan.HookState, string) {
	switch {
	case !metav1.HasAnnotation(machine.ObjectMeta, controlplanev1.EtcdPreTerminateHookAnnotation):
		return plan.HookGone, ""
	case isAbandoned(s, machine):
		return plan.HookAbandoned, ""
	}
	if condition := conditions.Get(machine, clusterv1.MachineDeletingCondition); condition == nil ||
		condition.Reason != clusterv1.MachineDeletingWaitingForPreTerminateHookReason {
		return plan.HookEarly, "Cluster API to come to the pre-terminate hooks: see its condition " + clusterv1.MachineDeletingCondition
	}
	for name := range machine.Annotations {
		if strings.HasPrefix(name, clusterv1.PreTerminateDeleteHookAnnotationPrefix) && name != controlplanev1.EtcdPreTerminateHookAnnotation {
			return plan.HookEarly, "the pre-terminate hooks of others to go"
		}
	}

	return plan.HookDue, ""
}

// memberID is the ID of the etcd member of a Machine's node: what the node says
// now, else what it said last; 0 when it never did.
func memberID(machine *clusterv1.Machine, node health.Facts) uint64 {
	if own, listed := ownMember(node); listed {
		return own.ID
	}
	record := objects.Record[controlplanev1.EtcdMemberRecord](machine, controlplanev1.EtcdMemberAnnotation)
	if record == nil {
		return 0
	}
	id, err := strconv.ParseUint(record.ID, 16, 64)
	if err != nil {
		return 0
	}

	return id
}

func ownMember(node health.Facts) (etcd.Member, bool) {
	if node.Etcd == nil {
		return etcd.Member{}, false
	}

	return node.Etcd.Own()
}

// memberRecord is the value of the annotation by which the member of a Machine's
// node stays known: what the node says now, else what it said last.
func memberRecord(machine *clusterv1.Machine, node health.Facts) (string, error) {
	own, listed := ownMember(node)
	if !listed {
		return machine.Annotations[controlplanev1.EtcdMemberAnnotation], nil
	}

	return writeRecord(controlplanev1.EtcdMemberRecord{ID: etcd.FormatID(own.ID), PeerURLs: own.PeerURLs})
}

// writeRecord is the value of an annotation that holds a record.
func writeRecord(record any) (string, error) {
	value, err := json.Marshal(record)
	if err != nil {
		return "", fmt.Errorf("encoding a record: %w", err)
	}

	return string(value), nil
}
