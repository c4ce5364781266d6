package reprovision

import (
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// PodFacts are what speaks for and against beginning to re-provision a machine in
// a Pod.
type PodFacts struct {
	// Machine is the TalosMachine as it is now, and Others are all of its Cluster.
	Machine *infrav1.TalosMachine
	Others  []infrav1.TalosMachine
	// FromTemplate reports whether the annotation comes from a template.
	FromTemplate bool
	// HasData reports whether the machine configuration is there.
	HasData bool
}

// RefusePod says what speaks against a beginning: the same as for a host.
func RefusePod(facts PodFacts) Refusal {
	machine := facts.Machine
	going := !machine.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(machine, infrav1.TalosMachineFinalizer) || taloshost.IsMoved(machine)
	other := ""
	for i := range facts.Others {
		if facts.Others[i].Name != machine.Name && IsPodUnderWay(&facts.Others[i]) {
			other = "TalosMachine " + facts.Others[i].Name
		}
	}

	return refusal(machine, going, facts.FromTemplate, facts.HasData, other)
}

// IsPodUnderWay reports whether a machine in a Pod is being re-provisioned: from before
// it is wiped until it runs again.
func IsPodUnderWay(machine *infrav1.TalosMachine) bool {
	switch machine.Spec.Pod.Progress {
	case infrav1.PodReprovisioning:
		return true
	case infrav1.PodCreating, infrav1.PodCreated:
		return IsWanted(machine) || ptr.Deref(machine.Status.Initialization.Provisioned, false)
	case infrav1.PodRan, infrav1.PodLost:
	}

	return false
}
