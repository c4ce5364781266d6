// Package schedule says when backups are due. A schedule is five fields of cron, matched
// against what clocks of its time zone show.
package schedule

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // The image of the manager has no database of time zones.

	"github.com/robfig/cron/v3"
)

const (
	// utc is the time zone of a schedule that names none.
	utc = "UTC"
	// local is what package time calls that of the machine.
	local = "Local"
)

// horizon is how far a schedule is followed for its next time: February 29th comes once in
// eight years where a century is no leap year.
const horizon = 8*366 + 1

// star is the bit that package cron sets in a field that takes any value, and steps of any.
const star = 1 << 63

// maxBack is more than clocks are ever set back by: a minute of a day is shown before
// those that are so much earlier.
const maxBack = 3 * time.Hour

// Schedule is a parsed schedule. It is safe for concurrent use.
type Schedule struct {
	fields *cron.SpecSchedule
	zone   *time.Location
}

// Parse reads an expression of five fields (minute, hour, day of month, month, day of
// week) and the name of a time zone in the IANA database; an empty name is UTC. It
// returns an error for a name that depends on the machine ("Local"), and for a schedule
// that is never due, as one of February 30th.
func Parse(expression, timeZone string) (*Schedule, error) {
	if strings.Contains(expression, "TZ=") {
		return nil, fmt.Errorf("schedule %q: a time zone is not part of the schedule, name it in timeZone", expression)
	}
	parsed, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", expression, err)
	}
	zone, err := location(timeZone)
	if err != nil {
		return nil, err
	}
	schedule := &Schedule{fields: parsed.(*cron.SpecSchedule), zone: zone} //nolint:forcetypeassert // Descriptors like @every, which are of another type, are not parsed.
	if schedule.Next(time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return nil, fmt.Errorf("schedule %q is never due", expression)
	}

	return schedule, nil
}

