package nodes

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

var (
	testStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	testKey   = client.ObjectKey{Namespace: "default", Name: "cp"}
)

// TestGracePeriodsRunWhileTheirReasonLasts: what is not observed any more ends, what stays
// goes on, and each type is by itself.
func TestGracePeriodsRunWhileTheirReasonLasts(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(testStart)
	periods := NewGracePeriods(clock)
	observe := func(kind controlplanev1.GracePeriodType, names ...string) map[string]time.Duration {
		return periods.Observe(testKey, kind, names)
	}
	g.Expect(observe(controlplanev1.EtcdSilentGracePeriod, "a", "b")).To(Equal(map[string]time.Duration{"a": 0, "b": 0}))
	clock.SetTime(testStart.Add(time.Minute))
	g.Expect(observe(controlplanev1.WithoutMachineGracePeriod, "a")).To(Equal(map[string]time.Duration{"a": 0}))
	g.Expect(observe(controlplanev1.EtcdSilentGracePeriod, "b", "c")).To(Equal(map[string]time.Duration{"b": time.Minute, "c": 0}))
	clock.SetTime(testStart.Add(2 * time.Minute))
	g.Expect(observe(controlplanev1.EtcdSilentGracePeriod, "a")).To(Equal(map[string]time.Duration{"a": 0}), "it ended a minute ago")
	g.Expect(observe(controlplanev1.WithoutMachineGracePeriod, "a")).To(Equal(map[string]time.Duration{"a": time.Minute}))
}

// TestGracePeriodsAreContinued: another manager goes on where one was, unless nobody knows
// what has been since, or when that was.
func TestGracePeriodsAreContinued(t *testing.T) {
	for name, tc := range map[string]struct {
		// after is the time from the record to the start of the next manager.
		after time.Duration
		want  time.Duration
	}{
		"at once":               {0, 30 * time.Second},
		"after a minute":        {time.Minute, 90 * time.Second},
		"after too long a time": {time.Minute + time.Second, 0},
		"by a clock before it":  {-time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			clock := clocktesting.NewFakePassiveClock(testStart)
			periods := NewGracePeriods(clock)
			periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"a"})
			clock.SetTime(testStart.Add(30 * time.Second))
			record := periods.Record(testKey, controlplanev1.TalosControlPlaneGracePeriodsStatus{})

			clock.SetTime(clock.Now().Add(tc.after))
			periods = NewGracePeriods(clock)
			periods.Continue(testKey, record)
			g.Expect(periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"a"})).To(Equal(map[string]time.Duration{"a": tc.want}))
		})
	}
}

// TestWhatAManagerHasSeenItselfCountsMore: a record comes from a cache, which may lag behind
// the end of what it tells.
func TestWhatAManagerHasSeenItselfCountsMore(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(testStart.Add(time.Minute))
	late := controlplanev1.TalosControlPlaneGracePeriodsStatus{
		Running:      []controlplanev1.GracePeriod{{Type: controlplanev1.EtcdSilentGracePeriod, Name: "a", StartTime: metav1.NewTime(testStart)}},
		ObservedTime: metav1.NewTime(testStart.Add(time.Minute)),
	}
	periods := NewGracePeriods(clock)
	periods.Continue(testKey, controlplanev1.TalosControlPlaneGracePeriodsStatus{})
	periods.Continue(testKey, late)
	g.Expect(periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"a"})).To(Equal(map[string]time.Duration{"a": 0}), "nothing was recorded at the start")
	periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, nil)
	periods.Continue(testKey, late)
	g.Expect(periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"a"})).To(Equal(map[string]time.Duration{"a": 0}), "it has answered")

	periods.Forget(testKey)
	periods.Continue(testKey, late)
	g.Expect(periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"a"})).To(Equal(map[string]time.Duration{"a": time.Minute}))
}

// TestTheRecordOfGracePeriods: it changes with what runs, and else only now and then. What
// the API cannot tell makes nothing come sooner.
func TestTheRecordOfGracePeriods(t *testing.T) {
	g := NewWithT(t)
	clock := clocktesting.NewFakePassiveClock(testStart.Add(time.Millisecond))
	periods := NewGracePeriods(clock)
	none := controlplanev1.TalosControlPlaneGracePeriodsStatus{}
	g.Expect(periods.Record(testKey, none)).To(Equal(none))

	periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"b", "a"})
	first := periods.Record(testKey, none)
	g.Expect(first.ObservedTime.Time).To(Equal(testStart))
	g.Expect(first.Running).To(Equal([]controlplanev1.GracePeriod{
		{Type: controlplanev1.EtcdSilentGracePeriod, Name: "a", StartTime: metav1.NewTime(testStart.Add(time.Second))},
		{Type: controlplanev1.EtcdSilentGracePeriod, Name: "b", StartTime: metav1.NewTime(testStart.Add(time.Second))},
	}))
	clock.SetTime(testStart.Add(graceObservedInterval - time.Second))
	g.Expect(periods.Record(testKey, first)).To(Equal(first))
	clock.SetTime(testStart.Add(graceObservedInterval))
	renewed := periods.Record(testKey, first)
	g.Expect(renewed.Running).To(Equal(first.Running))
	g.Expect(renewed.ObservedTime.Time).To(Equal(testStart.Add(graceObservedInterval)))
	periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, []string{"b"})
	g.Expect(periods.Record(testKey, renewed).Running).To(Equal(first.Running[1:]))
	renewed = periods.Record(testKey, renewed)
	clock.SetTime(testStart)
	g.Expect(periods.Record(testKey, renewed).ObservedTime.Time).To(Equal(testStart), "a record from the future is written anew")

	clock.SetTime(testStart.Add(time.Hour))
	many := []string{"b"}
	for i := range 2 * maxGracePeriods {
		many = append(many, fmt.Sprintf("a%03d", i))
	}
	periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, many)
	g.Expect(periods.Record(testKey, none).Running).To(And(HaveLen(maxGracePeriods), ContainElement(first.Running[1])), "the oldest")
	periods.Observe(testKey, controlplanev1.EtcdSilentGracePeriod, nil)
	g.Expect(periods.Record(testKey, renewed)).To(Equal(none))
}
