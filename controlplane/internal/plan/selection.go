package plan

import (
	"cmp"
	"slices"
)

// selectMachineForDeletion is the Machine to delete next: the first kind of which there is one
// of outdated and marked, marked, outdated and unhealthy, outdated, unhealthy,
// any. Of that kind the leader of etcd goes last, a Machine of the failure
// domain with the most Machines first, and of these the oldest.
func selectMachineForDeletion(facts Facts) MachineFacts {
	candidates := facts.staying()
	for _, preferred := range []func(MachineFacts) bool{
		func(m MachineFacts) bool { return m.Outdated && m.Marked },
		func(m MachineFacts) bool { return m.Marked },
		func(m MachineFacts) bool { return m.Outdated && !m.healthy() },
		func(m MachineFacts) bool { return m.Outdated },
		func(m MachineFacts) bool { return !m.healthy() },
	} {
		if slices.ContainsFunc(candidates, preferred) {
			candidates = slices.DeleteFunc(candidates, func(m MachineFacts) bool { return !preferred(m) })
			break
		}
	}
	perDomain := map[string]int{}
	for _, machine := range facts.staying() {
		perDomain[machine.FailureDomain]++
	}
	leads := func(m MachineFacts) int {
		if m.MemberID != 0 && m.MemberID == facts.Etcd.Leader {
			return 1
		}
		return 0
	}

	return slices.MinFunc(candidates, func(a, b MachineFacts) int {
		return cmp.Or(
			cmp.Compare(leads(a), leads(b)),
			cmp.Compare(perDomain[b.FailureDomain], perDomain[a.FailureDomain]),
			a.Created.Compare(b.Created),
			cmp.Compare(a.Name, b.Name),
		)
	})
}
