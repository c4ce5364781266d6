// Package reprovision decides what the re-provisioning of a machine needs next
// (design D15). It is pure.
//
// The wish is an annotation on the TalosMachine. From before the release until
// the machine runs again there is a record on the TalosHost; the annotation is
// taken away while the record is still there, so that a wish is never carried
// out twice.
package reprovision

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

// Step is what to do next.
type Step string

const (
	// None does nothing: nobody has asked for it.
	None Step = "None"
	// Needless takes the wish away: the machine has no configuration, and gets it
	// anyway.
	Needless Step = "Needless"
	// Begin records on the host that the machine is re-provisioned, and asks for
	// its release, if Refuse has nothing against it.
	Begin Step = "Begin"
	// AwaitWipe waits for the proof that the machine is wiped.
	AwaitWipe Step = "AwaitWipe"
	// HandOver configures the machine again, and follows it until it runs.
	HandOver Step = "HandOver"
	// Finish takes the wish away, and then the record.
	Finish Step = "Finish"
)

// IsWanted reports whether somebody has asked for a machine to be re-provisioned.
func IsWanted(machine *infrav1.TalosMachine) bool {
	return metav1.HasAnnotation(machine.ObjectMeta, infrav1.ReprovisionAnnotation)
}

// IsDespiteOthers reports whether a person lets a machine be wiped whatever becomes of
// the other ones, and of etcd.
func IsDespiteOthers(machine *infrav1.TalosMachine) bool {
	return machine.Annotations[infrav1.ReprovisionAnnotation] == infrav1.ReprovisionDespiteOthers
}

// Next says what is next for a TalosMachine and the host that it has claimed.
func Next(machine *infrav1.TalosMachine, host *infrav1.TalosHost) Step {
	spec := &host.Spec
	switch {
	case taloshost.IsReprovisioned(host) && spec.Release.Policy != "":
		return AwaitWipe
	case taloshost.IsConfiguredAgain(host):
		return HandOver
	case taloshost.IsReprovisioned(host):
		return Finish
	case !IsWanted(machine):
		return None
	case spec.Handover.ProviderID == "":
		return Needless
	}

	return Begin
}

// Facts are what speaks for and against a beginning.
type Facts struct {
	// Machine is the TalosMachine, and Host its host, both as they are now.
	Machine *infrav1.TalosMachine
	Host    *infrav1.TalosHost
	// FromTemplate reports whether the annotation comes from a template.
	FromTemplate bool
	// HasData reports whether the machine configuration is there.
	HasData bool
	// Hosts are all hosts of the namespace, as they are now.
	Hosts []infrav1.TalosHost
	// Cluster is the name of the Cluster.
	Cluster string
}

// Refusal is why nothing is begun; its zero value is a yes.
type Refusal struct {
	// Reason is the reason of condition Reprovisioning.
	Reason string
	// Message says why, and the way out.
	Message string
}

// Refuse says what speaks against a beginning.
func Refuse(facts Facts) Refusal {
	other := otherUnderWay(facts)
	if other != "" {
		other = "that of TalosHost " + other
	}

	return refusal(facts.Machine, isGoing(facts), facts.FromTemplate, facts.HasData, other)
}

// refusal says what speaks against a beginning; other is another machine of the
// same Cluster that is being re-provisioned.
func refusal(machine *infrav1.TalosMachine, going, fromTemplate, hasData bool, other string) Refusal {
	switch {
	case going:
		return Refusal{
			Reason:  infrav1.ReprovisionGoingReason,
			Message: "The machine is not re-provisioned: its TalosMachine or TalosHost is being deleted, or was moved to another management cluster",
		}
	case fromTemplate:
		return Refusal{
			Reason: infrav1.ReprovisionFromTemplateReason,
			Message: "The machine is not re-provisioned, because its Machine has the annotation " + infrav1.ReprovisionAnnotation +
				" too: what a template sets would come back after each time. Take it out of the template, and put it on the TalosMachine alone",
		}
	case !hasData:
		return Refusal{
			Reason: infrav1.ReprovisionDataMissingReason,
			Message: "The machine is not wiped, because the Secret with the machine configuration, which it would get again, is missing; restore the Secret, or take the annotation " +
				infrav1.ReprovisionAnnotation + " away",
		}
	case other != "" && !IsDespiteOthers(machine):
		return Refusal{
			Reason: infrav1.ReprovisioningBlockedReason,
			Message: "The machine is not wiped, because " + other + " in the same Cluster is being re-provisioned; wait for it. " +
				"Where the cluster has no quorum left to lose, give the annotation " + infrav1.ReprovisionAnnotation + " the value " + infrav1.ReprovisionDespiteOthers,
		}
	}

	return Refusal{}
}

// RefuseForEtcd says what etcd has against the wipe of a control plane machine, by what
// the other ones say.
func RefuseForEtcd(others etcd.Health) Refusal {
	problems := others.WipeProblems()
	if len(problems) == 0 {
		return Refusal{}
	}
	return Refusal{
		Reason: infrav1.EtcdQuorumAtRiskReason,
		Message: "The machine is not wiped, because etcd cannot do without it: " + strings.Join(problems, ", ") + ". Mend the other control plane machines; " +
			"where the cluster has no quorum left to lose, give the annotation " + infrav1.ReprovisionAnnotation + " the value " + infrav1.ReprovisionDespiteOthers,
	}
}

// isGoing reports whether the TalosMachine or its host goes. Only what carries our
// finalizers is wiped: nothing else is sure to be found again.
func isGoing(facts Facts) bool {
	machine, host := facts.Machine, facts.Host

	return !machine.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(machine, infrav1.TalosMachineFinalizer) || taloshost.IsMoved(machine) ||
		!host.DeletionTimestamp.IsZero() || !controllerutil.ContainsFinalizer(host, infrav1.TalosHostFinalizer) || taloshost.IsMoved(host)
}

func otherUnderWay(facts Facts) string {
	for i := range facts.Hosts {
		host := &facts.Hosts[i]
		if host.Name != facts.Host.Name && taloshost.IsReprovisioned(host) && host.Spec.Reprovision.ClusterName == facts.Cluster {
			return host.Name
		}
	}

	return ""
}
