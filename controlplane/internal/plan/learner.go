package plan

import "time"

// learnerPatience is how long etcd of a learner is up before it is given up. Talos has
// the others promote it for 10 minutes, and only in the start of etcd in which the node
// has joined (internal/app/machined/pkg/system/services/etcd.go, promoteMember).
const learnerPatience = 15 * time.Minute

// IsNeverPromoted reports whether the member of a Machine that stays is a learner, and stays
// one: nobody promotes it any more.
func (f Facts) IsNeverPromoted(name string) bool {
	for _, machine := range f.staying() {
		if machine.Name == name && machine.Answers && machine.EtcdUpFor >= learnerPatience {
			member, known := f.member(machine)
			return known && member.Learner && f.Etcd.HasQuorum()
		}
	}

	return false
}
