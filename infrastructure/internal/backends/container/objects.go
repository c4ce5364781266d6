package container

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

// errNameConflict says that an object of a name that is ours belongs to somebody else.
type errNameConflict struct{ kind, name string }

// Error implements error.
func (e errNameConflict) Error() string { return e.kind + " " + e.name + " belongs to somebody else" }

// nameConflict says so in a condition.
func nameConflict(kind, name string) condition.Finding {
	return condition.Falsef(infrav1.NameConflictReason,
		"%s %s exists, and does not belong to this TalosMachine; nothing is done to it. Delete it, or the Machine, to go on", kind, name)
}

// errBeingDeleted says that an object of ours is being deleted, which is waited for.
type errBeingDeleted struct{ kind, name string }

// Error implements error.
func (e errBeingDeleted) Error() string { return e.kind + " " + e.name + " is being deleted" }

// errDataGone says that the volume claim of a machine that has had a Pod is gone, or is
// going.
var errDataGone = errors.New("the data of the machine is gone")

// createPod makes what the Pod needs, and then the Pod. That it may exist is
// recorded before.
func (m *Backend) createPod(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	scope.Observed.Claim = condition.False(infrav1.PodPreparingReason, "Making what the Pod needs")
	scope.Observed.Running = condition.False(infrav1.NotConfiguredReason, "The machine has no Pod yet")
	configuration, missing, err := m.configuration(ctx, scope)
	if err != nil {
		return ctrl.Result{}, err
	}
	// A machine that ran has its configuration on its volume.
	if !scope.Observed.Provisioned {
		if missing != "" {
			scope.Observed.Claim = condition.False(infrav1.WaitingForBootstrapDataReason, missing)
			return m.Pacing.Later(), nil
		}
		if unfit := m.unfit(scope, configuration); unfit != "" {
			scope.Observed.Claim = condition.False(infrav1.OverlayFailedReason, unfit)
			return m.Pacing.Later(), nil
		}
	}
	if allowed, err := m.observeAllowed(ctx, scope); err != nil {
		return ctrl.Result{}, err
	} else if !allowed {
		return m.Pacing.Refused(), nil
	}
	if err := m.recordIntent(ctx, scope); err != nil {
		return ctrl.Result{}, err
	}
	if current, err := m.isCurrent(ctx, scope.TalosMachine); err != nil || !current {
		return m.requeueStarting(), err
	}
	b := m.podBuilder(scope, missing != "")
	if ready, result, err := m.prepare(ctx, scope, b); err != nil || !ready {
		return result, err
	}
	pod := b.pod()
	err = m.Client.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		// The next reconciliation sees whose it is.
		return m.requeueStarting(), nil
	}
	if err != nil {
		return m.observeRefusal(scope, fmt.Errorf("creating Pod %s: %w", pod.Name, err))
	}

	return ctrl.Result{}, m.recordCreated(ctx, scope, pod)
}

// observeAllowed says why no Pod is made in the namespace: nobody allows that, or it is not
// known whether anybody does.
func (m *Backend) observeAllowed(ctx context.Context, scope *backends.Scope) (bool, error) {
	name := scope.TalosMachine.Namespace
	allowed, err := backends.AllowsPods(ctx, m.APIReader, name)
	switch {
	case err != nil:
		scope.Observed.Claim = condition.False(infrav1.PodPreparingReason,
			objects.Explain("Namespace "+name+" cannot be read, which has to ask for privileged Pods; it is tried again", err))
	case !allowed:
		scope.Observed.Claim = condition.False(infrav1.PodsNotAllowedReason, "The namespace does not ask for privileged Pods, which run as root on the nodes of the management cluster: "+backends.HowToAllowPods)
	}

	return allowed, err
}

// recordCreated records a Pod that was just created.
func (m *Backend) recordCreated(ctx context.Context, scope *backends.Scope, pod *corev1.Pod) error {
	machine := scope.TalosMachine
	ctrl.LoggerFrom(ctx).Info("Created the Pod of the machine", "Pod", klog.KObj(pod), "providerID", machine.Spec.ProviderID)
	event, note := infrav1.EventPodCreated, "Created Pod %s"
	if machine.Spec.Pod.UID != "" {
		event, note = infrav1.EventPodReplaced, "Made Pod %s again on its volume"
	}
	if err := m.bindPod(ctx, scope, pod); err != nil {
		return err
	}
	m.Recorder.Eventf(machine, pod, corev1.EventTypeNormal, event, "Create", note, pod.Name)
	scope.Observed.Claim = condition.False(infrav1.PodNotScheduledReason, "Waiting for the Pod to get a node")

	return nil
}

