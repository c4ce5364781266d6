package controllers

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// otherRelease says that a Machine that is as wanted by its specification runs another
// Talos release than its TalosMachine asks for; empty when it does not. It is not up to
// date then, but nothing is replaced for that: what is made of the same template would
// be no better.
func otherRelease(s *scope, machine *clusterv1.Machine) string {
	found := conditions.Get(machine, clusterv1.MachineInfrastructureReadyCondition)
	if len(s.outdated[machine.Name]) > 0 || found == nil || found.Reason != infrav1.WrongReleaseReason {
		return ""
	}

	return found.Message
}

// upToDate counts the Machines that are.
func upToDate(s *scope) int {
	count := 0
	for _, machine := range s.machines {
		if len(s.outdated[machine.Name]) == 0 && otherRelease(s, machine) == "" {
			count++
		}
	}

	return count
}
