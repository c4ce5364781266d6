package values

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestWhatWouldBeTooLargeIsNotMade: it is refused before the function is called, since the
// memory of the manager is gone after it.
func TestWhatWouldBeTooLargeIsNotMade(t *testing.T) {
	long, lines := strings.Repeat("x", 10_000), strings.Repeat("\n", 10_000)
	many := make([]any, 10_000)
	for name, arguments := range map[string][]any{
		"repeat": {10_000, long}, "indent": {9999, lines}, "nindent": {9999, lines}, "replace": {"x", long, long}, "join": {long, many}, "wrapWith": {1, long, long},
		"regexReplaceAll": {"x", long, long}, "mustRegexReplaceAll": {"x", long, long}, "regexReplaceAllLiteral": {"x", long, long}, "mustRegexReplaceAllLiteral": {"x", long, long},
		"printf": {strings.Repeat("%[1]s", 1000), []any{long}}, "until": {10_001}, "untilStep": {0, -10_001, -1}, "seq": {[]int{10_001}}, "upper": {strings.Repeat(long, 105)},
	} {
		t.Run(name, func(t *testing.T) {
			budget := maxWork
			NewWithT(t).Expect(pay(name, arguments, &budget)).To(MatchError(errTooMuch))
		})
	}
	for _, format := range []string{"%999999d", "%.99999f", "%*d", "%[1]*d"} {
		t.Run(format, func(t *testing.T) {
			budget := maxWork
			NewWithT(t).Expect(pay("printf", []any{format, []any{1}}, &budget)).To(MatchError(errTooMuch))
		})
	}
}

// TestCallsCostWhatTheyWork: a call that reads much, compares all with all, or searches for
// long, counts as many.
func TestCallsCostWhatTheyWork(t *testing.T) {
	long, many := strings.Repeat("x", 10_000), make([]any, 10_000)
	for name, tt := range map[string]struct {
		arguments []any
		least     int
	}{
		"upper":       {[]any{"x"}, 1},
		"lower":       {[]any{long}, 10},
		"uniq":        {[]any{many}, 100_000},
		"mustWithout": {[]any{many, many[:100]}, 1000},
		"regexMatch":  {[]any{"(a{100}){10}", long}, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			g, budget := NewWithT(t), 10*maxWork
			g.Expect(pay(name, tt.arguments, &budget)).To(Succeed())
			g.Expect(10*maxWork - budget).To(And(BeNumerically(">=", tt.least), BeNumerically("<", 3*tt.least)))
			budget = tt.least - 1
			g.Expect(pay(name, tt.arguments, &budget)).To(MatchError(errTooMuch))
		})
	}
}
