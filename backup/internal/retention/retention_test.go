package retention

import (
	"fmt"
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

func verified(backup Backup) Backup {
	backup.Verified = true
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
		"the newest verified one, however old": {[]Backup{ago(1), ago(100), verified(ago(101)), verified(ago(102))}, Policy{Last: 1, MaxAge: 2 * time.Hour}, []string{"1h", "101h"}},
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

// TestFiveYears: an hourly schedule of five years, pruned after each backup, always holds
// what the policy promises, and no more.
func TestFiveYears(t *testing.T) {
	g := NewWithT(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	g.Expect(err).ToNot(HaveOccurred())
	policy := Policy{Last: 3, Hourly: 24, Daily: 7, Weekly: 5, Monthly: 12, Zone: berlin}
	begin := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	var held []Backup
	for at, n := begin, 0; at.Before(begin.AddDate(5, 0, 0)); at, n = at.Add(time.Hour), n+1 {
		held = append(held, Backup{Name: fmt.Sprint(n), Time: at, Verified: n%100 == 0})
		verdicts := Judge(held, policy, at)
		held = held[:0]
		for _, verdict := range verdicts {
			if verdict.Keep {
				held = append(held, verdict.Backup)
			}
		}
		isVerified := func(backup Backup) bool { return backup.Verified }
		if !held[0].Time.Equal(at) || !slices.ContainsFunc(held, isVerified) || len(held) > 24+7+5+12+1 {
			t.Fatalf("at %s: %+v", at, held)
		}
		if n < 24*400 {
			continue
		}
		for age, within := range map[time.Duration]time.Duration{
			23 * time.Hour: time.Hour, 6 * 24 * time.Hour: 25 * time.Hour, 4 * 7 * 24 * time.Hour: 8 * 24 * time.Hour, 330 * 24 * time.Hour: 32 * 24 * time.Hour,
		} {
			if !slices.ContainsFunc(held, func(backup Backup) bool {
				apart := at.Add(-age).Sub(backup.Time)
				return apart > -within && apart < within
			}) {
				t.Fatalf("at %s nothing is left of %s ago", at, age)
			}
		}
	}
}
