package etcdhistory

import (
	"fmt"
	"math/rand/v2"
)

const (
	// maxNodes is how many nodes a history may have.
	maxNodes = 8
	// minSteps and maxSteps are how long a history is.
	minSteps, maxSteps = 6, 12
)

// sizes are the clusters that histories begin with, and how often.
func sizes() []int { return []int{1, 3, 3, 3, 5, 5} }

// draws are how often a kind of step is tried.
func draws() []Kind {
	return []Kind{
		Join, Join, Join, Join, Join, Join, Announce, Announce, Promote, Promote, Promote, Promote, Promote,
		Remove, Remove, Remove, Remove, Remove, Leave, Leave, Leave, Stop, Stop, Stop, Stop, Silence, Silence,
		Start, Start, Start, Start, Start, Wipe, Lead,
	}
}

// Generate makes the history of a seed. It always is the same one. Steps that
// make no sense are not taken; those that the model refuses are.
func Generate(seed uint64) (History, error) {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // Reproducible, no secret.
	choice := sizes()
	history := History{Seed: seed, Voters: choice[random.IntN(len(choice))]}
	j, err := newJudge(history.Voters, func(node int) string { return fmt.Sprintf("http://%d", node) })
	if err != nil {
		return History{}, err
	}
	kinds := draws()
	const tries = 1000
	count := minSteps + random.IntN(maxSteps-minSteps+1)
	for range tries {
		if len(history.Steps) == count {
			break
		}
		step := draw(random, j, kinds[random.IntN(len(kinds))])
		if !j.possible(step) {
			continue
		}
		history.Steps = append(history.Steps, step)
		// Whether it is refused does not matter.
		_ = j.apply(step, j.ask(step))
	}
	return history, nil
}

// draw makes a step of a kind.
func draw(random *rand.Rand, j *judge, kind Kind) Step {
	step := Step{Kind: kind, Node: random.IntN(maxNodes), Via: random.IntN(maxNodes)}
	switch kind {
	case Join:
		step.Name = nodeName(step.Node)
		// Sometimes under the name of a node that may be a member.
		if random.IntN(3) == 0 {
			step.Name = nodeName(random.IntN(maxNodes))
		}
	case Promote:
		// Mostly a learner, if there is one.
		for _, learner := range j.up(true) {
			if random.IntN(3) > 0 {
				step.Node = learner
			}
		}
	case Announce, Remove, Leave, Stop, Silence, Start, Wipe, Lead:
	}
	return step
}
