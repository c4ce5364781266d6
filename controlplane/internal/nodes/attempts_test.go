package nodes

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// TestAnAttemptIsPendingForAWhile: what was asked of a node is not asked again, unless time
// has passed, or etcd has been started anew.
func TestAnAttemptIsPendingForAWhile(t *testing.T) {
	run := talosclient.Service{Started: testStart}
	for name, tc := range map[string]struct {
		noted, now talosclient.Service
		after      time.Duration
		pending    bool
	}{
		"at once":                           {run, run, 0, true},
		"before it is over":                 {run, run, time.Minute - 1, true},
		"after it is over":                  {run, run, time.Minute, false},
		"another run of etcd":               {run, talosclient.Service{Started: testStart.Add(1)}, 0, false},
		"nobody knows the run it was about": {talosclient.Service{}, run, 0, true},
		"nobody knows the run it is in":     {run, talosclient.Service{}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			clock := clocktesting.NewFakePassiveClock(testStart)
			attempts := NewAttempts(clock, time.Minute)
			g.Expect(attempts.Pending(testKey, tc.now)).To(BeFalse(), "nothing was asked")
			attempts.Note(testKey, tc.noted)
			clock.SetTime(testStart.Add(tc.after))
			g.Expect(attempts.Pending(testKey, tc.now)).To(Equal(tc.pending))
			attempts.Forget(testKey)
			g.Expect(attempts.Pending(testKey, tc.now)).To(BeFalse())
		})
	}
}
