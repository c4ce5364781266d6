package faults

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// cell is one case: a fault at a moment of a control plane of that size.
type cell struct {
	fault    fault
	moment   moment
	replicas int
}

// name is fit for a namespace.
func (c cell) name() string {
	return fmt.Sprintf("%s-%s-%d", c.fault.name, c.moment.name, c.replicas)
}

// sizes are the numbers of replicas. At three it is another machine than the one
// that comes or goes that breaks, and what is left must not lose its quorum; at
// five it is that machine itself.
func sizes() []int { return []int{3, 5} }

// cells are the whole matrix. Their order walks along all sides of it at once,
// which have no divisor in common: all cells are met, and any few that follow each
// other have something of everything.
func cells() []cell {
	faults, moments, sizes := faults(), moments(), sizes()
	all := make([]cell, len(faults)*len(moments)*len(sizes))
	for i := range all {
		all[i] = cell{fault: faults[i%len(faults)], moment: moments[i%len(moments)], replicas: sizes[i%len(sizes)]}
	}
	return all
}

// impossible are cells that cannot be, and why not.
func impossible() map[string]string { return map[string]string{} }

// lost are cells after which the cluster cannot always heal by itself, and what a
// condition of the control plane must say then: its only voter has lost its disk, or
// does not come back, or a node has restarted before its member voted.
func lost() map[string]*regexp.Regexp {
	return map[string]*regexp.Regexp{
		"disk-wiped-scale-up-3": regexp.MustCompile(`^EtcdDataLost:|no majority`),
		"gone-bootstrap-5":      regexp.MustCompile(`^BootstrapIntentStale:`),
		"other-id-scale-up-5":   regexp.MustCompile(`does not have it promoted any more; delete the Machine`),
	}
}

// selected are the first so many cells, all for 0, of those whose name fits the
// expression, if there is one.
func selected(count int, only *regexp.Regexp) []cell {
	all := cells()
	if only != nil {
		all = slices.DeleteFunc(all, func(c cell) bool { return !only.MatchString(c.name()) })
	}
	if count <= 0 || count >= len(all) {
		return all
	}
	return all[:count]
}

func TestTheMatrix(t *testing.T) {
	g := NewWithT(t)
	names := map[string]bool{}
	for _, cell := range cells() {
		names[cell.name()] = true
		g.Expect(len(cell.name())).To(BeNumerically("<=", 40), cell.name())
	}
	g.Expect(faults()).To(HaveLen(11))
	g.Expect(moments()).To(HaveLen(7))
	g.Expect(cells()).To(HaveLen(154))
	g.Expect(names).To(HaveLen(154))
	g.Expect(len(impossible())).To(BeNumerically("<=", 15), "one in ten")
	for name := range impossible() {
		g.Expect(names).To(HaveKey(name))
	}
	for name := range lost() {
		g.Expect(names).To(HaveKey(name))
	}
}

// TestLeast: what a person takes away, or asks for no more, is not the managers' doing.
func TestLeast(t *testing.T) {
	g := NewWithT(t)
	least := map[string]int{}
	for _, cell := range cells() {
		least[cell.name()] = cell.least()
	}
	for name, want := range map[string]int{
		"slow-surge-0-3": 2, "slow-surge-0-5": 4, "slow-deletion-3": 2, "slow-scale-down-5": 2, "slow-scale-down-3": 0,
		"slow-scale-up-3": 0, "slow-bootstrap-5": 0, "slow-remediation-3": 1, "disk-wiped-surge-0-3": 1, "gone-surge-1-5": 3, "gone-surge-1-3": 2,
	} {
		g.Expect(least).To(HaveKeyWithValue(name, want))
	}
}

// TestAPartOfTheMatrixHasSomethingOfEverything: as many cells as there are faults
// have each fault, and all moments.
func TestAPartOfTheMatrixHasSomethingOfEverything(t *testing.T) {
	g := NewWithT(t)
	found := map[string]bool{}
	part := selected(len(faults()), nil)
	g.Expect(part).To(HaveLen(len(faults())))
	for _, cell := range part {
		found[cell.fault.name], found[cell.moment.name] = true, true
	}
	g.Expect(found).To(HaveLen(len(faults()) + len(moments())))
	g.Expect(selected(0, regexp.MustCompile("^silent-"))).To(HaveLen(14))
}
