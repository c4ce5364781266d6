package retention

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

var now = time.Date(2026, time.March, 31, 12, 0, 0, 0, time.UTC)

// ago is a backup of some hours ago.
func ago(hours int) Backup {
	return Backup{Name: fmt.Sprintf("%dh", hours), Time: now.Add(-time.Duration(hours) * time.Hour)}
}

func verified(level int, backup Backup) Backup {
	backup.Level = level
	return backup
}

func kept(verdicts []Verdict) []string {
	var names []string
	for _, verdict := range verdicts {
		if verdict.Keep {
			names = append(names, verdict.Name)
		}
	}

	return names
}

func TestJudge(t *testing.T) {
	locked, used := ago(72), ago(72)
	locked.LockedUntil, used.Used = now.Add(time.Hour), "TalosEtcdRestore back reads it"
	unlocked := ago(72)
	unlocked.LockedUntil = now.Add(-time.Hour)
	for name, test := range map[string]struct {
		backups []Backup
		policy  Policy
		want    []string
	}{
		"nothing there":                        {nil, Policy{Last: 1}, nil},
		"without a rule all stay":              {[]Backup{ago(1), ago(10000)}, Policy{}, []string{"1h", "10000h"}},
		"the last":                             {[]Backup{ago(3), ago(1), ago(2)}, Policy{Last: 2}, []string{"1h", "2h"}},
		"of each day":                          {[]Backup{ago(1), ago(2), ago(24), ago(25), ago(48), ago(72)}, Policy{Daily: 3}, []string{"1h", "24h", "48h"}},
		"of days with a backup":                {[]Backup{ago(1), ago(240), ago(480)}, Policy{Daily: 2}, []string{"1h", "240h"}},
		"of each hour":                         {[]Backup{{Name: "b", Time: now.Add(time.Minute)}, {Name: "a", Time: now}, ago(1)}, Policy{Hourly: 5}, []string{"b", "1h"}},
		"of each week, which begins on Monday": {[]Backup{ago(24), ago(37), ago(48), ago(24 * 9)}, Policy{Weekly: 5}, []string{"24h", "37h", "216h"}},
		"of each month":                        {[]Backup{ago(1), ago(700), ago(800), ago(1500)}, Policy{Monthly: 2}, []string{"1h", "800h"}},
		"what several rules want":              {[]Backup{ago(1), ago(2), ago(30), ago(800)}, Policy{Last: 2, Monthly: 2}, []string{"1h", "2h", "800h"}},
		"younger than an age":                  {[]Backup{ago(1), ago(23), ago(25)}, Policy{MaxAge: 24 * time.Hour}, []string{"1h", "23h"}},
		"an age goes before other rules":       {[]Backup{ago(1), ago(23), ago(25)}, Policy{Last: 5, MaxAge: 24 * time.Hour}, []string{"1h", "23h"}},
		"the newest, however old":              {[]Backup{ago(100), ago(101)}, Policy{MaxAge: time.Hour}, []string{"100h"}},
		"the newest verified one, however old": {[]Backup{ago(1), ago(100), verified(1, ago(101)), verified(1, ago(102))}, Policy{Last: 1, MaxAge: 2 * time.Hour}, []string{"1h", "101h"}},
		"the newest verified of each level":    {[]Backup{verified(1, ago(1)), verified(1, ago(2)), verified(3, ago(3)), verified(2, ago(4)), verified(3, ago(5))}, Policy{Last: 1}, []string{"1h", "3h"}},
		"levels that were once better":         {[]Backup{ago(1), verified(1, ago(2)), verified(2, ago(3)), verified(3, ago(4)), ago(5)}, Policy{Last: 1}, []string{"1h", "2h", "3h", "4h"}},
		"what is locked":                       {[]Backup{ago(1), locked, ago(80)}, Policy{Last: 1}, []string{"1h", "72h"}},
		"what was locked":                      {[]Backup{ago(1), unlocked}, Policy{Last: 1}, []string{"1h"}},
		"what is used, however old":            {[]Backup{ago(1), used}, Policy{MaxAge: time.Hour}, []string{"1h", "72h"}},
		"of the future":                        {[]Backup{ago(-5), ago(1)}, Policy{MaxAge: 2 * time.Hour}, []string{"-5h", "1h"}},
		"of the same time, by name":            {[]Backup{{Name: "a", Time: now}, {Name: "b", Time: now}}, Policy{Last: 1}, []string{"b"}},
		"days are those of the zone":           {[]Backup{ago(1), ago(14), ago(16)}, Policy{Daily: 2, Zone: time.FixedZone("", 13*60*60)}, []string{"1h", "14h"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			verdicts := Judge(test.backups, test.policy, now)
			g.Expect(kept(verdicts)).To(Equal(test.want))
			for _, verdict := range verdicts {
				g.Expect(verdict.Reasons).ToNot(BeEmpty())
				g.Expect(verdict.Keep).To(Equal(!slices.Equal(verdict.Reasons, []string{OldReason}) && !slices.Equal(verdict.Reasons, []string{UnwantedReason})))
			}
		})
	}
}

