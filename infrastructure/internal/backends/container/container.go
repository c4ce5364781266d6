// Package container runs machines as Pods of the management cluster: one Pod of the
// Talos image per TalosMachine (design D11).
//
// What must not be lost is in the spec of the TalosMachine, and is written before
// the effect that it speaks of. Everything else has names that follow from that of
// the TalosMachine, and is found again.
package container

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/lookout"
)

const (
	// refusedRetryInterval is how often the API server is asked again to take what
	// it has refused: nothing tells when a quota or a rule of a namespace changes.
	refusedRetryInterval = 20 * time.Second
	// startPatience is how long Talos may take from the start of its container until
	// it answers.
	startPatience = time.Minute
	// lostContactFactor and silentFactor make the interval for what only a person
	// can mend, and the longest one for machines that do not answer, out of
	// ProbeInterval.
	lostContactFactor, silentFactor = 3, 6
)

// Machines is the container backend. All fields are required.
type Machines struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Dialer opens connections to Talos machines.
	Dialer talosclient.Dialer
	// Credentials gives out client certificates.
	Credentials *credentials.Store
	// Lookout watches configured machines.
	Lookout *lookout.Lookout
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random mints provider IDs, and spreads retries.
	Random backends.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// ProbeInterval is about how often a machine is asked that cannot be watched.
	ProbeInterval time.Duration

	// beginning lets one TalosMachine at a time begin to be re-provisioned.
	beginning sync.Mutex
}

var _ backends.Machines = &Machines{}

// +kubebuilder:rbac:groups="",resources=pods;services;persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get

// Reconcile implements backends.Machines.
func (m *Machines) Reconcile(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	defer backends.CallForAttention(m.Recorder, scope)

	scope.Observed.Provisioned = scope.TalosMachine.Spec.Pod.Progress == infrav1.PodRan
	scope.Observed.Identity = backends.False(infrav1.NotHandedOverReason, "The configuration never leaves the management cluster")
	configuration, err := m.configuration(ctx, scope)
	if err != nil || configuration == nil {
		return ctrl.Result{}, err
	}
	again, err := m.reconcileReprovision(ctx, scope)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := m.reconcilePod(ctx, scope, configuration)

	return util.LowestNonZeroResult(result, again), err
}

// configuration is the machine configuration of the bootstrap provider; nil when
// it has to be waited for.
func (m *Machines) configuration(ctx context.Context, scope *backends.Scope) ([]byte, error) {
	secretName := scope.Machine.Spec.Bootstrap.DataSecretName
	if secretName == nil {
		scope.Observed.Claim = backends.False(infrav1.WaitingForBootstrapDataReason, "Waiting for the bootstrap provider to make the machine configuration")
		return nil, nil
	}
	configuration, err := backends.ReadConfiguration(ctx, m.Client, scope.TalosMachine.Namespace, *secretName)
	if err != nil {
		return nil, err
	}
	if configuration == nil {
		// A machine that runs needs it no more.
		if scope.Observed.Provisioned {
			return []byte{}, nil
		}
		scope.Observed.Claim = backends.False(infrav1.WaitingForBootstrapDataReason, fmt.Sprintf("Secret %s with the machine configuration is missing", *secretName))
	}

	return configuration, nil
}

// wish is what the objects of the machine are made from.
func (m *Machines) wish(scope *backends.Scope, configuration []byte) wish {
	w := wish{machine: scope.TalosMachine, cluster: scope.TalosMachine.Labels[clusterv1.ClusterNameLabel], byAPI: isLong(configuration)}
	if scope.Machine != nil {
		w.cluster, w.controlPlane, w.failureDomain = scope.Machine.Spec.ClusterName, util.IsControlPlaneMachine(scope.Machine), scope.Machine.Spec.FailureDomain
	}

	return w
}

// reconcilePod judges what the Pod needs, and does it.
func (m *Machines) reconcilePod(ctx context.Context, scope *backends.Scope, configuration []byte) (ctrl.Result, error) {
	now, err := m.life(ctx, scope.TalosMachine)
	if err != nil {
		return ctrl.Result{}, err
	}
	w := m.wish(scope, configuration)
	switch next := now.next(); next {
	case stepCreate:
		return m.createPod(ctx, scope, w, configuration)
	case stepBind:
		if err := m.bindPod(ctx, scope, now.pod); err != nil {
			return ctrl.Result{}, err
		}
		return m.followPod(ctx, scope, w, now.pod, configuration)
	case stepFollow:
		return m.followPod(ctx, scope, w, now.pod, configuration)
	case stepRefuse:
		scope.Observed.Claim = taken("Pod", scope.TalosMachine.Name)
		return m.later(), nil
	case stepLose, stepLost:
		return ctrl.Result{}, m.losePod(ctx, scope, now)
	case stepReplace, stepAwait, stepLetGo:
		return ctrl.Result{}, m.replacePod(ctx, scope, next, now.pod)
	case stepWipe:
		return m.wipePod(ctx, scope, w)
	}

	return ctrl.Result{}, nil
}

