package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends/metal"
	"github.com/capi-talos/capi-talos/infrastructure/internal/claim"
	"github.com/capi-talos/capi-talos/infrastructure/internal/contact"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/identity"
)

// reconcileFree looks at a machine that nobody has claimed.
func (r *HostReconciler) reconcileFree(ctx context.Context, s *hostScope) (ctrl.Result, error) {
	if metav1.HasAnnotation(s.host.ObjectMeta, infrav1.HostRetryAnnotation) {
		return ctrl.Result{}, r.endQuarantine(ctx, s)
	}
	hosts := &infrav1.TalosHostList{}
	if err := r.Client.List(ctx, hosts); err != nil {
		return ctrl.Result{}, fmt.Errorf("listing TalosHosts: %w", err)
	}
	answer := contact.Reach(ctx, r.Dialer, contact.Target{
		Addresses: contact.Addresses(s.host), Identity: identity.Wanted(s.host), Twice: identity.Twice(hosts.Items),
	})
	defer answer.Close()
	s.setReachable(answer.Outcome)
	s.setVerdict(answer.Verdict)

	switch answer.Outcome {
	case contact.InMaintenance:
		if err := r.observeMaintenance(ctx, s, answer); err != nil {
			ctrl.LoggerFrom(ctx).V(3).Info("The machine was lost while it was looked at", "reason", err.Error())
			s.silent()
			return r.after(r.ProbeInterval), nil
		}
		if other := duplicateOf(s.host, hosts.Items); other != "" {
			s.identity = isFalse(infrav1.IdentityDuplicateReason, "TalosHost %s stands for the same machine or names the same address; delete one of them", other)
			s.error(infrav1.HostIdentityReason, s.identity.Message)
		}
	case contact.Foreign:
		return r.reconcileForeign(ctx, s)
	case contact.WrongMachine:
		s.error(infrav1.HostIdentityReason, "Another machine than the host's answers at "+answer.Address)
	default:
		s.silent()
	}

	return r.after(r.ProbeInterval), nil
}

// observeMaintenance records what a machine in maintenance mode tells.
func (r *HostReconciler) observeMaintenance(ctx context.Context, s *hostScope, answer contact.Answer) error {
	version, err := answer.Node.Version(ctx)
	if err != nil {
		return err
	}
	status := &s.host.Status
	status.Address = answer.Address
	status.MaintenanceCertFingerprint = answer.Node.Fingerprint()
	status.Hardware = hardwareOf(answer.Hardware, version)
	s.state = infrav1.HostAvailable
	ends := claim.QuarantineEnds(s.host)
	switch {
	case ptr.Deref(s.host.Spec.Unschedulable, false):
		s.available = isFalse(infrav1.HostUnschedulableReason, "spec.unschedulable is set")
	case r.Clock.Now().Before(ends):
		s.available = isFalse(infrav1.HostQuarantinedReason, "An unhealthy Machine has given the host back; it is not claimed before %s. The annotation %s ends that",
			ends.UTC().Format("2006-01-02T15:04:05Z"), infrav1.HostRetryAnnotation)
	default:
		s.available = backends.True(infrav1.HostAvailableReason, "")
	}

	return nil
}

// endQuarantine does what the annotation of a person asks for.
func (r *HostReconciler) endQuarantine(ctx context.Context, s *hostScope) error {
	return r.update(ctx, s, func(host *infrav1.TalosHost) {
		delete(host.Annotations, infrav1.HostRetryAnnotation)
		host.Spec.Quarantine = infrav1.HostQuarantine{}
	})
}