// isCurrent reports whether what was decided on is what is recorded: an old record
// would make another Pod after the one that was lost.
func (m *Backend) isCurrent(ctx context.Context, machine *infrav1.TalosMachine) (bool, error) {
	current := &infrav1.TalosMachine{}
	if err := m.APIReader.Get(ctx, client.ObjectKeyFromObject(machine), current); err != nil {
		return false, client.IgnoreNotFound(err)
	}

	return current.UID == machine.UID && current.DeletionTimestamp.IsZero() && current.Spec.Pod == machine.Spec.Pod, nil
}

// prepare makes what the Pod needs; it reports whether all of it is there.
func (m *Backend) prepare(ctx context.Context, scope *backends.Scope, b podBuilder) (bool, ctrl.Result, error) {
	if b.controlPlane {
		if err := m.ensureEtcdService(ctx, scope, b); err != nil {
			result, err := m.observeRefusal(scope, err)
			return false, result, err
		}
	}
	switch err := m.ensureClaim(ctx, b); {
	case errors.Is(err, errDataGone):
		result, err := m.losePod(ctx, scope, podFacts{machine: b.machine, dataGone: true})
		return false, result, err
	case err != nil:
		result, err := m.observeRefusal(scope, err)
		return false, result, err
	}
	if b.fromVolume || scope.Observed.Provisioned {
		return true, ctrl.Result{}, nil
	}

	done, result, err := m.prepareUserData(ctx, scope, b)
	if found := scope.Observed.Configuration; !done && found.Status == metav1.ConditionFalse {
		// There is no Pod because of that.
		scope.Observed.Claim = found
	}

	return done, result, err
}

// ensureClaim makes the claim of a machine that never had a Pod. That of another machine is
// only read: made again, it would be empty.
func (m *Backend) ensureClaim(ctx context.Context, b podBuilder) error {
	if isEphemeral(b.machine) {
		return nil
	}
	if b.machine.Spec.Pod.Progress == infrav1.PodCreating {
		_, err := ensure(ctx, m, b.machine, b.claim(), &corev1.PersistentVolumeClaim{})
		return err
	}
	claim, err := m.dataClaim(ctx, b.machine)
	switch {
	case err != nil:
		return err
	case claim == nil:
		return errDataGone
	case !metav1.IsControlledBy(claim, b.machine):
		return errNameConflict{kind: objects.KindOf(claim), name: claim.Name}
	}

	return nil
}

// dataClaim reads the claim with the data of a machine, live; nil when the data is gone. One
// that is being deleted goes as soon as no Pod uses it, and cannot be kept.
func (m *Backend) dataClaim(ctx context.Context, machine *infrav1.TalosMachine) (*corev1.PersistentVolumeClaim, error) {
	claim, name := &corev1.PersistentVolumeClaim{}, machine.Name+infrav1.DataClaimSuffix
	err := m.APIReader.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: name}, claim)
	if apierrors.IsNotFound(err) || (err == nil && (!claim.DeletionTimestamp.IsZero() || claim.Status.Phase == corev1.ClaimLost)) {
		return nil, nil //nolint:nilnil // Documented above.
	}
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s: %w", name, err)
	}

	return claim, nil
}

// prepareUserData makes the Secret that the Pod starts with: a kubelet that finds it at
// once need not try again. Where that waits for the node of the Pod, it reports whether
// the configuration can be run.
func (m *Backend) prepareUserData(ctx context.Context, scope *backends.Scope, b podBuilder) (bool, ctrl.Result, error) {
	if !needsNode(b.machine) {
		return m.reconcileUserData(ctx, scope, b, nil)
	}
	userData, result, err := m.overlaid(ctx, scope, b, nil)

	return userData != nil, result, err
}

// recordIntent records the provider ID, and that there may be a Pod.
func (m *Backend) recordIntent(ctx context.Context, scope *backends.Scope) error {
	machine := scope.TalosMachine
	if machine.Spec.ProviderID != "" && machine.Spec.Pod.Progress != "" {
		return nil
	}
	providerID := machine.Spec.ProviderID
	if providerID == "" {
		var err error
		if providerID, err = backends.MintProviderID(m.Random); err != nil {
			return err
		}
	}

	return backends.Record(ctx, m.Client, machine, func(spec *infrav1.TalosMachineSpec) {
		spec.ProviderID = providerID
		if spec.Pod.Progress == "" {
			spec.Pod.Progress = infrav1.PodCreating
		}
	})
}

