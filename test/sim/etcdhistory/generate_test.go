package etcdhistory_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/etcdhistory"
)

func TestASeedIsOneHistory(t *testing.T) {
	g := NewWithT(t)
	kinds, sizes := map[etcdhistory.Kind]int{}, map[int]int{}
	twins := 0
	for seed := range uint64(500) {
		history, err := etcdhistory.Generate(seed)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(etcdhistory.Generate(seed)).To(Equal(history))
		sizes[history.Voters]++
		for _, step := range history.Steps {
			kinds[step.Kind]++
			if step.Kind == etcdhistory.Join && step.Name != "" && step.String() != "join n"+step.Name[1:]+" as "+step.Name {
				twins++
			}
		}
	}
	g.Expect(sizes).To(And(HaveLen(3), HaveKey(1), HaveKey(3), HaveKey(5)))
	g.Expect(kinds).To(HaveLen(10), "every kind of step occurs")
	g.Expect(twins).To(BeNumerically(">", 50), "also names of others")
}

// TestAHistoryIsShortened drops all that does not matter.
func TestAHistoryIsShortened(t *testing.T) {
	g := NewWithT(t)
	step := func(node int) etcdhistory.Step { return etcdhistory.Step{Kind: etcdhistory.Stop, Node: node} }
	whole := etcdhistory.History{Voters: 5, Steps: []etcdhistory.Step{step(0), step(1), step(2), step(3), step(4)}}
	found := etcdhistory.Shrink(&etcdhistory.Divergence{History: whole}, 100, func(history etcdhistory.History) error {
		nodes := map[int]bool{}
		for _, step := range history.Steps {
			nodes[step.Node] = true
		}
		if nodes[1] && nodes[4] {
			return &etcdhistory.Divergence{History: history}
		}
		return errors.New("something else")
	})
	g.Expect(found.History.Steps).To(Equal([]etcdhistory.Step{step(1), step(4)}))
}
