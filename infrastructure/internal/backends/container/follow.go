package container

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// followPod brings a Pod from its node to Talos that runs in it, and follows that.
func (m *Backend) followPod(ctx context.Context, scope *backends.Scope, pod *corev1.Pod) (ctrl.Result, error) {
	b := m.podBuilder(scope, !hasUserData(pod))
	if err := m.keepLabels(ctx, b, pod); err != nil {
		return ctrl.Result{}, err
	}
	scope.Observed.Claim = scheduling(pod)
	again, err := m.keepEtcdService(ctx, scope, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	result, err := m.followContainer(ctx, scope, b, pod)

	return util.LowestNonZeroResult(result, again), err
}

// keepLabels mends the labels of a Pod.
func (m *Backend) keepLabels(ctx context.Context, b podBuilder, pod *corev1.Pod) error {
	err := objects.Change(ctx, m.Client, pod, func(pod *corev1.Pod) { pod.Labels = b.podLabels(pod.Labels) })
	if err != nil {
		return fmt.Errorf("mending the labels of Pod %s: %w", pod.Name, err)
	}

	return nil
}

func (m *Backend) followContainer(ctx context.Context, scope *backends.Scope, b podBuilder, pod *corev1.Pod) (ctrl.Result, error) {
	if pod.Spec.NodeName == "" {
		scope.Observed.Running = condition.False(infrav1.NotConfiguredReason, "The Pod has no node yet")
		return m.observeStorage(ctx, scope)
	}
	node, err := m.node(ctx, pod)
	if err != nil {
		return ctrl.Result{}, err
	}
	if node != nil {
		scope.Observed.FailureDomain = node.Labels[corev1.LabelTopologyZone]
	}
	stopped := starting(pod)
	if stopped.Status != "" {
		m.forget(client.ObjectKeyFromObject(scope.TalosMachine))
		scope.Observed.Running = stopped
	}
	// The Secret is read at each start of the container.
	if !b.fromVolume && (!scope.Observed.Provisioned || stopped.Status != "") {
		if done, result, err := m.reconcileUserData(ctx, scope, b, node); err != nil || !done {
			return result, err
		}
	}
	if stopped.Status != "" {
		return ctrl.Result{}, nil
	}

	return m.followTalos(ctx, scope, b, pod, node)
}

// node is the node of a Pod; nil while the cache does not show it, and once it is
// gone.
func (m *Backend) node(ctx context.Context, pod *corev1.Pod) (*corev1.Node, error) {
	node := &corev1.Node{}
	if err := m.Client.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil //nolint:nilnil // Documented above.
		}
		return nil, fmt.Errorf("reading Node %s: %w", pod.Spec.NodeName, err)
	}

	return node, nil
}

// observeStorage says what is wrong with the volume that the Pod waits for.
func (m *Backend) observeStorage(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	problem, err := m.storageProblem(ctx, scope.TalosMachine)
	if err != nil || problem == "" {
		return ctrl.Result{}, err
	}
	scope.Observed.Claim = condition.False(infrav1.VolumeNotBoundReason, problem)

	return m.Pacing.Later(), nil
}

// keepEtcdService makes the Service of etcd again when somebody has deleted it, with
// the same address, for the other members know no other; and mends it when somebody
// has changed it. The Pod is followed whatever becomes of that.
func (m *Backend) keepEtcdService(ctx context.Context, scope *backends.Scope, b podBuilder) (ctrl.Result, error) {
	if !b.controlPlane {
		return ctrl.Result{}, nil
	}
	service, wanted := &corev1.Service{}, b.etcdService()
	err := m.Client.Get(ctx, client.ObjectKeyFromObject(wanted), service)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("reading Service %s: %w", wanted.Name, err)
	}
	_, differs := endpoint.Updated(service, wanted)
	if err == nil && !differs && metav1.IsControlledBy(service, b.machine) && service.Spec.ClusterIP == wanted.Spec.ClusterIP {
		return ctrl.Result{}, nil
	}
	err = m.ensureEtcdService(ctx, scope, b)
	switch {
	case apierrors.IsInternalError(err) && scope.Observed.Claim.Status == metav1.ConditionTrue:
		// The machine runs all the same.
		scope.Observed.Claim.Message = objects.Explain("The API server does not take the Service of etcd; it is tried again. "+cure(err), err)
		return m.Pacing.Refused(), nil
	case err != nil:
		return m.observeRefusal(scope, err)
	}

	return ctrl.Result{}, nil
}

