package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/capimachine"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// How often the nodes are asked. The status of a node is watched, but not what
// its etcd says; all of it gets jitter.
const (
	// bringUpInterval is for control planes that are not healthy and have a
	// Machine younger than bringUpTime: a node is about to come up.
	bringUpInterval = 5 * time.Second
	bringUpTime     = 20 * time.Minute
	// leaveInterval is for nodes that leave etcd, which mostly takes less than a
	// second: clients reach their API servers in vain from then on.
	leaveInterval = time.Second
	// unhealthyInterval is for control planes that are not healthy.
	unhealthyInterval = 20 * time.Second
	// healthyInterval is for healthy control planes.
	healthyInterval = 5 * time.Minute
)

// Event types.
const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// act carries the decision out.
func (r *Reconciler) act(ctx context.Context, s *scope) error {
	ctrl.LoggerFrom(ctx).V(3).Info("Decided", "action", s.decision.Action, "Machine", s.decision.Machine, "message", s.decision.Message)

	r.observe(s)
	r.stopUnwantedLeaves(s)
	if s.effectErr = r.abandonMembers(ctx, s, s.decision.Abandons); s.effectErr != nil {
		return s.effectErr
	}
	s.effectErr = r.carryOut(ctx, s, s.decision.Action)
	if s.decision.Action == plan.ApplyManifests && s.effectErr != nil && !apierrors.IsConflict(s.effectErr) {
		// Nothing waits for it: the generation is observed, and nodes are looked at as
		// often as ever. Its condition tells.
		ctrl.LoggerFrom(ctx).Error(s.effectErr, "Failed to apply the built-in manifests of Talos")
		return nil
	}

	return s.effectErr
}

// untilRollout is an interval, or the time until spec.rollout.after when that is
// shorter.
func (r *Reconciler) untilRollout(s *scope, interval time.Duration) time.Duration {
	after := s.controlPlane.Spec.Rollout.After.Sub(r.Clock.Now())
	if after <= 0 || (interval > 0 && interval < after) {
		return interval
	}

	return after
}

// effects are what is done for each action; to wait is to do nothing.
func (r *Reconciler) effects() map[plan.Action]step {
	return map[plan.Action]step{
		plan.CreateMachine:         r.createMachine,
		plan.HandOver:              r.handOver,
		plan.RecordBootstrapIntent: r.recordIntent,
		plan.RecordBootstrapped:    r.recordIntent,
		plan.RecordInitialized:     r.recordIntent,
		plan.Bootstrap:             r.bootstrap,
		plan.RestoreEtcd:           r.restoreEtcd,
		plan.RestartNode:           r.restartNode,
		plan.BackUp:                r.backUp,
		plan.ForgetBackup:          r.forgetBackup,
		plan.DeleteMachine:         r.deleteOne,
		plan.RemediateMachine:      r.remediate,
		plan.LeaveEtcd:             r.leaveEtcd,
		plan.RemoveMember:          r.removeMember,
		plan.ReleaseHook:           r.releaseHook,
		plan.ApplyManifests:        r.applyManifests,
		plan.DeleteMachines:        r.deleteMachines,
		plan.RemoveFinalizer:       r.removeFinalizer,

		plan.WaitForClusterDeletion: nil,
		plan.WaitForInfrastructure:  nil,
		plan.WaitForEndpoint:        nil,
		plan.WaitForCertificates:    nil,
		plan.WaitForPreflight:       nil,
		plan.WaitForBackup:          nil,
		plan.WaitForRestore:         nil,
		plan.WaitForMachine:         nil,
		plan.WaitForLeave:           nil,
		plan.WaitForMachineDeletion: nil,
		plan.WaitForEndpointSilence: nil,
		plan.WaitForOverride:        nil,
		plan.WaitForEtcd:            nil,
		plan.WaitForAPIServer:       nil,
		plan.DeleteWorkersFirst:     nil,
		plan.Stable:                 nil,
		plan.Refuse:                 nil,
	}
}