func location(name string) (*time.Location, error) {
	if name == "" {
		name = utc
	}
	if name == local {
		return nil, fmt.Errorf("timeZone %q depends on the machine, name one of the IANA database, as Europe/Berlin", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("timeZone %q is not in the IANA database: %w", name, err)
	}

	return zone, nil
}

// Zone is the time zone of the schedule.
func (s *Schedule) Zone() *time.Location { return s.zone }

// Next returns the first time after another at which the schedule is due, in UTC.
//
// A minute that clocks leave out, when they are set forward, is due at the moment at
// which they are: no day goes without its backup. A minute that they show twice, when
// they are set back, is due at both times if the schedule is of every hour, and else at
// the first one only. Those are the rules of cron(8).
func (s *Schedule) Next(after time.Time) time.Time {
	day := dayOf(after.In(s.zone)).plus(-1)
	for range horizon {
		// Clocks that are set back over midnight show the end of a day after the
		// beginning of the next one.
		found := earliest(s.dueOn(day, after), s.dueOn(day.plus(1), after))
		if !found.IsZero() {
			return found
		}
		day = day.plus(1)
	}

	return time.Time{}
}

// Interval is the longest time between two times at which the schedule is due, as long as
// no clocks are set.
func (s *Schedule) Interval() time.Duration {
	first, last, longest := s.minutes()
	former := time.Time{}
	for on, begin := 0, (date{2000, time.January, 1}); on < horizon; on++ {
		today := begin.plus(on)
		if !s.matches(today) {
			continue
		}
		midnight := today.at(0, 0, time.UTC)
		if !former.IsZero() {
			longest = max(longest, midnight.Add(first).Sub(former.Add(last)))
		}
		former = midnight
	}

	return longest
}

// minutes are the first and the last minute of a day at which the schedule is due, and the
// longest time between two of them.
func (s *Schedule) minutes() (first, last, longest time.Duration) {
	first = -1
	for at := time.Duration(0); at < 24*time.Hour; at += time.Minute {
		hour, minute := int(at/time.Hour), int(at%time.Hour/time.Minute)
		if s.fields.Hour&(1<<hour) == 0 || s.fields.Minute&(1<<minute) == 0 {
			continue
		}
		if first < 0 {
			first = at
		} else {
			longest = max(longest, at-last)
		}
		last = at
	}

	return first, last, longest
}

func earliest(first, second time.Time) time.Time {
	if first.IsZero() || !second.IsZero() && second.Before(first) {
		return second
	}

	return first
}

// dueOn returns the first time after another at which the schedule is due on a day; zero
// where there is none.
func (s *Schedule) dueOn(on date, after time.Time) time.Time {
	if !s.matches(on) {
		return time.Time{}
	}
	var first time.Time
	for hour := range 24 {
		if s.fields.Hour&(1<<hour) == 0 {
			continue
		}
		for minute := range 60 {
			if s.fields.Minute&(1<<minute) == 0 {
				continue
			}
			instants := s.instants(on, hour, minute)
			if !first.IsZero() && instants[0].Sub(first) > maxBack {
				return first
			}
			if s.fields.Hour&star == 0 {
				instants = instants[:1]
			}
			for _, due := range instants {
				if due.After(after) {
					first = earliest(first, due)
				}
			}
		}
	}

	return first
}

// matches reports whether the schedule is due on a day at all. A day has to match both
// fields of days if one of them takes any value, else one of them is enough.
func (s *Schedule) matches(on date) bool {
	day := on.at(12, 0, time.UTC)
	if s.fields.Month&(1<<day.Month()) == 0 {
		return false
	}
	ofMonth, ofWeek := s.fields.Dom&(1<<day.Day()) != 0, s.fields.Dow&(1<<day.Weekday()) != 0
	if s.fields.Dom&star != 0 || s.fields.Dow&star != 0 {
		return ofMonth && ofWeek
	}

	return ofMonth || ofWeek
}

// instants are the times at which clocks show a minute: one; two where they are set back;
// and the moment at which they are set forward where they never show it.
func (s *Schedule) instants(on date, hour, minute int) []time.Time {
	shown := on.at(hour, minute, time.UTC)
	near := on.at(hour, minute, s.zone)
	begin, end := near.ZoneBounds()
	offsets := []int{offset(near)}
	if !begin.IsZero() {
		offsets = append(offsets, offset(begin.Add(-1)))
	}
	if !end.IsZero() {
		offsets = append(offsets, offset(end))
	}
	var found []time.Time
	for _, seconds := range offsets {
		if at := shown.Add(-time.Duration(seconds) * time.Second); wall(at.In(s.zone)).Equal(shown) {
			found = append(found, at)
		}
	}
	if len(found) > 0 {
		slices.SortFunc(found, time.Time.Compare)
		return slices.CompactFunc(found, time.Time.Equal)
	}
	if !begin.IsZero() && wall(begin).After(shown) {
		return []time.Time{begin.UTC()}
	}

	return []time.Time{end.UTC()}
}

func offset(at time.Time) int {
	_, seconds := at.Zone()

	return seconds
}

// wall is what clocks show at a time, as if they were in UTC.
func wall(at time.Time) time.Time {
	return at.UTC().Add(time.Duration(offset(at)) * time.Second)
}

// date is a day of the calendar.
type date struct {
	year  int
	month time.Month
	day   int
}

func dayOf(at time.Time) date {
	year, month, day := at.Date()

	return date{year, month, day}
}

func (d date) plus(days int) date {
	return dayOf(time.Date(d.year, d.month, d.day+days, 0, 0, 0, 0, time.UTC))
}

func (d date) at(hour, minute int, zone *time.Location) time.Time {
	return time.Date(d.year, d.month, d.day, hour, minute, 0, 0, zone)
}

// Jitter is how much later than its schedule a backup of a key begins: always the same for
// a key, less than a maximum, and spread over it. It keeps the backups of many clusters
// with the same schedule from beginning at the same time.
func Jitter(key string, maximum time.Duration) time.Duration {
	if maximum <= 0 {
		return 0
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(key))

	return (time.Duration(sum.Sum32()) * time.Second) % maximum
}