// reconcileUserData makes the Secret that the Pod starts with. Where the Pod has
// limits that waits for its node: what the node inside must not promise is the rest
// of it. It reports whether the reconciliation goes on.
func (m *Backend) reconcileUserData(ctx context.Context, scope *backends.Scope, b podBuilder, node *corev1.Node) (bool, ctrl.Result, error) {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: b.machine.Namespace, Name: b.machine.Name + infrav1.UserDataSecretSuffix}
	err := m.Client.Get(ctx, key, stored)
	switch {
	case err == nil && metav1.IsControlledBy(stored, b.machine):
		scope.Observed.Configuration = condition.True(infrav1.ConfigurationAppliedReason, "")
		return true, ctrl.Result{}, nil
	case err == nil:
		scope.Observed.Configuration = nameConflict("Secret", key.Name)
		return false, m.Pacing.Later(), nil
	case !apierrors.IsNotFound(err):
		return false, ctrl.Result{}, fmt.Errorf("reading Secret %s: %w", key.Name, err)
	}
	if node == nil && needsNode(b.machine) {
		return false, m.requeueStarting(), nil
	}
	userData, result, err := m.overlaid(ctx, scope, b, node)
	if err != nil || userData == nil {
		return false, result, err
	}
	if err := m.Client.Create(ctx, b.userData(userData)); err != nil && !apierrors.IsAlreadyExists(err) {
		result, err := m.observeRefusal(scope, fmt.Errorf("creating Secret %s: %w", key.Name, err))
		return false, result, err
	}
	scope.Observed.Configuration = condition.True(infrav1.ConfigurationAppliedReason, "")

	return true, ctrl.Result{}, nil
}

// followTalos asks Talos in a container that runs, and watches it from then on.
func (m *Backend) followTalos(ctx context.Context, scope *backends.Scope, b podBuilder, pod *corev1.Pod, node *corev1.Node) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(scope.TalosMachine)
	if status, calm := m.Tracker.Unchanged(key, targetText(pod)); calm && scope.Observed.Provisioned && len(scope.TalosMachine.Status.Addresses) > 0 {
		scope.Observed.Configuration = condition.True(infrav1.ConfigurationAppliedReason, "")
		scope.Observed.Running = running(scope.TalosMachine, node, status)
		return ctrl.Result{}, nil
	}
	if pod.Status.PodIP == "" {
		return m.requeueStarting(), nil
	}
	creds, err := m.Credentials.OfCluster(ctx, client.ObjectKeyFromObject(scope.Cluster))
	if errors.Is(err, secrets.ErrBundleMissing) || errors.Is(err, secrets.ErrBundleInvalid) {
		scope.Observed.Running = condition.Unknown(infrav1.WaitingForCredentialsReason, "There is no client certificate to ask the machine with; restore the secrets of the cluster")
		return m.Pacing.Later(), nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	talos, err := m.Dialer.Secure(ctx, pod.Status.PodIP, creds)
	if err == nil {
		defer func() { _ = talos.Close() }()
		scope.Observed.Configuration = condition.True(infrav1.ConfigurationAppliedReason, "")
		return m.observe(ctx, scope, pod, node, talos, creds)
	}
	m.Tracker.Forget(key)
	switch {
	case errors.Is(err, talosclient.ErrUntrusted):
		return m.untrusted(scope, b, pod, node), nil
	case errors.Is(err, talosclient.ErrClock):
		scope.Observed.Running = condition.False(infrav1.ClockSkewReason, probe.WrongClockText)
		return m.Pacing.Later(), nil
	}

	return m.observeUnreachable(scope, b, pod, node), nil
}

// observeUnreachable says that Talos does not answer, and asks again less and less.
func (m *Backend) observeUnreachable(scope *backends.Scope, b podBuilder, pod *corev1.Pod, node *corev1.Node) ctrl.Result {
	switch {
	case isNotReady(node):
		scope.Observed.Running = condition.Falsef(infrav1.NodeNotReadyReason,
			"The machine does not answer, and its node %s is not ready either: bring that back, or delete the Machine", node.Name)
	case m.Clock.Since(runningSince(pod).StartedAt.Time) <= startPatience:
		scope.Observed.Running = condition.False(infrav1.BootingReason, "The container has just started; Talos does not answer in it yet")
	case scope.Observed.Provisioned:
		scope.Observed.Running = condition.False(infrav1.UnreachableReason, "The machine does not answer; the log of its Pod may say why")
	case !b.controlPlane && !ptr.Deref(scope.Cluster.Status.Initialization.ControlPlaneInitialized, false):
		// Its certificate comes from there.
		scope.Observed.Running = condition.False(infrav1.BootingReason, "The machine does not answer; it does not before the control plane of the cluster runs")
	default:
		scope.Observed.Running = condition.Falsef(infrav1.NotTalosReason,
			"The container has run for more than a minute, but Talos does not answer in it: is %s an image of Talos? If not, name another one in a new template", imageOf(pod))
	}
	quiet := runningSince(pod).StartedAt.Time
	if before := conditions.Get(scope.TalosMachine, infrav1.RunningCondition); scope.Observed.Provisioned && before != nil && before.Status == metav1.ConditionFalse {
		quiet = before.LastTransitionTime.Time
	}

	return m.Pacing.Unreachable(quiet, m.Pacing.Interval/startPart)
}

