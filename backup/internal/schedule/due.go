package schedule

import "time"

// maxMissed is how many missed times are counted.
const maxMissed = 100

// Due is what a schedule asks for now.
type Due struct {
	// At is the time of the schedule for which a backup is to begin; zero means none.
	At time.Time
	// Missed counts the times before At that went by without a backup, 100 at most.
	Missed int
	// Next is the time to look again.
	Next time.Time
}

// leeway is by how much clocks differ at most that are right.
const leeway = 24 * time.Hour

// IsAhead reports whether a time that was recorded is so much later than now that the clock
// was wrong then, or is now.
func IsAhead(recorded, now time.Time) bool { return recorded.Sub(now) > leeway }

// Due judges a schedule at a moment: since is the time of the last backup that was begun,
// or that of the creation of the schedule. Every time is due jitter later than clocks show
// it. Only the newest time is caught up with, and none that is older than the deadline; a
// deadline of 0 means none.
func (s *Schedule) Due(since, now time.Time, jitter, deadline time.Duration) Due {
	now = now.Add(-jitter)
	due := Due{Next: s.Next(now).Add(jitter)}
	newest := s.last(since, now)
	if newest.IsZero() {
		return due
	}
	for at := s.Next(since); at.Before(newest) && due.Missed < maxMissed; at = s.Next(at) {
		due.Missed++
	}
	if deadline > 0 && now.Sub(newest) > deadline {
		due.Missed = min(due.Missed+1, maxMissed)
		return due
	}
	due.At = newest

	return due
}

// last is the newest time that is due after one time and not after another; zero where
// there is none. It looks back in steps that double, so that neither a schedule of every
// minute nor one of every year takes long.
func (s *Schedule) last(after, until time.Time) time.Time {
	for back := time.Minute; ; back *= 2 {
		from := until.Add(-back)
		if from.Before(after) {
			from = after
		}
		if found := s.Next(from); !found.IsZero() && !found.After(until) {
			return s.newest(found, until)
		}
		if !from.After(after) {
			return time.Time{}
		}
	}
}

// newest follows the schedule from a time at which it is due.
func (s *Schedule) newest(at, until time.Time) time.Time {
	for {
		next := s.Next(at)
		if next.IsZero() || next.After(until) {
			return at
		}
		at = next
	}
}
