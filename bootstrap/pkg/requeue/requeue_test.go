package requeue

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

type number int

func (n number) IntN(m int) int { return min(int(n), m-1) }

func TestAfter(t *testing.T) {
	g := NewWithT(t)
	g.Expect(After(number(0), time.Minute).RequeueAfter).To(Equal(time.Minute))
	g.Expect(After(number(1<<20), time.Minute).RequeueAfter).To(And(BeNumerically(">", 74*time.Second), BeNumerically("<=", 75*time.Second)))
	g.Expect(After(number(5), 0).RequeueAfter).To(BeZero())
	for range 100 {
		g.Expect(SharedRandom{}.IntN(3)).To(BeNumerically("<", 3))
	}
}
