package pacing

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"
)

type noJitter struct{}

func (noJitter) IntN(int) int { return 0 }

func TestLessAndLess(t *testing.T) {
	now := time.Date(2026, time.June, 1, 12, 0, 0, 0, time.UTC)
	p := Pacing{Interval: 10 * time.Second, Clock: clocktesting.NewFakePassiveClock(now), Random: noJitter{}}
	for name, tt := range map[string]struct {
		waited        time.Duration
		silent, wrong time.Duration
	}{
		"at first":        {0, 5 * time.Second, 5 * time.Second},
		"after a minute":  {time.Minute, 10 * time.Second, 10 * time.Second},
		"after ten":       {10 * time.Minute, time.Minute, 100 * time.Second},
		"after a weekend": {48 * time.Hour, time.Minute, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(p.Unreachable(now.Add(-tt.waited), 5*time.Second).RequeueAfter).To(Equal(tt.silent))
			g.Expect(p.Wrong(now.Add(-tt.waited), 5*time.Second).RequeueAfter).To(Equal(tt.wrong))
		})
	}
	g := NewWithT(t)
	g.Expect(p.Unreachable(time.Time{}, 5*time.Second).RequeueAfter).To(Equal(5*time.Second), "nobody knows since when")
	g.Expect(p.Soon().RequeueAfter).To(Equal(5 * time.Second))
	g.Expect(p.Next().RequeueAfter).To(Equal(10 * time.Second))
	g.Expect(p.Later().RequeueAfter).To(Equal(30 * time.Second))
	g.Expect(p.Refused().RequeueAfter).To(Equal(20 * time.Second))
}