// reconcileForeign handles a machine that somebody else has configured. It is
// wiped only when the user says so, and gives the credentials for it.
func (r *HostReconciler) reconcileForeign(ctx context.Context, s *hostScope) (ctrl.Result, error) {
	if s.host.Spec.AdoptionPolicy != infrav1.AdoptionWipeForeign {
		s.error(infrav1.HostForeignReason, "The machine was configured by somebody else, and is left alone. Reset it to maintenance mode, or set adoptionPolicy WipeForeign with its talosconfig")
		return r.after(r.ProbeInterval), nil
	}
	creds, err := r.Credentials.Adoption(ctx, s.host)
	if errors.Is(err, credentials.ErrMissing) {
		s.error(infrav1.HostForeignReason, "The machine was configured by somebody else; Secret "+s.host.Spec.AdoptionSecretRef.Name+" holds no talosconfig to wipe it with")
		return r.after(r.ProbeInterval), nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	answer := contact.Reach(ctx, r.Dialer, contact.Target{Addresses: contact.Addresses(s.host), Identity: identity.Wanted(s.host), Credentials: &creds})
	defer answer.Close()
	if answer.Outcome != contact.Configured {
		s.error(infrav1.HostForeignReason, "The machine was configured by somebody else, and does not accept the talosconfig of adoptionSecretRef")
		return r.after(r.ProbeInterval), nil
	}
	r.Recorder.Eventf(s.host, nil, corev1.EventTypeNormal, infrav1.EventAdopting, "Adopt", "Wiping a machine that somebody else has configured, as adoptionPolicy says")
	s.state = infrav1.HostReleasing

	return ctrl.Result{}, r.update(ctx, s, func(host *infrav1.TalosHost) {
		host.Spec.Release = infrav1.HostRelease{Policy: infrav1.ReleaseWipeSystem, RequestedAt: metav1.NewTime(r.Clock.Now())}
	})
}

// update changes the host as this pass has read it: if it was changed since,
// the pass was made on old facts, and is made again. The host of the scope stays
// as it was read, for the status.
func (r *HostReconciler) update(ctx context.Context, s *hostScope, change func(*infrav1.TalosHost)) error {
	changed := s.host.DeepCopy()
	if s.written != nil {
		changed = s.written.DeepCopy()
	}
	change(changed)
	if err := r.Client.Update(ctx, changed); err != nil {
		return fmt.Errorf("updating TalosHost %s: %w", changed.Name, err)
	}
	s.written = changed

	return nil
}

// duplicateOf names another host that stands for the same machine, or names the
// same address, and was there first; empty when there is none. A host that is in
// use always counts as first.
func duplicateOf(host *infrav1.TalosHost, others []infrav1.TalosHost) string {
	for i := range others {
		other := &others[i]
		if other.UID == host.UID || !isFirst(other, host) {
			continue
		}
		shared := slices.ContainsFunc(contact.Addresses(host), func(address string) bool {
			return slices.Contains(contact.Addresses(other), address)
		})
		if shared || identity.Same(identity.Told(host), identity.Told(other)) {
			return other.Namespace + "/" + other.Name
		}
	}

	return ""
}

func isFirst(a, b *infrav1.TalosHost) bool {
	if isInUse(a) != isInUse(b) {
		return isInUse(a)
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}

	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) < 0
}

func isInUse(host *infrav1.TalosHost) bool {
	return host.Spec.ConsumerRef.Name != "" || host.Spec.Handover.ProviderID != "" || host.Spec.Release.Policy != ""
}

func hardwareOf(told talosclient.Hardware, version string) infrav1.HostHardware {
	hardware := infrav1.HostHardware{
		TalosVersion: version, Platform: told.Platform, Architecture: told.Architecture,
		SystemUUID: told.SystemUUID, SerialNumber: told.SerialNumber, Manufacturer: told.Manufacturer, ProductName: told.ProductName,
	}
	if told.CPUs > 0 {
		hardware.CPUs = ptr.To(told.CPUs)
	}
	if told.MemoryBytes > 0 {
		hardware.MemoryBytes = ptr.To(told.MemoryBytes)
	}
	for _, disk := range told.Disks {
		if disk.ReadOnly || disk.CDROM {
			continue
		}
		hardware.Disks = append(hardware.Disks, infrav1.HostDisk{
			DevPath: disk.DevPath, SizeBytes: ptr.To(disk.SizeBytes), Model: disk.Model, Serial: disk.Serial, WWID: disk.WWID,
			Transport: disk.Transport, Rotational: ptr.To(disk.Rotational),
		})
	}
	for _, link := range told.Links {
		hardware.Links = append(hardware.Links, infrav1.HostLink{Name: link.Name, HardwareAddress: link.HardwareAddress})
	}

	return hardware
}

// isContainer tells whether the machine that answers is a container.
func isContainer(host *infrav1.TalosHost, told talosclient.Hardware) bool {
	return told.Mode == "container" || (told.Mode == "" && metal.IsContainer(host))
}
