package schedule

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func parse(t *testing.T, expression, zone string) *Schedule {
	t.Helper()
	schedule, err := Parse(expression, zone)
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return schedule
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return parsed
}

func TestNext(t *testing.T) {
	for name, test := range map[string]struct {
		expression, zone, after string
		want                    []string
	}{
		"every day":      {"30 2 * * *", "", "2026-03-01T02:30:00Z", []string{"2026-03-02T02:30:00Z", "2026-03-03T02:30:00Z"}},
		"of a time zone": {"30 2 * * *", "Asia/Tokyo", "2026-03-01T00:00:00Z", []string{"2026-03-01T17:30:00Z"}},
		"weekdays":       {"0 12 * * 1-5", "", "2026-11-20T12:00:00Z", []string{"2026-11-23T12:00:00Z"}},
		"either kind of day": {"0 0 13 * 5", "", "2026-11-11T00:00:00Z",
			[]string{"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z", "2026-11-27T00:00:00Z", "2026-12-04T00:00:00Z", "2026-12-11T00:00:00Z", "2026-12-13T00:00:00Z"}},
		"a leap day":                 {"0 0 29 2 *", "", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		"left out by an hour":        {"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		"left out by half an hour":   {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
		"left out at midnight":       {"0 0 * * *", "America/Santiago", "2026-09-05T12:00:00Z", []string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		"a day that was left out":    {"0 6 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", []string{"2011-12-29T16:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T16:00:00Z"}},
		"shown twice":                {"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", []string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		"shown twice over midnight":  {"30 23 * * *", "America/Santiago", "2026-04-04T12:00:00Z", []string{"2026-04-05T02:30:00Z", "2026-04-06T03:30:00Z"}},
		"of every hour, set back":    {"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", []string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		"of every hour, set forward": {"30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", []string{"2026-03-29T00:30:00Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"}},
		"every quarter, by half an hour": {"*/15 * * * *", "Australia/Lord_Howe", "2026-04-04T14:30:00Z",
			[]string{"2026-04-04T14:45:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:15:00Z", "2026-04-04T15:30:00Z"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			schedule, after := parse(t, test.expression, test.zone), at(t, test.after)
			for _, want := range test.want {
				after = schedule.Next(after)
				g.Expect(after.Format(time.RFC3339)).To(Equal(want))
			}
		})
	}
}

func TestInterval(t *testing.T) {
	for expression, want := range map[string]time.Duration{
		"* * * * *":        time.Minute,
		"*/20 * * * *":     20 * time.Minute,
		"0 2 * * *":        24 * time.Hour,
		"0 2,8 * * *":      18 * time.Hour,
		"*/5 8-17 * * *":   14*time.Hour + 5*time.Minute,
		"*/5 8-17 * * 1-5": 62*time.Hour + 5*time.Minute,
		"0 12 * * 0":       7 * 24 * time.Hour,
		"0 0 1 * *":        31 * 24 * time.Hour,
		"0 0 29 2 *":       1461 * 24 * time.Hour,
	} {
		t.Run(expression, func(t *testing.T) {
			NewWithT(t).Expect(parse(t, expression, "Europe/Berlin").Interval()).To(Equal(want))
		})
	}
}

// TestUTCIsNoMatterOfTheMachine: where a machine has no time zone, as in the image of the
// manager, Go calls the local one UTC, too.
func TestUTCIsNoMatterOfTheMachine(t *testing.T) {
	g, local := NewWithT(t), time.Local
	time.Local = time.FixedZone("UTC", 0)
	t.Cleanup(func() { time.Local = local })
	for _, zone := range []string{"", "UTC", "Europe/Berlin"} {
		_, err := Parse("0 2 * * *", zone)
		g.Expect(err).ToNot(HaveOccurred(), zone)
	}
	_, err := Parse("0 2 * * *", "Local")
	g.Expect(err).To(MatchError(ContainSubstring("depends on the machine")))
}

func TestParseRefuses(t *testing.T) {
	for name, test := range map[string]struct{ expression, zone, want string }{
		"six fields":                  {"0 30 2 * * *", "", "expected exactly 5 fields"},
		"a descriptor":                {"@daily", "", "descriptor"},
		"an hour that there is not":   {"0 24 * * *", "", "above maximum"},
		"a time zone in the schedule": {"CRON_TZ=Europe/Berlin 0 2 * * *", "", "name it in timeZone"},
		"a time zone that nobody has": {"0 2 * * *", "Europe/Atlantis", "not in the IANA database"},
		"the zone of the machine":     {"0 2 * * *", "Local", "depends on the machine"},
		"a day that never comes":      {"0 0 30 2 *", "", "never due"},
		"nothing":                     {"", "", "empty spec"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(test.expression, test.zone)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

// TestFiveYears: each day of five years has its backup, whatever the clocks of the zone
// do, and the schedule of every hour is due in each hour.
func TestFiveYears(t *testing.T) {
	for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Casablanca", "Asia/Kathmandu"} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			begin, end := at(t, "2026-01-01T00:00:00Z"), at(t, "2031-01-01T00:00:00Z")
			daily, hourly := parse(t, "30 2 * * *", zone), parse(t, "0 * * * *", zone)
			seen := map[string]int{}
			for due := daily.Next(begin); due.Before(end); due = daily.Next(due) {
				seen[due.In(daily.Zone()).Format(time.DateOnly)]++
			}
			g.Expect(len(seen)).To(BeNumerically("~", 5*365+1, 1))
			for day, times := range seen {
				g.Expect(times).To(Equal(1), day)
			}
			for before, due := begin, hourly.Next(begin); due.Before(end); before, due = due, hourly.Next(due) {
				g.Expect(due.Sub(before)).To(And(BeNumerically(">", 0), BeNumerically("<=", 90*time.Minute)), due.String())
			}
		})
	}
}

func TestDue(t *testing.T) {
	for name, test := range map[string]struct {
		expression       string
		since, now       string
		jitter, deadline time.Duration
		want             string
		missed           int
		next             string
	}{
		"not yet":                   {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T01:59:59Z", 0, 0, "", 0, "2026-03-02T02:00:00Z"},
		"at its second":             {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T02:00:00Z", 0, 0, "2026-03-02T02:00:00Z", 0, "2026-03-03T02:00:00Z"},
		"begun already":             {"0 2 * * *", "2026-03-02T02:00:00Z", "2026-03-02T02:00:01Z", 0, 0, "", 0, "2026-03-03T02:00:00Z"},
		"later by its jitter":       {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T02:00:59Z", time.Minute, 0, "", 0, "2026-03-02T02:01:00Z"},
		"after its jitter":          {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T02:01:00Z", time.Minute, 0, "2026-03-02T02:00:00Z", 0, "2026-03-03T02:01:00Z"},
		"only the newest":           {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-05T12:00:00Z", 0, 0, "2026-03-05T02:00:00Z", 3, "2026-03-06T02:00:00Z"},
		"within its deadline":       {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T02:10:00Z", 0, 10 * time.Minute, "2026-03-02T02:00:00Z", 0, "2026-03-03T02:00:00Z"},
		"past its deadline":         {"0 2 * * *", "2026-03-01T02:00:00Z", "2026-03-02T02:10:01Z", 0, 10 * time.Minute, "", 1, "2026-03-03T02:00:00Z"},
		"a year of minutes":         {"* * * * *", "2025-03-01T02:00:00Z", "2026-03-01T02:00:30Z", 0, 0, "2026-03-01T02:00:00Z", maxMissed, "2026-03-01T02:01:00Z"},
		"a clock that was set back": {"0 2 * * *", "2026-03-05T02:00:00Z", "2026-03-02T03:00:00Z", 0, 0, "", 0, "2026-03-03T02:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			due := parse(t, test.expression, "").Due(at(t, test.since), at(t, test.now), test.jitter, test.deadline)
			g.Expect(due.Next.Format(time.RFC3339)).To(Equal(test.next))
			g.Expect(due.Missed).To(Equal(test.missed))
			if test.want == "" {
				g.Expect(due.At).To(BeZero())
				return
			}
			g.Expect(due.At.Format(time.RFC3339)).To(Equal(test.want))
		})
	}
}

func TestJitterIsStableAndSpread(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Jitter("a/b", 0)).To(BeZero())
	g.Expect(Jitter("a/b", time.Hour)).To(Equal(Jitter("a/b", time.Hour)))
	tenths := map[time.Duration]int{}
	for i := range 1000 {
		jitter := Jitter("team/cluster-"+time.Duration(i).String(), time.Hour)
		g.Expect(jitter).To(BeNumerically("<", time.Hour))
		tenths[jitter/(6*time.Minute)]++
	}
	for tenth, keys := range tenths {
		g.Expect(keys).To(BeNumerically(">", 50), tenth.String())
	}
	g.Expect(tenths).To(HaveLen(10))
}

func TestATimeThatIsAhead(t *testing.T) {
	g, now := NewWithT(t), at(t, "2026-11-25T12:00:00Z")
	for ago, want := range map[time.Duration]bool{time.Hour: false, 0: false, -24 * time.Hour: false, -24*time.Hour - 1: true, -10000 * time.Hour: true} {
		g.Expect(IsAhead(now.Add(-ago), now)).To(Equal(want), ago.String())
	}
	g.Expect(IsAhead(time.Time{}, now)).To(BeFalse())
}
