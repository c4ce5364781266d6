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

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
)

const (
	// startPatience is how long Talos may take from the start of its container until
	// it answers.
	startPatience = time.Minute
	// startPart of the interval is for machines that are coming up.
	startPart = 6
)

// Backend is the container backend. All fields are required.
type Backend struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Dialer opens connections to Talos machines.
	Dialer talosclient.Dialer
	// Credentials gives out client certificates.
	Credentials *credentials.Store
	// Tracker watches configured machines.
	Tracker *machinewatch.Tracker
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random mints provider IDs.
	Random requeue.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// Pacing says when a machine is asked again.
	Pacing pacing.Pacing
	// ClusterDomain is the DNS domain of the management cluster.
	ClusterDomain string

	// reprovisioner begins to re-provision machines.
	reprovisioner backends.Reprovisioner
}

var _ backends.Backend = &Backend{}

// +kubebuilder:rbac:groups="",resources=pods;services,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups="",resources=nodes,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=storage.k8s.io,resources=storageclasses,verbs=get

// Reconcile implements backends.Backend.
func (m *Backend) Reconcile(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	defer backends.WarnOnNewProblem(m.Recorder, scope)

	progress := scope.TalosMachine.Spec.Pod.Progress
	scope.Observed.Provisioned = progress == infrav1.PodRan
	scope.Observed.Identity = condition.True(infrav1.ManagedPodReason, "")
	if progress == "" && scope.Machine.Spec.Bootstrap.DataSecretName == nil {
		scope.Observed.Claim = condition.False(infrav1.WaitingForBootstrapDataReason, noConfigurationYet)
		return ctrl.Result{}, nil
	}
	again, err := m.reconcileReprovision(ctx, scope)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := m.reconcilePod(ctx, scope)

	return util.LowestNonZeroResult(result, again), err
}

// podBuilder is what the objects of the machine are made from.
func (m *Backend) podBuilder(scope *backends.Scope, fromVolume bool) podBuilder {
	b := podBuilder{machine: scope.TalosMachine, cluster: scope.TalosMachine.Labels[clusterv1.ClusterNameLabel], fromVolume: fromVolume}
	if scope.Machine != nil {
		b.cluster, b.controlPlane, b.failureDomain = scope.Machine.Spec.ClusterName, util.IsControlPlaneMachine(scope.Machine), scope.Machine.Spec.FailureDomain
	}

	return b
}

// reconcilePod judges what the Pod needs, and does it.
func (m *Backend) reconcilePod(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	facts, err := m.gatherPodFacts(ctx, scope.TalosMachine)
	if err != nil {
		return ctrl.Result{}, err
	}
	next := facts.next()
	if next == stepBind {
		if err := m.bindPod(ctx, scope, facts.pod); err != nil {
			return ctrl.Result{}, err
		}
		next = facts.next()
	}
	switch next {
	case stepCreate:
		return m.createPod(ctx, scope)
	case stepBind, stepFollow:
		return m.followPod(ctx, scope, facts.pod)
	case stepRefuse:
		scope.Observed.Claim = nameConflict("Pod", scope.TalosMachine.Name)
		return m.Pacing.Later(), nil
	case stepLose, stepLost:
		return m.losePod(ctx, scope, facts)
	case stepReplace, stepAwait, stepRemoveFinalizer:
		return m.replacePod(ctx, scope, facts)
	case stepWipe:
		return m.wipePod(ctx, scope, facts)
	}

	return ctrl.Result{}, nil
}

// gatherPodFacts gathers what decides about the Pod of a machine.
func (m *Backend) gatherPodFacts(ctx context.Context, machine *infrav1.TalosMachine) (podFacts, error) {
	facts := podFacts{machine: machine}
	var err error
	if facts.pod, err = m.podOf(ctx, machine); err != nil {
		return podFacts{}, err
	}
	switch pod := facts.pod; {
	case pod == nil:
		facts.dataGone, err = m.isDataGone(ctx, machine)
	case pod.Spec.NodeName != "" && !pod.DeletionTimestamp.IsZero():
		var node *corev1.Node
		node, err = m.node(ctx, pod)
		facts.nodeGone, facts.nodeNotReady = err == nil && node == nil, isNotReady(node)
	}
	if err != nil {
		return podFacts{}, fmt.Errorf("gathering what is known of Pod %s: %w", machine.Name, err)
	}

	return facts, nil
}

// podOf is the Pod of that name; nil when there is none. The cache is believed where
// it shows the Pod that is recorded: what it tells of its end cannot be taken back.
// Whether there is none, or another one, is asked live, but for a machine that is
// lost: for that one none is made.
func (m *Backend) podOf(ctx context.Context, machine *infrav1.TalosMachine) (*corev1.Pod, error) {
	pod, key := &corev1.Pod{}, client.ObjectKeyFromObject(machine)
	err := m.Client.Get(ctx, key, pod)
	switch {
	case err == nil && machine.Spec.Pod.UID == string(pod.UID) && metav1.IsControlledBy(pod, machine):
		return pod, nil
	case apierrors.IsNotFound(err) && machine.Spec.Pod.Progress == infrav1.PodLost && machine.DeletionTimestamp.IsZero():
		return nil, nil //nolint:nilnil // Documented above.
	case client.IgnoreNotFound(err) != nil:
		return nil, err
	}
	pod = &corev1.Pod{}
	if err := m.APIReader.Get(ctx, key, pod); err != nil {
		return nil, client.IgnoreNotFound(err)
	}

	return pod, nil
}

