package nodes

import (
	"cmp"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

const (
	// graceObservedInterval is how old the time of the last observation may become in the
	// status before it is renewed.
	graceObservedInterval = 20 * time.Second
	// graceGap is how long nobody may have observed what a grace period runs for, so that
	// it goes on. A node may have answered in between.
	graceGap = time.Minute
	// maxGracePeriods is how many are recorded at most. It is the bound of the API.
	maxGracePeriods = 100
)

// GracePeriods are the grace periods that run for the nodes and etcd members of control
// planes. They are recorded in the status of the control plane, so that a restart of the
// manager does not lengthen them by more than what nobody has observed.
type GracePeriods struct {
	clock clock.PassiveClock

	mu      sync.Mutex
	running map[client.ObjectKey]map[graceKey]time.Time
}

type graceKey struct {
	kind controlplanev1.GracePeriodType
	name string
}

// NewGracePeriods tells the time by a clock.
func NewGracePeriods(c clock.PassiveClock) *GracePeriods {
	return &GracePeriods{clock: c, running: map[client.ObjectKey]map[graceKey]time.Time{}}
}

// Continue goes on with the grace periods that are recorded of a control plane, when this
// manager has not looked at it before. A record that is too old begins nothing; nor does
// one from the future, which is of a clock that nobody can compare with.
func (p *GracePeriods) Continue(controlPlane client.ObjectKey, recorded controlplanev1.TalosControlPlaneGracePeriodsStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[controlPlane] != nil {
		return
	}
	running := map[graceKey]time.Time{}
	p.running[controlPlane] = running
	if age := p.clock.Since(recorded.ObservedTime.Time); age < 0 || age > graceGap {
		return
	}
	for _, period := range recorded.Running {
		running[graceKey{period.Type, period.Name}] = period.StartTime.Time
	}
}

// Observe notes for which Machines or members of a control plane there is a reason for a
// grace period of a type now, and tells for how long each has run. Those of others of the
// type end.
func (p *GracePeriods) Observe(controlPlane client.ObjectKey, kind controlplanev1.GracePeriodType, names []string) map[string]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	before := p.running[controlPlane]
	running, durations := map[graceKey]time.Time{}, map[string]time.Duration{}
	for key, start := range before {
		if key.kind != kind {
			running[key] = start
		}
	}
	for _, name := range names {
		key := graceKey{kind, name}
		start, found := before[key]
		if !found {
			start = now
		}
		running[key], durations[name] = start, now.Sub(start)
	}
	p.running[controlPlane] = running

	return durations
}

// Record is what the status of a control plane is to say, all reasons having been observed
// now, when it says recorded so far. It stays the same while only little time passes.
func (p *GracePeriods) Record(controlPlane client.ObjectKey, recorded controlplanev1.TalosControlPlaneGracePeriodsStatus) controlplanev1.TalosControlPlaneGracePeriodsStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var periods []controlplanev1.GracePeriod
	for key, start := range p.running[controlPlane] {
		periods = append(periods, controlplanev1.GracePeriod{Type: key.kind, Name: key.name, StartTime: wholeSecond(start)})
	}
	if len(periods) == 0 {
		return controlplanev1.TalosControlPlaneGracePeriodsStatus{}
	}
	slices.SortFunc(periods, func(a, b controlplanev1.GracePeriod) int {
		return cmp.Or(a.StartTime.Compare(b.StartTime.Time), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	periods = periods[:min(len(periods), maxGracePeriods)]
	age := p.clock.Since(recorded.ObservedTime.Time)
	isSame := slices.EqualFunc(periods, recorded.Running, func(a, b controlplanev1.GracePeriod) bool {
		return a.Type == b.Type && a.Name == b.Name && a.StartTime.Equal(&b.StartTime)
	})
	if isSame && age >= 0 && age < graceObservedInterval {
		return recorded
	}

	return controlplanev1.TalosControlPlaneGracePeriodsStatus{Running: periods, ObservedTime: metav1.NewTime(p.clock.Now().Truncate(time.Second))}
}

// Forget drops what is known of a control plane.
func (p *GracePeriods) Forget(controlPlane client.ObjectKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.running, controlPlane)
}

// wholeSecond is a time as the API can tell it. It is never earlier: nothing comes sooner
// because it was recorded.
func wholeSecond(t time.Time) metav1.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return metav1.NewTime(whole.Add(time.Second))
	}

	return metav1.NewTime(t)
}
