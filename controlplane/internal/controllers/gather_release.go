package controllers

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// otherRelease says that a Machine that is as wanted by its specification runs another
// Talos release than asked for; empty when it does not. It is not up to date then, but
// nothing is replaced for that: what is made of the same template would be no better.
func (r *Reconciler) otherRelease(s *scope, machine *clusterv1.Machine) string {
	if len(s.outdated[machine.Name]) > 0 {
		return ""
	}

	return r.infrastructure.OtherRelease(machine)
}

// upToDate counts the Machines that are.
func (r *Reconciler) upToDate(s *scope) int {
	count := 0
	for _, machine := range s.machines {
		if len(s.outdated[machine.Name]) == 0 && r.otherRelease(s, machine) == "" {
			count++
		}
	}

	return count
}