// carryOut does what an action says.
func (r *Reconciler) carryOut(ctx context.Context, s *scope, action plan.Action) error {
	if effect := r.effects()[action]; effect != nil {
		return effect(ctx, s)
	}

	return nil
}

// interval is when to look again after a decision; 0 when only an event can change
// anything.
func (r *Reconciler) interval(s *scope, after plan.Recheck) time.Duration {
	switch after {
	case plan.RecheckNever:
		return 0
	case plan.RecheckAtOnce:
		return leaveInterval
	case plan.RecheckSoon:
		return bringUpInterval
	case plan.RecheckLater:
		return unhealthyInterval
	case plan.RecheckByHealth:
	}

	return r.intervalByHealth(s)
}

// intervalByHealth is when to look again at a control plane for which nothing is done.
func (r *Reconciler) intervalByHealth(s *scope) time.Duration {
	var provisioned []*clusterv1.Machine
	for _, machine := range s.machines {
		if capimachine.IsProvisioned(machine) {
			provisioned = append(provisioned, machine)
		}
	}
	young := func(machine *clusterv1.Machine) bool {
		return r.Clock.Since(machine.CreationTimestamp.Time) < bringUpTime
	}
	switch {
	case len(provisioned) == 0:
		return 0
	case isHealthy(s, provisioned) && len(s.facts.EtcdProblems()) == 0:
		return healthyInterval
	case slices.ContainsFunc(provisioned, young):
		return bringUpInterval
	default:
		return unhealthyInterval
	}
}

// onlyWaits reports whether nothing was done in a reconcile but to find out that others
// have their turn, and there was no node to ask.
func (s *scope) onlyWaits() bool {
	waits := slices.Contains([]plan.Action{plan.WaitForInfrastructure, plan.WaitForEndpoint, plan.WaitForMachine}, s.decision.Action)

	return waits && !slices.ContainsFunc(s.machines, capimachine.IsProvisioned)
}

// isHealthy reports whether the API server and the nodes of Machines are healthy.
func isHealthy(s *scope, machines []*clusterv1.Machine) bool {
	return s.apiServer == health.APIServerReady &&
		!slices.ContainsFunc(machines, func(machine *clusterv1.Machine) bool { return !health.IsHealthy(s.nodes[machine.Name]) })
}

// annotate writes annotations of the control plane at once, unless somebody has
// changed the control plane since it was read. An empty value removes one.
func (r *Reconciler) annotate(ctx context.Context, s *scope, annotations map[string]string) error {
	before := s.controlPlane.DeepCopy()
	if s.written != "" {
		before.ResourceVersion = s.written
	}
	after := before.DeepCopy()
	setAnnotations(after, annotations)
	if err := objects.Patch(ctx, r.Client, before, after); err != nil {
		return err
	}
	// The object in hand keeps its resource version, because the patch at the
	// end of the reconcile would send a changed one, and its status, which is newer.
	setAnnotations(s.controlPlane, annotations)
	s.written = after.ResourceVersion

	return nil
}

func setAnnotations(controlPlane *controlplanev1.TalosControlPlane, annotations map[string]string) {
	for name, value := range annotations {
		if value == "" {
			delete(controlPlane.Annotations, name)
			continue
		}
		if controlPlane.Annotations == nil {
			controlPlane.Annotations = map[string]string{}
		}
		controlPlane.Annotations[name] = value
	}
}

// event records what was done.
func (r *Reconciler) event(s *scope, eventType, reason, action, note string, args ...any) {
	r.Recorder.Eventf(s.controlPlane, nil, eventType, reason, action, note, args...)
}

// clusterKey is the key of the Cluster of a scope.
func (s *scope) clusterKey() client.ObjectKey {
	return client.ObjectKeyFromObject(s.cluster)
}

// logMachine names a Machine in logs.
func logMachine(s *scope, name string) klog.ObjectRef {
	return klog.KRef(s.controlPlane.Namespace, name)
}
