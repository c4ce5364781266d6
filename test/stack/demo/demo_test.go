package demo

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestTable(t *testing.T) {
	var out bytes.Buffer
	Table(&out, []Result{{"hosts", "4 hosts Available", 2500 * time.Millisecond}, {"scale to 3", "4 Nodes Ready", 10 * time.Second}})
	NewWithT(t).Expect(out.String()).To(Equal(`STEP        RESULT             SECONDS
hosts       4 hosts Available  2.5
scale to 3  4 Nodes Ready      10.0
total                          12.5
`))
}

func TestRunEndsWithTheStepThatFails(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	scenario := &Scenario{Output: &out, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
	var around []string
	scenario.Around = func(ctx context.Context, step string, do func(context.Context) error) error {
		around = append(around, step)
		return do(ctx)
	}
	works := func(context.Context) (string, error) { return "it works", nil }
	breaks := func(context.Context) (string, error) { return "", errors.New("broken") }

	results, err := scenario.runSteps(t.Context(), []step{{"one", "this", works}, {"two", "that", breaks}, {"three", "more", works}})
	g.Expect(err).To(MatchError("two: broken"))
	g.Expect(results).To(Equal([]Result{{Step: "one", Outcome: "it works"}, {Step: "two", Outcome: "failed"}}))
	g.Expect(around).To(Equal([]string{"one", "two"}))
	g.Expect(out.String()).To(Equal(`==> one: waiting for this
    it works (0.0 s)
==> two: waiting for that
    failed after 0.0 s: broken
`))
}

func TestRunFailsWhenThePartsOfTheManagementClusterEnd(t *testing.T) {
	scenario := &Scenario{Output: &bytes.Buffer{}, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
	scenario.Management.Check = func() error { return errors.New("etcd ended by itself") }
	_, err := scenario.runSteps(t.Context(), []step{{"one", "this", func(context.Context) (string, error) { return "", nil }}})
	NewWithT(t).Expect(err).To(MatchError(ContainSubstring("etcd ended by itself")))
}

func TestPoll(t *testing.T) {
	kind := schema.GroupKind{Group: "g", Kind: "K"}
	t.Run("tells what is missing, once each interval, and each reason once", func(t *testing.T) {
		g := NewWithT(t)
		var out bytes.Buffer
		fake := clocktesting.NewFakeClock(time.Unix(0, 0))
		scenario := &Scenario{Output: &out, Clock: fake}
		reasons := []string{"early", "one\nof two lines", "one\nof two lines", "soon after", "last"}
		g.Expect(scenario.poll(t.Context(), func(context.Context) error {
			if len(reasons) == 0 {
				return nil
			}
			reason := reasons[0]
			reasons = reasons[1:]
			if reason != "early" && reason != "soon after" {
				fake.Step(tellInterval + time.Second)
			}
			return errors.New(reason)
		})).To(Succeed())
		g.Expect(out.String()).To(Equal("    still missing: one\n      of two lines\n    still missing: soon after\n    still missing: last\n"))
	})
	t.Run("ends at once with what trying again does not help against", func(t *testing.T) {
		g := NewWithT(t)
		scenario := &Scenario{Output: &bytes.Buffer{}, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
		tries := 0
		err := scenario.poll(t.Context(), func(context.Context) error {
			tries++
			return final(apierrors.NewInvalid(kind, "name", nil))
		})
		g.Expect(err).To(MatchError(ContainSubstring(`K.g "name" is invalid`)))
		g.Expect(tries).To(Equal(1))
	})
	t.Run("ends when a part of the management cluster has ended", func(t *testing.T) {
		scenario := &Scenario{Output: &bytes.Buffer{}, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
		scenario.Management.Check = func() error { return errors.New("etcd ended by itself") }
		err := scenario.poll(t.Context(), func(context.Context) error { return errors.New("not yet") })
		NewWithT(t).Expect(err).To(MatchError("etcd ended by itself"))
	})
	t.Run("names the last reason when the time is over", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		scenario := &Scenario{Output: &bytes.Buffer{}, Clock: clocktesting.NewFakeClock(time.Unix(0, 0))}
		err := scenario.poll(ctx, func(context.Context) error {
			cancel()
			return errors.New("not yet")
		})
		NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("canceled"), ContainSubstring("not yet"))))
	})
}