// life reads the Pod live: a Pod that the cache does not show may be there.
func (m *Machines) life(ctx context.Context, machine *infrav1.TalosMachine) (life, error) {
	pod := &corev1.Pod{}
	err := m.APIReader.Get(ctx, client.ObjectKeyFromObject(machine), pod)
	if apierrors.IsNotFound(err) {
		return life{machine: machine}, nil
	}
	if err != nil {
		return life{}, fmt.Errorf("reading Pod %s: %w", machine.Name, err)
	}
	gone := false
	if pod.Spec.NodeName != "" && !pod.DeletionTimestamp.IsZero() {
		err := m.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &corev1.Node{})
		gone = apierrors.IsNotFound(err)
	}

	return life{machine: machine, pod: pod, nodeGone: gone}, nil
}

// bindPod records which Pod the machine has.
func (m *Machines) bindPod(ctx context.Context, scope *backends.Scope, pod *corev1.Pod) error {
	return backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) {
		spec.Pod.UID = string(pod.UID)
		if spec.Pod.Progress != infrav1.PodRan {
			spec.Pod.Progress = infrav1.PodCreated
		}
	})
}

// losePod records that the machine is lost, and lets its Pod go then.
func (m *Machines) losePod(ctx context.Context, scope *backends.Scope, now life) error {
	if now.next() == stepLose {
		err := backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.Progress = infrav1.PodLost })
		if err != nil {
			return err
		}
	}
	m.Forget(client.ObjectKeyFromObject(scope.TalosMachine))
	scope.Observed.Provisioned = scope.TalosMachine.Status.Initialization.Provisioned != nil && *scope.TalosMachine.Status.Initialization.Provisioned
	lostFinding := backends.False(infrav1.PodLostReason, lostText(now.pod))
	if before := conditions.Get(scope.TalosMachine, infrav1.HostClaimedCondition); before != nil && before.Reason == infrav1.PodLostReason {
		// What was seen of the Pod when it went says most.
		lostFinding.Message = before.Message
	}
	scope.Observed.Claim = lostFinding
	scope.Observed.Running = backends.False(infrav1.PodLostReason, "The Pod of the machine is gone")
	if now.pod == nil || !metav1.IsControlledBy(now.pod, scope.TalosMachine) {
		return nil
	}

	return m.deletePod(ctx, now)
}

func lostText(pod *corev1.Pod) string {
	why := "was deleted"
	if pod != nil && pod.Status.Reason != "" {
		why = fmt.Sprintf("has ended (%s: %s)", pod.Status.Reason, pod.Status.Message)
	}

	return "The Pod " + why + ", and the data of the machine is lost with it, because its storage is ephemeral. It is not made again: delete the Machine, or let a MachineHealthCheck replace it"
}

// replacePod brings a Pod that is to be made again on its volume to its end.
func (m *Machines) replacePod(ctx context.Context, scope *backends.Scope, next step, pod *corev1.Pod) error {
	m.Forget(client.ObjectKeyFromObject(scope.TalosMachine))
	message := "The Pod has ended, and is made again on its volume"
	if next == stepAwait {
		message = "The Pod is being deleted; it is made again on its volume once its containers have ended"
	}
	scope.Observed.Claim = backends.False(infrav1.PodReplacingReason, message)
	scope.Observed.Running = backends.False(infrav1.PodReplacingReason, message)

	return m.deletePod(ctx, life{machine: scope.TalosMachine, pod: pod, nodeGone: next == stepLetGo})
}

// deletePod deletes a Pod of ours, and lets it go once nothing of it runs.
func (m *Machines) deletePod(ctx context.Context, now life) error {
	pod := now.pod
	if pod.DeletionTimestamp.IsZero() {
		err := m.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(releasedGracePeriodSeconds))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Pod %s: %w", pod.Name, err)
		}
		if !hasFailed(pod) {
			return nil
		}
	}
	if !now.hasEnded() || !isHeld(pod) {
		return nil
	}

	return m.letPodGo(ctx, pod)
}

// later asks again about what only a person can mend.
func (m *Machines) later() ctrl.Result {
	return ctrl.Result{RequeueAfter: backends.Jitter(m.Random, lostContactFactor*m.ProbeInterval)}
}

// soon asks again a machine that is coming up.
func (m *Machines) soon() ctrl.Result {
	return ctrl.Result{RequeueAfter: backends.Jitter(m.Random, m.ProbeInterval/silentFactor)}
}

// refused asks again for what the API server has refused.
func (m *Machines) refused() ctrl.Result {
	return ctrl.Result{RequeueAfter: backends.Jitter(m.Random, refusedRetryInterval)}
}

// Forget implements backends.Machines.
func (m *Machines) Forget(key client.ObjectKey) {
	m.Lookout.Forget(key)
}
