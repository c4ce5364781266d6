// Package retention says which backups of a cluster are kept. It decides only: it knows
// neither objects nor stores.
package retention

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Policy is what is to be kept. A rule that is 0 keeps nothing by itself; where no rule is
// set, everything is kept.
type Policy struct {
	// Last is how many of the newest backups are kept.
	Last int
	// Hourly, Daily, Weekly and Monthly are for how many hours, days, weeks (from Monday
	// on) and months with a backup the newest one of each is kept.
	Hourly, Daily, Weekly, Monthly int
	// MaxAge is how old a backup may become, whichever rule keeps it; 0 means any age. If
	// it is the only rule, younger ones are kept.
	MaxAge time.Duration
	// Zone is where days begin; nil means UTC.
	Zone *time.Location
}

// Backup is what is decided about.
type Backup struct {
	// Name tells backups of the same time apart.
	Name string
	// Time is that of the snapshot.
	Time time.Time
	// Level is how thoroughly the newest verification looked that found it sound; 0 means
	// that none did.
	Level int
	// Used is why it can't go now, as a restore that reads it; empty means nothing.
	Used string
	// LockedUntil is until when the store refuses to delete it; zero means no lock.
	LockedUntil time.Time
}

// Verdict is what is to become of a backup.
type Verdict struct {
	Backup

	// Keep reports whether it stays.
	Keep bool
	// Reasons are why it stays, or the one why it goes.
	Reasons []string
}

// The reasons.
const (
	NewestReason         = "the newest"
	NewestVerifiedReason = "the newest that was verified so thoroughly"
	NoRuleReason         = "nothing is said of what goes"
	LastReason           = "one of the last"
	HourlyReason         = "the newest of its hour"
	DailyReason          = "the newest of its day"
	WeeklyReason         = "the newest of its week"
	MonthlyReason        = "the newest of its month"
	YoungReason          = "not too old"
	OldReason            = "too old"
	UnwantedReason       = "kept by no rule"
)

// Judge says of each backup of a cluster whether it is kept, newest first. The backups are
// complete ones: what failed holds no data and is not judged here. Always kept are the newest
// one, the newest one verified at each level or above, and one that is used or locked. A
// backup whose time is in the future is as any other; its age is 0.
func Judge(backups []Backup, policy Policy, now time.Time) []Verdict {
	sorted := slices.SortedFunc(slices.Values(backups), func(a, b Backup) int {
		return cmp.Or(b.Time.Compare(a.Time), cmp.Compare(b.Name, a.Name))
	})
	verdicts := make([]Verdict, len(sorted))
	for i, backup := range sorted {
		verdicts[i].Backup = backup
	}
	for _, rule := range policy.rules() {
		rule.mark(verdicts)
	}
	for i := range verdicts {
		policy.limitAge(&verdicts[i], now)
		verdicts[i].protect(now)
	}
	level := 0
	for i := range verdicts {
		verdict := &verdicts[i]
		if i == 0 {
			verdict.because(NewestReason)
		}
		if verdict.Level > level {
			verdict.because(NewestVerifiedReason)
			level = verdict.Level
		}
		verdict.Keep = len(verdict.Reasons) > 0 && verdict.Reasons[0] != OldReason
		if len(verdict.Reasons) == 0 {
			verdict.Reasons = []string{UnwantedReason}
		}
	}

	return verdicts
}

// rule keeps the newest backup of each of so many periods.
type rule struct {
	reason string
	count  int
	period func(Backup) string
}

func (p *Policy) rules() []rule {
	zone := cmp.Or(p.Zone, time.UTC)
	by := func(layout string) func(Backup) string {
		return func(backup Backup) string { return backup.Time.In(zone).Format(layout) }
	}
	rules := []rule{
		{LastReason, p.Last, func(backup Backup) string { return backup.Time.String() + backup.Name }},
		// The hour that clocks show twice is two hours.
		{HourlyReason, p.Hourly, by("2006-01-02 15 -0700")},
		{DailyReason, p.Daily, by(time.DateOnly)},
		{WeeklyReason, p.Weekly, func(backup Backup) string {
			year, week := backup.Time.In(zone).ISOWeek()
			return fmt.Sprint(year, week)
		}},
		{MonthlyReason, p.Monthly, by("2006-01")},
	}
	if !slices.ContainsFunc(rules, func(rule rule) bool { return rule.count > 0 }) {
		reason := NoRuleReason
		if p.MaxAge > 0 {
			reason = YoungReason
		}
		rules[0].reason, rules[0].count = reason, math.MaxInt
	}

	return rules
}

func (r rule) mark(verdicts []Verdict) {
	seen := map[string]bool{}
	for i := range verdicts {
		if len(seen) == r.count {
			return
		}
		if period := r.period(verdicts[i].Backup); !seen[period] {
			seen[period] = true
			verdicts[i].Reasons = append(verdicts[i].Reasons, r.reason)
		}
	}
}

func (p *Policy) limitAge(verdict *Verdict, now time.Time) {
	if p.MaxAge > 0 && now.Sub(verdict.Time) > p.MaxAge {
		verdict.Reasons = []string{OldReason}
	}
}

// protect keeps what can't go now.
func (v *Verdict) protect(now time.Time) {
	if v.Used != "" {
		v.because(v.Used)
	}
	if v.LockedUntil.After(now) {
		v.because("locked until " + v.LockedUntil.UTC().Format(time.RFC3339))
	}
}

// because keeps a backup for a reason, whatever its age.
func (v *Verdict) because(reason string) {
	if len(v.Reasons) == 1 && v.Reasons[0] == OldReason {
		v.Reasons = nil
	}
	v.Reasons = append(v.Reasons, reason)
}