// isDataGone reports whether the data of a machine that has had a Pod is gone with its
// volume claim: another one would be empty.
func (m *Backend) isDataGone(ctx context.Context, machine *infrav1.TalosMachine) (bool, error) {
	progress := machine.Spec.Pod.Progress
	if isEphemeral(machine) || (progress != infrav1.PodCreated && progress != infrav1.PodRan) {
		return false, nil
	}
	claim, err := m.dataClaim(ctx, machine)

	return err == nil && claim == nil, err
}

// bindPod records which Pod the machine has.
func (m *Backend) bindPod(ctx context.Context, scope *backends.Scope, pod *corev1.Pod) error {
	return backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) {
		spec.Pod.UID = string(pod.UID)
		if spec.Pod.Progress != infrav1.PodRan {
			spec.Pod.Progress = infrav1.PodCreated
		}
	})
}

// losePod records that the machine is lost, and lets its Pod go then. Its
// configuration stays no longer than its Pod.
func (m *Backend) losePod(ctx context.Context, scope *backends.Scope, facts podFacts) (ctrl.Result, error) {
	machine := scope.TalosMachine
	text := lostText(facts)
	if machine.Spec.Pod.Progress != infrav1.PodLost {
		if err := backends.Record(ctx, m.Client, machine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.Progress = infrav1.PodLost }); err != nil {
			return ctrl.Result{}, err
		}
		m.Recorder.Eventf(machine, nil, corev1.EventTypeWarning, infrav1.EventPodLost, "Observe", "%s", text)
	} else if before := conditions.Get(machine, infrav1.AllocatedCondition); before != nil && before.Reason == infrav1.PodLostReason {
		// What was seen of the Pod when it went says most.
		text = before.Message
	}
	m.forget(client.ObjectKeyFromObject(machine))
	scope.Observed.Claim = condition.False(infrav1.PodLostReason, text)
	scope.Observed.Running = condition.False(infrav1.PodLostReason, "The Pod of the machine is gone")
	if facts.pod != nil && metav1.IsControlledBy(facts.pod, machine) {
		return m.Pacing.Later(), m.deletePod(ctx, facts)
	}
	_, err := objects.DeleteOwned(ctx, m.Client, m.APIReader, machine,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: machine.Namespace, Name: machine.Name + infrav1.UserDataSecretSuffix}})

	return ctrl.Result{}, err
}

func lostText(facts podFacts) string {
	why := "The Pod was deleted, and the data of the machine is lost with it, because its storage is ephemeral"
	switch pod := facts.pod; {
	case facts.dataGone:
		why = "The volume claim of the machine is gone, or is being deleted, and its data goes with it"
	case pod != nil && hasFailed(pod) && (pod.DeletionTimestamp.IsZero() || pod.Status.Reason != ""):
		status := pod.Status.Reason
		if status == "" {
			status = string(pod.Status.Phase)
		}
		if pod.Status.Message != "" {
			status += ": " + pod.Status.Message
		}
		why = fmt.Sprintf("The Pod has ended (%s), and the data of the machine is lost with it, because its storage is ephemeral", status)
	}

	return why + ". The Pod is not made again: delete the Machine, or let a MachineHealthCheck replace it"
}

// replacePod brings a Pod that is to be made again on its volume to its end.
func (m *Backend) replacePod(ctx context.Context, scope *backends.Scope, facts podFacts) (ctrl.Result, error) {
	m.forget(client.ObjectKeyFromObject(scope.TalosMachine))
	reason, message := infrav1.PodReplacingReason, "The Pod has ended, and is made again on its volume"
	if facts.next() == stepAwait {
		message = "The Pod is being deleted; it is made again on its volume once its containers have ended, which " + facts.awaited()
	}
	if facts.nodeNotReady {
		reason = infrav1.NodeNotReadyReason
	}
	scope.Observed.Claim = condition.False(reason, message)
	scope.Observed.Running = condition.False(reason, message)

	// The end of its node does not wake us.
	return m.Pacing.Later(), m.deletePod(ctx, facts)
}

// deletePod deletes a Pod of ours, and lets it go once nothing of it runs.
func (m *Backend) deletePod(ctx context.Context, facts podFacts) error {
	pod := facts.pod
	if pod.DeletionTimestamp.IsZero() {
		// Its next event goes on.
		err := m.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}, client.GracePeriodSeconds(releasedGracePeriodSeconds))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting Pod %s: %w", pod.Name, err)
		}
		return nil
	}
	if !facts.hasEnded() || !isHeld(pod) {
		return nil
	}

	return m.removePodFinalizer(ctx, pod)
}

// requeueStarting asks again a machine that is coming up: a Pod does so faster than a machine.
func (m *Backend) requeueStarting() ctrl.Result {
	return m.Pacing.After(m.Pacing.Interval / startPart)
}

// Gone implements backends.Backend. A Pod whose TalosMachine somebody has stripped
// of its finalizer is deleted with it; nobody else would let it go.
func (m *Backend) Gone(ctx context.Context, key client.ObjectKey) error {
	m.forget(key)
	pod := &corev1.Pod{}
	if err := m.Client.Get(ctx, key, pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	owner := metav1.GetControllerOf(pod)
	if pod.DeletionTimestamp.IsZero() || !isHeld(pod) || owner == nil || owner.Kind != infrav1.TalosMachineKind {
		return nil
	}
	machine := &infrav1.TalosMachine{}
	err := m.APIReader.Get(ctx, key, machine)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("reading TalosMachine %s: %w", key.Name, err)
	}
	if err == nil && machine.UID == owner.UID {
		return nil
	}

	return m.removePodFinalizer(ctx, pod)
}

// forget ends the watch of a machine.
func (m *Backend) forget(key client.ObjectKey) {
	m.Tracker.Forget(key)
}