// untrusted says that Talos answers, but not with a certificate of the cluster. A Pod
// is never given a configuration through the Talos API: it has it from its environment.
func (m *Backend) untrusted(scope *backends.Scope, b podBuilder, pod *corev1.Pod, node *corev1.Node) ctrl.Result {
	if scope.Observed.Provisioned {
		scope.Observed.Running = condition.False(infrav1.ReturnedToMaintenanceReason,
			"The machine does not run as a node of this cluster any more after it has, and is not configured again by itself; delete its Machine")
		return m.Pacing.Later()
	}
	result := m.observeUnreachable(scope, b, pod, node)
	if scope.Observed.Running.Reason == infrav1.NotTalosReason {
		scope.Observed.Running = condition.False(infrav1.UnreachableReason, "Talos answers in the container, but does not know the certificates of this cluster: its configuration is another one, or was not taken")
	}

	return result
}

// observe reads what a configured machine tells.
func (m *Backend) observe(
	ctx context.Context, scope *backends.Scope, pod *corev1.Pod, node *corev1.Node, talos talosclient.Node, creds talosclient.Credentials,
) (ctrl.Result, error) {
	status, err := talos.MachineStatus(ctx)
	if err != nil {
		scope.Observed.Running = condition.Unknown(infrav1.UnreachableReason, "The machine does not tell its stage")
		return m.requeueStarting(), nil
	}
	version, err := talos.Version(ctx)
	if err != nil {
		return m.requeueStarting(), nil //nolint:nilerr // The next reconciliation asks again.
	}
	scope.Observed.TalosVersion = version
	if wanted := scope.TalosMachine.Spec.Container.Talos.Version; version != wanted {
		scope.Observed.Running = condition.Falsef(infrav1.WrongReleaseReason,
			"The image %s is Talos %s, but %s was asked for: name both as they are in a new template", imageOf(pod), version, wanted)
		return m.Pacing.Later(), nil
	}
	scope.Observed.Running = running(scope.TalosMachine, node, status)
	if status.Stage == talosclient.StageRunning || status.Stage == talosclient.StageBooting {
		addresses, err := backends.AddressesOf(ctx, talos, pod.Status.PodIP, scope.Cluster.Spec.ControlPlaneEndpoint.Host, scope.TalosMachine.Spec.Pod.EtcdAddress)
		if err != nil || len(addresses) == 0 {
			return m.requeueStarting(), nil
		}
		scope.Observed.Addresses = addresses
		if err := m.recordRan(ctx, scope, pod); err != nil {
			return ctrl.Result{}, err
		}
	}
	key := client.ObjectKeyFromObject(scope.TalosMachine)
	found := fmt.Sprint(pod.Status.PodIP, version, scope.Observed.Addresses)
	calm := m.Tracker.Seen(key, targetText(pod), status, found, func(f *machinewatch.Watcher) { f.Watch(key, pod.Status.PodIP, creds, status) })
	if calm && scope.Observed.Provisioned {
		return ctrl.Result{}, nil
	}

	return m.Pacing.Later(), nil
}

// recordRan writes down that the machine runs: from then on it is never configured
// again by itself.
func (m *Backend) recordRan(ctx context.Context, scope *backends.Scope, pod *corev1.Pod) error {
	if scope.TalosMachine.Spec.Pod.Progress == infrav1.PodRan {
		return nil
	}
	// What is recorded to run and still wished for would be wiped once more.
	if err := backends.RemoveReprovisionAnnotation(ctx, m.Client, scope.TalosMachine); err != nil {
		return err
	}
	if err := backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.Progress = infrav1.PodRan }); err != nil {
		return err
	}
	scope.Observed.Provisioned = true
	scope.Observed.Reprovisioning = condition.False(infrav1.NotReprovisioningReason, "")
	ctrl.LoggerFrom(ctx).Info("The machine runs with its configuration", "Pod", pod.Name)
	m.Recorder.Eventf(scope.TalosMachine, pod, corev1.EventTypeNormal, infrav1.EventProvisioned, "Observe", "Pod %s runs with its configuration", pod.Name)

	return nil
}

// imageOf is the image of the Talos container of a Pod.
func imageOf(pod *corev1.Pod) string {
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == containerName {
			return pod.Spec.Containers[i].Image
		}
	}

	return ""
}

// targetText is which machine is looked at, and where.
func targetText(pod *corev1.Pod) string {
	return fmt.Sprint(pod.UID, pod.Status.PodIP)
}

// etcdAddress is the lasting address of etcd; the zero Addr when there is none.
func etcdAddress(machine *infrav1.TalosMachine) netip.Addr {
	address, err := netip.ParseAddr(machine.Spec.Pod.EtcdAddress)
	if err != nil {
		return netip.Addr{}
	}

	return address
}
