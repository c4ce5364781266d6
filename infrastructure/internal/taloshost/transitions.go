package taloshost

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// check is the rule of a transition, if a host may make it now.
func check(host *infrav1.TalosHost, name string) error {
	rule := ruleOf(name)
	if !rule.Allows(host) {
		return &RefusedError{Transition: name, Phase: PhaseOf(host), Host: host.Name}
	}

	return nil
}

// RefusedError is a change of the records of a host that the table does not allow in
// the phase in which the host is.
type RefusedError struct {
	// Transition is the name of the change.
	Transition string
	// Phase is that of the host.
	Phase Phase
	// Host is the name of the host.
	Host string
}

// Error implements error.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("the records of TalosHost %s allow no %s in phase %s", e.Host, e.Transition, e.Phase)
}

// Claim gives a free host to a TalosMachine.
func Claim(host *infrav1.TalosHost, machine *infrav1.TalosMachine) error {
	if err := check(host, "Claim"); err != nil {
		return err
	}
	host.Spec.ConsumerRef = infrav1.ConsumerReference{
		Kind: infrav1.TalosMachineKind, Namespace: machine.Namespace, Name: machine.Name, UID: string(machine.UID), ProviderID: machine.Spec.ProviderID,
	}
	controllerutil.AddFinalizer(host, infrav1.TalosHostFinalizer)

	return nil
}

// RenewClaim records the UID that the consumer has since a move.
func RenewClaim(host *infrav1.TalosHost, machine *infrav1.TalosMachine) error {
	if err := check(host, "RenewClaim"); err != nil {
		return err
	}
	host.Spec.ConsumerRef.UID = string(machine.UID)

	return nil
}

// GiveBack makes a host free that was never configured for its consumer, or is proven
// wiped since.
func GiveBack(host *infrav1.TalosHost, now time.Time) error {
	if err := check(host, "GiveBack"); err != nil {
		return err
	}
	rememberWipe(host, host.Spec.ConsumerRef.ProviderID, now)
	clearConsumer(host)

	return nil
}

// clearConsumer takes away what a host records for its consumer.
func clearConsumer(host *infrav1.TalosHost) {
	host.Spec.ConsumerRef = infrav1.ConsumerReference{}
	host.Spec.Reprovision = infrav1.HostReprovision{}
	setBlockMove(host, false)
}

// Disown makes a host free that knows nothing of the machine that its consumer has had:
// nothing is proven of that one.
func Disown(host *infrav1.TalosHost) error {
	if err := check(host, "Disown"); err != nil {
		return err
	}
	clearConsumer(host)

	return nil
}

// RecordHandover records that the machine is about to be given a configuration, and in
// which boot. What it is given is not wiped any more.
func RecordHandover(host *infrav1.TalosHost, handover infrav1.HostHandover) error {
	if err := check(host, "RecordHandover"); err != nil {
		return err
	}
	host.Spec.Handover = handover
	forgetWipe(host, handover.ProviderID)
	setBlockMove(host, true)

	return nil
}

// TakeBackHandover takes a hand-over back that was recorded just now, and of which nothing was
// sent: the records are again what they were before.
func TakeBackHandover(host, before *infrav1.TalosHost) error {
	if err := check(host, "TakeBackHandover"); err != nil {
		return err
	}
	host.Spec.Handover = infrav1.HostHandover{}
	host.Spec.Wiped = before.Spec.Wiped
	setBlockMove(host, metav1.HasAnnotation(before.ObjectMeta, infrav1.BlockMoveAnnotation))

	return nil
}

// MarkRan records that the machine was seen running with its configuration: it is never
// given one again by itself.
func MarkRan(host *infrav1.TalosHost) error {
	if err := check(host, "MarkRan"); err != nil {
		return err
	}
	host.Spec.Handover.Progress = infrav1.HandoverRan
	setBlockMove(host, false)

	return nil
}

// RequestRelease asks for the wipe of the machine. Of a wipe that has begun for the sake
// of another hand-over the orders are kept, and that hand-over is off.
func RequestRelease(host *infrav1.TalosHost, release infrav1.HostRelease) error {
	if err := check(host, "RequestRelease"); err != nil {
		return err
	}
	begun := host.Spec.Release
	release.ResetAt, release.ResetCertFingerprint, release.Volumes = begun.ResetAt, begun.ResetCertFingerprint, begun.Volumes
	host.Spec.Release = release
	host.Spec.Reprovision = infrav1.HostReprovision{}
	host.Spec.MaintenanceCertFingerprint = ""
	setBlockMove(host, true)

	return nil
}

// BeginReprovision asks for the wipe of the machine, to be given its configuration
// again.
func BeginReprovision(host *infrav1.TalosHost, cluster string, timeoutSeconds *int32, now time.Time) error {
	if err := check(host, "BeginReprovision"); err != nil {
		return err
	}
	host.Spec.Reprovision = infrav1.HostReprovision{ClusterName: cluster, Previous: host.Spec.Handover}
	host.Spec.Release = infrav1.HostRelease{
		Policy: infrav1.ReleaseWipeSystem, RequestedAt: metav1.NewTime(now), TimeoutSeconds: timeoutSeconds,
	}
	host.Spec.MaintenanceCertFingerprint = ""
	setBlockMove(host, true)

	return nil
}

