package controllers

import (
	"context"
	"errors"
	"fmt"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// errIntentChanged says that the record is not, or not any more, what the
// decision rests on.
var errIntentChanged = errors.New("the bootstrap intent has changed meanwhile")

// recordIntent records the Machine of the decision as the one on which etcd is
// bootstrapped, or was. With it the bundle is recorded that the cluster is made
// with. The override that allowed the record, if any, is used up.
func (r *Reconciler) recordIntent(ctx context.Context, s *scope) error {
	initialized := s.decision.Action == plan.RecordInitialized
	bootstrapped := initialized || s.decision.Action == plan.RecordBootstrapped
	machine := s.machine(s.decision.Machine)
	if machine == nil || machine.Spec.ProviderID == "" || s.bundle == nil {
		return fmt.Errorf("recording the bootstrap intent for Machine %s: %w", s.decision.Machine, errIntentChanged)
	}
	restore := s.facts.Restore.ID
	if intent := s.intent(); bootstrapped && intent != nil {
		restore = intent.Restore // By what it was bootstrapped.
	}
	value, err := writeRecord(controlplanev1.BootstrapIntent{
		Kind:         "Machine",
		Namespace:    machine.Namespace,
		Name:         machine.Name,
		ProviderID:   machine.Spec.ProviderID,
		Bootstrapped: bootstrapped,
		// A record that was lost is written anew with what is known besides.
		Initialized: initialized || (bootstrapped || restore != "") && s.facts.Initialized,
		Restore:     restore,
	})
	if err != nil {
		return fmt.Errorf("encoding the bootstrap intent: %w", err)
	}
	annotations := map[string]string{
		controlplanev1.BootstrapIntentAnnotation: value,
		controlplanev1.BundleDigestAnnotation:    s.bundle.Digest(),
	}
	override := s.controlPlane.Annotations[controlplanev1.BootstrapOverrideAnnotation]
	if !bootstrapped && override != "" {
		annotations[controlplanev1.BootstrapOverrideAnnotation] = ""
	}
	if err := r.annotate(ctx, s, annotations); err != nil {
		return fmt.Errorf("recording the bootstrap intent for Machine %s: %w", machine.Name, err)
	}

	r.tellIntent(ctx, s, machine.Name, restore, override)

	return nil
}

// tellIntent says what was recorded of a Machine, in the log and in an event.
func (r *Reconciler) tellIntent(ctx context.Context, s *scope, machine, restore, override string) {
	log := ctrl.LoggerFrom(ctx).WithValues("Machine", logMachine(s, machine))
	switch {
	case s.decision.Action == plan.RecordInitialized:
		log.Info("Recorded that the API server has answered")
		r.event(s, normal, "ControlPlaneInitialized", "RecordInitialized", "The API server answers at the control plane endpoint")
	case s.decision.Action == plan.RecordBootstrapped:
		log.Info("Recorded that etcd is bootstrapped")
		r.event(s, normal, "EtcdBootstrapped", "RecordBootstrapped", "etcd runs on Machine %s", machine)
	case restore != "":
		log.Info("Recorded where etcd will be restored")
		r.event(s, normal, "BootstrapIntentRecorded", "RecordBootstrapIntent", "etcd will be restored on Machine %s", machine)
	case override != "":
		log.Info("Recorded where etcd will be bootstrapped, as a person has allowed")
		r.event(s, warning, "BootstrapIntentRenamed", "RecordBootstrapIntent", "etcd will be bootstrapped anew on Machine %s, as the annotation says", machine)
	default:
		log.Info("Recorded where etcd will be bootstrapped")
		r.event(s, normal, "BootstrapIntentRecorded", "RecordBootstrapIntent", "etcd will be bootstrapped on Machine %s", machine)
	}
}

// intended is the Machine of the decision, when the record still names it and etcd was
// not seen running there. The record is read live: a stale cache must not revive an
// intent that was renamed, or one from before a restore.
func (r *Reconciler) intended(ctx context.Context, s *scope) (*clusterv1.Machine, error) {
	machine := s.machine(s.decision.Machine)
	live := &controlplanev1.TalosControlPlane{}
	if err := r.liveGet(ctx, client.ObjectKeyFromObject(s.controlPlane), live); err != nil {
		return nil, fmt.Errorf("reading the bootstrap intent: %w", err)
	}
	intent, restore := bootstrapIntent(live), restoreOf(live, s.initialized())
	if machine == nil || restore != s.facts.Restore || intent == nil || intent.Bootstrapped || live.UID != s.controlPlane.UID || !live.DeletionTimestamp.IsZero() ||
		intent.Name != machine.Name || intent.ProviderID != machine.Spec.ProviderID {
		return nil, errIntentChanged
	}

	return machine, nil
}

// bootstrap begins an etcd without data on the recorded Machine.
func (r *Reconciler) bootstrap(ctx context.Context, s *scope) error {
	return r.bootstrapBy(ctx, s, talosclient.Node.Bootstrap)
}

// restoreEtcd bootstraps etcd on the recorded Machine from the snapshot that its node was
// sent.
func (r *Reconciler) restoreEtcd(ctx context.Context, s *scope) error {
	return r.bootstrapBy(ctx, s, talosclient.Node.BootstrapFromSnapshot)
}

// bootstrapBy bootstraps etcd on the recorded Machine by a call. Its node is looked at once
// more on the connection by which it is asked: each call stops etcd, and one that finds data
// after that leaves it stopped.
func (r *Reconciler) bootstrapBy(ctx context.Context, s *scope, call func(talosclient.Node, context.Context) error) error {
	machine, err := r.intended(ctx, s)
	if err != nil {
		return fmt.Errorf("bootstrapping etcd on Machine %s: %w", s.decision.Machine, err)
	}
	node, err := r.connectAsAdmin(ctx, s, machine)
	if err != nil {
		return fmt.Errorf("bootstrapping etcd on Machine %s: %w", machine.Name, err)
	}
	defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
	log := ctrl.LoggerFrom(ctx).WithValues("Machine", logMachine(s, machine.Name))
	if health.LookAtEtcd(ctx, node).Data != health.EtcdDataAbsent {
		log.Info("Not asking the node to bootstrap etcd: it does not wait for that any more")
		return nil
	}

	switch err := call(node, ctx); {
	case err == nil:
		r.bootstraps.Note(nodes.KeyOf(machine), health.LookAtEtcd(ctx, node).Service)
	case errors.Is(err, talosclient.ErrAlreadyBootstrapped):
	case errors.Is(err, talosclient.ErrBootstrapRefused):
		return fmt.Errorf("bootstrapping etcd on Machine %s: %w", machine.Name, err)
	default: // It may have been carried out.
		r.bootstraps.Note(nodes.KeyOf(machine), talosclient.Service{})
		return fmt.Errorf("bootstrapping etcd on Machine %s: %w", machine.Name, err)
	}
	log.Info("Asked the node to bootstrap etcd")
	r.event(s, normal, "EtcdBootstrapRequested", "Bootstrap", "Asked the node of Machine %s to bootstrap etcd", machine.Name)

	return nil
}

// restartNode boots the node anew on which a bootstrap has left etcd stopped: Talos
// lets nobody start that service (its APIStartAllowed is for extensions and the kubelet
// alone). One that is about to boot has stopped etcd itself.
func (r *Reconciler) restartNode(ctx context.Context, s *scope) error {
	machine, err := r.intended(ctx, s)
	if err != nil {
		return fmt.Errorf("restarting the node of Machine %s: %w", s.decision.Machine, err)
	}
	node, err := r.connectAsAdmin(ctx, s, machine)
	if err != nil {
		return fmt.Errorf("restarting the node of Machine %s: %w", machine.Name, err)
	}
	defer func() { _ = node.Close() }() // Closing gives the connection back; there is nothing to lose.
	status, err := node.MachineStatus(ctx)
	if err != nil {
		return fmt.Errorf("restarting the node of Machine %s: %w", machine.Name, err)
	}
	found := health.LookAtEtcd(ctx, node)
	isUp := status.Stage == talosclient.StageBooting || status.Stage == talosclient.StageRunning
	if !isUp || found.Data != health.EtcdDataPresent || !found.Service.WasStopped() {
		return nil
	}
	r.restarts.Note(nodes.KeyOf(machine), found.Service)
	if err := node.Restart(ctx); err != nil {
		return fmt.Errorf("restarting the node of Machine %s: %w", machine.Name, err)
	}
	ctrl.LoggerFrom(ctx).Info("Restarting the node, on which etcd was stopped while it was bootstrapped", "Machine", logMachine(s, machine.Name))
	r.event(s, warning, "NodeRestarted", "RestartNode", "%s", s.decision.Message)

	return nil
}