// ensureEtcdService makes the Service of the machine's etcd, or mends it, and records
// its address.
func (m *Backend) ensureEtcdService(ctx context.Context, scope *backends.Scope, b podBuilder) error {
	recorded, wanted := b.machine.Spec.Pod.EtcdAddress, b.etcdService()
	service, err := ensure(ctx, m, b.machine, wanted, &corev1.Service{})
	if err != nil {
		return err
	}
	if mended, differs := endpoint.Updated(service, wanted); differs {
		if err := objects.Patch(ctx, m.Client, service, mended); err != nil {
			return fmt.Errorf("mending Service %s: %w", service.Name, err)
		}
		service = mended
	}
	address := service.Spec.ClusterIP
	switch {
	case address == "" || address == corev1.ClusterIPNone || (recorded != "" && recorded != address):
		return errAddressLost{name: service.Name, recorded: recorded, found: address}
	case recorded == address:
		return nil
	}

	return backends.Record(ctx, m.Client, scope.TalosMachine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.EtcdAddress = address })
}

// errAddressLost says that a Service has another address than the one that is
// recorded.
type errAddressLost struct{ name, recorded, found string }

// Error implements error.
func (e errAddressLost) Error() string {
	if e.recorded == "" {
		return fmt.Sprintf("Service %s has no address: delete it, so that it is made again with one", e.name)
	}

	return fmt.Sprintf("The address of Service %s is %q, but etcd of the cluster knows the machine at %s: delete the Service, so that it is made again with that address",
		e.name, e.found, e.recorded)
}

// ensure creates an object of the machine, unless it is there, and returns what is
// there then; found is where that is read to. It is looked for first: the API server
// refuses a second Service that asks for an address before it says that the name is
// in use.
func ensure[T client.Object](ctx context.Context, m *Backend, machine *infrav1.TalosMachine, wanted, found T) (T, error) {
	kind, name := objects.KindOf(wanted), wanted.GetName()
	err := m.APIReader.Get(ctx, client.ObjectKeyFromObject(wanted), found)
	switch {
	case apierrors.IsNotFound(err):
		if err := m.Client.Create(ctx, wanted); err != nil {
			return wanted, fmt.Errorf("creating %s %s: %w", kind, name, err)
		}
		return wanted, nil
	case err != nil:
		return found, fmt.Errorf("reading %s %s: %w", kind, name, err)
	case !metav1.IsControlledBy(found, machine):
		return found, errNameConflict{kind: kind, name: name}
	case !found.GetDeletionTimestamp().IsZero():
		return found, errBeingDeleted{kind: kind, name: name}
	}

	return found, nil
}

// removePodFinalizer takes our finalizer off a Pod.
func (m *Backend) removePodFinalizer(ctx context.Context, pod *corev1.Pod) error {
	before := pod.DeepCopy()
	if !controllerutil.RemoveFinalizer(pod, infrav1.TalosPodFinalizer) {
		return nil
	}
	if err := objects.Patch(ctx, m.Client, before, pod); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("letting Pod %s go: %w", pod.Name, err)
	}

	return nil
}

// storageProblem says why the claim of a machine has no volume; empty when nothing
// is known against it.
func (m *Backend) storageProblem(ctx context.Context, machine *infrav1.TalosMachine) (string, error) {
	if isEphemeral(machine) {
		return "", nil
	}
	claim := &corev1.PersistentVolumeClaim{}
	err := m.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: machine.Name + infrav1.DataClaimSuffix}, claim)
	if err != nil || claim.Status.Phase == corev1.ClaimBound {
		return "", client.IgnoreNotFound(err)
	}
	if claim.Status.Phase == corev1.ClaimLost {
		return fmt.Sprintf("PersistentVolumeClaim %s has lost its volume, and with it the data of the machine: delete the Machine", claim.Name), nil
	}
	name := claim.Spec.StorageClassName
	if name == nil || *name == "" {
		return fmt.Sprintf("PersistentVolumeClaim %s is not bound, and the management cluster has no default StorageClass: make one the default, or name one in spec.container.storage.volumeClaim of a new template", claim.Name), nil
	}
	err = m.APIReader.Get(ctx, client.ObjectKey{Name: *name}, &storagev1.StorageClass{})
	if apierrors.IsNotFound(err) {
		return fmt.Sprintf("StorageClass %s of PersistentVolumeClaim %s does not exist: create it, or name another one in a new template", *name, claim.Name), nil
	}
	if err != nil {
		return "", fmt.Errorf("reading StorageClass %s: %w", *name, err)
	}

	return "", nil
}
