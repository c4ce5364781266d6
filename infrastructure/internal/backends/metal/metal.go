// Package metal takes TalosHosts: machines that somebody else has booted into
// the maintenance mode of Talos (design D10).
//
// What must not be lost is in the specs of TalosMachine and TalosHost, and is
// written before the effect that it speaks of; every step looks first whether
// it was done.
package metal

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/machinewatch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/metrics"
	"github.com/capi-talos/capi-talos/infrastructure/internal/pacing"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost/probe"
)

// refusedRetryInterval is how often a configuration is tried again that Talos has refused,
// beside changes of the host.
const refusedRetryInterval = 5 * time.Minute

// Backend is the metal backend. All exported fields but ImageFactory are required.
type Backend struct {
	// Client reads from the cache of the management cluster, but Secrets live.
	Client client.Client
	// APIReader reads live.
	APIReader client.Reader
	// Dialer opens connections to Talos machines.
	Dialer talosclient.Dialer
	// Credentials gives out client certificates.
	Credentials *credentials.Store
	// Probes remembers when machines have answered.
	Probes *probe.Log
	// Counts counts claims and releases.
	Counts *metrics.Counts
	// Tracker watches configured machines.
	Tracker *machinewatch.Tracker
	// Clock tells the time.
	Clock clock.PassiveClock
	// Random picks hosts.
	Random requeue.Random
	// Recorder records events.
	Recorder events.EventRecorder
	// Pacing says when a machine is asked again.
	Pacing pacing.Pacing
	// ImageFactory is the host of the Image Factory from which installer images come;
	// empty means the one that has made what a machine has booted, else
	// DefaultImageFactory.
	ImageFactory string

	// applied remembers which boot of a machine has taken its configuration, and
	// when. It only saves calls: a new process asks again.
	applied sync.Map
	// reprovisioner begins to re-provision machines.
	reprovisioner backends.Reprovisioner
}

var _ backends.Backend = &Backend{}

// Reconcile implements backends.Backend.
func (m *Backend) Reconcile(ctx context.Context, scope *backends.Scope) (ctrl.Result, error) {
	defer backends.WarnOnNewProblem(m.Recorder, scope)

	data, result, err := m.reconcileBootstrapData(ctx, scope)
	if err != nil || data == nil {
		return result, err
	}
	host, result, err := m.reconcileClaim(ctx, scope, data)
	if err != nil || host == nil {
		return result, err
	}
	scope.Observed.FailureDomain = host.Spec.FailureDomain
	if taloshost.HasRunBefore(host) {
		// Set at the end: until it runs again, it counts as one that has not.
		defer func() { scope.Observed.Provisioned = true }()
	}
	host, again, err := m.reconcileReprovision(ctx, scope, host)
	if err != nil || host == nil {
		return again, err
	}
	if recordLost(scope.TalosMachine, host) {
		observeLostRecord(scope, host)
		return m.Pacing.Later(), nil
	}
	if host.Spec.Handover.ProviderID == "" {
		result, err = m.reconcileHandover(ctx, scope, host, data)
	} else {
		result, err = m.reconcileRunning(ctx, scope, host, data)
	}

	return util.LowestNonZeroResult(result, again), err
}

// paced asks again what has not come about since a condition is as it is: every
// least at first, then less and less. Another machine than the right one is
// somebody's to mend, and asked seldom.
func (m *Backend) paced(scope *backends.Scope, kind string, status metav1.ConditionStatus, least time.Duration) ctrl.Result {
	var since time.Time
	if found := conditions.Get(scope.TalosMachine, kind); found != nil && found.Status == status {
		since = found.LastTransitionTime.Time
	}
	for _, found := range []condition.Finding{scope.Observed.Configuration, scope.Observed.Running} {
		if found.Reason == infrav1.HostIdentityMismatchReason || found.Reason == infrav1.ForeignConfigurationReason {
			return m.Pacing.Wrong(since, least)
		}
	}

	return m.Pacing.Unreachable(since, least)
}

// runningHost is the host of a TalosMachine that has run, out of the cache; nil when the
// cache does not say so. What has run is changed by a release alone, so nothing is missed.
// That it has run stands on the TalosMachine too: where that is to be recorded, the host
// is read live, since a wipe may have been asked for that the cache has not heard of.
func (m *Backend) runningHost(ctx context.Context, machine *infrav1.TalosMachine) *infrav1.TalosHost {
	host := &infrav1.TalosHost{}
	ref := machine.Spec.HostRef
	if ref.Claim != infrav1.HostClaimBound || ref.Progress != infrav1.HostRan ||
		m.Client.Get(ctx, client.ObjectKey{Namespace: machine.Namespace, Name: ref.Name}, host) != nil {
		return nil
	}
	ran := host.Spec.Handover.ProviderID == machine.Spec.ProviderID && host.Spec.Handover.Progress == infrav1.HandoverRan
	if !ran || !taloshost.IsClaimedBy(host, machine) || host.Spec.Release.Policy != "" {
		return nil
	}

	return host
}

// getHost reads a host live. A host that does not exist is nil.
func (m *Backend) getHost(ctx context.Context, namespace, name string) (*infrav1.TalosHost, error) {
	host := &infrav1.TalosHost{}
	err := m.APIReader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, host)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Documented above.
	}
	if err != nil {
		return nil, fmt.Errorf("reading TalosHost %s: %w", name, err)
	}

	return host, nil
}

// recordLost reports whether the machine of a TalosMachine has run, but that its host knows
// nothing of it: it is not the object that was there at the hand-over, and whoever
// answers at its addresses may be anybody. Where the configuration was only begun to be
// handed over, the machine may be followed, but is not configured again.
func recordLost(machine *infrav1.TalosMachine, host *infrav1.TalosHost) bool {
	return machine.Spec.HostRef.Progress == infrav1.HostRan && host.Spec.Handover.ProviderID == ""
}

// observeLostRecord says so. The machine, wherever it is, still has its configuration.
func observeLostRecord(scope *backends.Scope, host *infrav1.TalosHost) {
	scope.Observed.Provisioned = true
	scope.Observed.Configuration = appliedFinding(scope)
	scope.Observed.Running = condition.False(infrav1.HostRecordLostReason, "The machine has run, and TalosHost "+host.Name+
		" does not record what it was given: it was made anew, or restored from an old backup. Nothing is sent to whoever answers there; restore the TalosHost as it was, or delete the Machine")
}

// target is the machine behind a host.
func (m *Backend) target(host *infrav1.TalosHost) probe.Target {
	return probe.Target{
		Addresses: taloshost.AddressesOf(host),
		Identity:  taloshost.ExpectedIdentity(host),
		Ambiguous: m.hosts().AmbiguousUUIDs(host.Namespace),
	}
}

// hosts finds other hosts.
func (m *Backend) hosts() taloshost.Lookup {
	return taloshost.Lookup{Cached: m.Client, Live: m.APIReader}
}

// keyOf is the name of the TalosMachine in the Watcher.
func keyOf(machine *infrav1.TalosMachine) client.ObjectKey {
	return client.ObjectKeyFromObject(machine)
}
