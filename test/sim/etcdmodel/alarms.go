package etcdmodel

import "slices"

// The alarms of etcd.
const (
	// NoSpace says that a member's database has grown beyond its quota. While any
	// member has it, all refuse what would write keys. Changes of the membership
	// are no such writes, and deletions are not either
	// (server/etcdserver/apply/apply.go of etcd v3.6.16, applierV3Capped).
	NoSpace = "NOSPACE"
	// Corrupt says that a member's data differs from that of others. All refuse
	// whatever is applied to keys (apply/apply.go, applierV3Corrupt).
	Corrupt = "CORRUPT"
)

// Alarm is an alarm that a member has raised.
type Alarm struct {
	Member uint64
	Kind   string
}

// Raise raises an alarm, which takes a quorum. It stays until it is disarmed,
// also when its member is no longer one: removing a member does not look at the
// alarms (server/etcdserver/server.go, applyConfChange).
func (c *Cluster) Raise(alarm Alarm) error {
	if c.leader == 0 {
		return ErrNoLeader
	}
	if !slices.Contains(c.alarms, alarm) {
		c.alarms = append(c.alarms, alarm)
	}
	return nil
}

// Disarm ends the alarms of a member, which takes a quorum.
func (c *Cluster) Disarm(member uint64) error {
	if c.leader == 0 {
		return ErrNoLeader
	}
	c.alarms = slices.DeleteFunc(c.alarms, func(alarm Alarm) bool { return alarm.Member == member })
	return nil
}

// Alarms are the alarms of all members.
func (c *Cluster) Alarms() []Alarm { return slices.Clone(c.alarms) }

// Writable reports whether keys can be written: there is a quorum, and no alarm.
func (c *Cluster) Writable() bool { return c.leader != 0 && len(c.alarms) == 0 }