// FinishReprovision records that the machine runs again.
func FinishReprovision(host *infrav1.TalosHost) error {
	if err := check(host, "FinishReprovision"); err != nil {
		return err
	}
	host.Spec.Reprovision = infrav1.HostReprovision{}

	return nil
}

// Adopt asks for the wipe of a machine that somebody else has configured. Only one of
// the given identity is wiped.
func Adopt(host *infrav1.TalosHost, identity infrav1.HostIdentity, now time.Time) error {
	if err := check(host, "Adopt"); err != nil {
		return err
	}
	host.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: metav1.NewTime(now), Identity: identity}
	setBlockMove(host, true)

	return nil
}

// RecordReset records that the machine is about to be told to wipe itself, what it
// presents itself with, and which volumes are to be gone then.
func RecordReset(host *infrav1.TalosHost, fingerprint string, volumes []string, now time.Time) error {
	if err := check(host, "RecordReset"); err != nil {
		return err
	}
	release := &host.Spec.Release
	release.ResetAt, release.ResetCertFingerprint = metav1.NewTime(now), fingerprint
	release.Volumes = union(release.Volumes, volumes)
	delete(host.Annotations, infrav1.HostRetryAnnotation)
	// Another management cluster must not count from an order that was not given.
	setBlockMove(host, true)

	return nil
}

// StopWaiting lets the consumer of a host go that is not proven wiped. The records are
// in the spec: the release goes on wherever the host is.
func StopWaiting(host *infrav1.TalosHost) error {
	if err := check(host, "StopWaiting"); err != nil {
		return err
	}
	host.Spec.ConsumerRef = infrav1.ConsumerReference{}
	setBlockMove(host, false)

	return nil
}

// EndRelease makes a host free whose machine is proven wiped. One that an unhealthy
// Machine has had goes into quarantine.
func EndRelease(host *infrav1.TalosHost, now time.Time) error {
	if err := check(host, "EndRelease"); err != nil {
		return err
	}
	if host.Spec.Release.ConsumerHealth == infrav1.ConsumerUnhealthy {
		host.Spec.Quarantine = infrav1.HostQuarantine{Since: metav1.NewTime(now)}
	}
	recordWiped(host, now)
	host.Spec.ConsumerRef = infrav1.ConsumerReference{}
	setBlockMove(host, false)

	return nil
}

// ReturnWiped leaves a machine that is proven wiped to its consumer, which gives it its
// configuration again.
func ReturnWiped(host *infrav1.TalosHost, now time.Time) error {
	if err := check(host, "ReturnWiped"); err != nil {
		return err
	}
	recordWiped(host, now)

	return nil
}

func recordWiped(host *infrav1.TalosHost, now time.Time) {
	rememberWipe(host, host.Spec.Handover.ProviderID, now)
	host.Spec.Handover = infrav1.HostHandover{}
	host.Spec.Release = infrav1.HostRelease{}
	delete(host.Annotations, infrav1.HostRetryAnnotation)
}

// EndQuarantine lets a free host be claimed again before its time.
func EndQuarantine(host *infrav1.TalosHost) error {
	if err := check(host, "EndQuarantine"); err != nil {
		return err
	}
	delete(host.Annotations, infrav1.HostRetryAnnotation)
	host.Spec.Quarantine = infrav1.HostQuarantine{}

	return nil
}

// AllowMove lets clusterctl move a host.
func AllowMove(host *infrav1.TalosHost) {
	setBlockMove(host, false)
}

// setBlockMove makes clusterctl wait with a move, or not any more.
func setBlockMove(host *infrav1.TalosHost, block bool) {
	if !block {
		delete(host.Annotations, infrav1.BlockMoveAnnotation)
		return
	}
	metav1.SetMetaDataAnnotation(&host.ObjectMeta, infrav1.BlockMoveAnnotation, "")
}

// rememberWipe records that nothing of a claim is left on the machine. It belongs into
// the update that takes the records of the claim away. An empty provider ID is a machine
// of somebody else, and is not remembered.
func rememberWipe(host *infrav1.TalosHost, providerID string, now time.Time) {
	if providerID == "" {
		return
	}
	forgetWipe(host, providerID)
	host.Spec.Wiped = slices.Insert(host.Spec.Wiped, 0, infrav1.HostWipe{ProviderID: providerID, ProvenAt: metav1.NewTime(now)})
	host.Spec.Wiped = host.Spec.Wiped[:min(len(host.Spec.Wiped), infrav1.MaxHostWipes)]
}

// forgetWipe takes that back. It belongs into the update that records that a
// configuration is about to be sent.
func forgetWipe(host *infrav1.TalosHost, providerID string) {
	host.Spec.Wiped = slices.DeleteFunc(host.Spec.Wiped, func(known infrav1.HostWipe) bool { return known.ProviderID == providerID })
	if len(host.Spec.Wiped) == 0 {
		host.Spec.Wiped = nil
	}
}

// union is what was recorded with earlier orders to wipe, and with this one: what an
// earlier one has not wiped is still to be looked for.
func union(recorded, made []string) []string {
	all := slices.Concat(recorded, made)
	slices.Sort(all)
	all = slices.Compact(all)

	return all[:min(len(all), infrav1.MaxReleaseVolumes)]
}