// TestFiveYears: of a schedule of every hour that is pruned after each backup, for five years,
// in zones whose clocks change, exactly those are held that each rule would keep of all that
// were ever made. An hour in a thousand has no backup.
func TestFiveYears(t *testing.T) {
	for _, zone := range []string{"Europe/Berlin", "Australia/Lord_Howe", "America/Santiago"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			location, err := time.LoadLocation(zone)
			g.Expect(err).ToNot(HaveOccurred())
			policy := Policy{Last: 3, Hourly: 24, Daily: 7, Weekly: 5, Monthly: 12, MaxAge: 300 * 24 * time.Hour, Zone: location}
			begin := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
			random := rand.New(rand.NewPCG(1, 2))
			var held, all []Backup
			for at := begin; at.Before(begin.AddDate(5, 0, 0)); at = at.Add(time.Hour) {
				if random.IntN(1000) == 0 {
					continue
				}
				made := Backup{Name: at.Format("06010215"), Time: at, Level: max(0, random.IntN(100)-96)}
				if random.IntN(50) == 0 {
					made.LockedUntil = at.Add(20 * 24 * time.Hour)
				}
				held, all = append(held, made), append(all, made)
				verdicts := Judge(held, policy, at)
				held = held[:0]
				for _, verdict := range verdicts {
					if verdict.Keep {
						held = append(held, verdict.Backup)
					}
				}
				// What is gone does not come back: six days between are not too many.
				if len(all)%151 == 0 {
					g.Expect(kept(verdicts)).To(Equal(wanted(all, policy, at)), at.String())
				}
			}
		})
	}
}

// wanted are the names of those of all backups, in the order of their times, that are to be
// kept, newest first: the last one of each of the last periods, by the calendar.
func wanted(all []Backup, policy Policy, now time.Time) []string {
	keep := map[string]bool{}
	oldest := now.Add(-policy.MaxAge)
	for count, period := range map[int]func(time.Time) string{
		policy.Last:    func(at time.Time) string { return at.String() },
		policy.Hourly:  func(at time.Time) string { return fmt.Sprint(at.Unix() - int64(at.Minute())*60) },
		policy.Daily:   func(at time.Time) string { return fmt.Sprint(at.Date()) },
		policy.Weekly:  func(at time.Time) string { return fmt.Sprint(at.AddDate(0, 0, -(int(at.Weekday())+6)%7).Date()) },
		policy.Monthly: func(at time.Time) string { return fmt.Sprint(at.Year(), at.Month()) },
	} {
		for i, former := len(all)-1, ""; i >= 0 && count > 0; i-- {
			if now := period(all[i].Time.In(policy.Zone)); now != former {
				former = now
				count--
				keep[all[i].Name] = keep[all[i].Name] || !all[i].Time.Before(oldest)
			}
		}
	}
	keep[all[len(all)-1].Name] = true
	for level := 1; level <= 3; level++ {
		for _, backup := range slices.Backward(all) {
			if backup.Level >= level {
				keep[backup.Name] = true
				break
			}
		}
	}
	var names []string
	for _, backup := range slices.Backward(all) {
		if keep[backup.Name] || backup.LockedUntil.After(now) {
			names = append(names, backup.Name)
		}
	}

	return names
}
