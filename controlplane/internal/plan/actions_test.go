package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// declared are the actions that a file of this package declares.
func declared(t *testing.T, file string) []Action {
	t.Helper()
	g := NewWithT(t)
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	g.Expect(err).NotTo(HaveOccurred())
	var actions []Action
	ast.Inspect(parsed, func(node ast.Node) bool {
		spec, isValue := node.(*ast.ValueSpec)
		if !isValue {
			return true
		}
		if of, named := spec.Type.(*ast.Ident); named && of.Name == "Action" {
			for _, value := range spec.Values {
				name, err := strconv.Unquote(value.(*ast.BasicLit).Value)
				g.Expect(err).NotTo(HaveOccurred())
				actions = append(actions, Action(name))
			}
		}

		return true
	})

	return actions
}

// TestEachActionHasARecheck: an action that is added without one fails here, and one
// without an effect in the tests of the controllers.
func TestEachActionHasARecheck(t *testing.T) {
	g := NewWithT(t)
	found := declared(t, "actions.go")
	g.Expect(len(found)).To(BeNumerically(">", 25))
	g.Expect(Actions()).To(ConsistOf(found))
}

func TestADecisionSaysHowSoonToLookAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		decision Decision
		want     Recheck
	}{
		"never while others have their turn": {Decide(Facts{}), RecheckNever},
		"at once while a node leaves":        {Decide(three(departing(1, leaving))), RecheckAtOnce},
		"soon while a Machine is deleted":    {Decide(three(departing(1, early))), RecheckSoon},
		"by the health at rest":              {Decide(three()), RecheckByHealth},
		"soon while workers are there":       {DecideDelete(DeleteFacts{Workers: []string{"Machine w"}}), RecheckSoon},
		"later while all Machines go":        {DecideDelete(DeleteFacts{Machines: 1}), RecheckLater},
		"never once all is done":             {DecideDelete(DeleteFacts{}), RecheckNever},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(tc.decision.Recheck).To(Equal(tc.want), string(tc.decision.Action))
		})
	}
}

// TestAbandonedMachinesAreLetGo: whatever else is decided, and at once.
func TestAbandonedMachinesAreLetGo(t *testing.T) {
	abandoned := func(m *MachineFacts) { m.Hook = HookAbandoned }
	for name, tc := range map[string]struct {
		facts Facts
		want  []string
		then  Action
	}{
		"none":                              {three(departing(1)), nil, LeaveEtcd},
		"without a majority":                {three(departing(1, abandoned), silentFor(0, 0), silentFor(2, 0)), []string{"cp-b"}, WaitForMachineDeletion},
		"two at once":                       {three(departing(1, abandoned), departing(2, abandoned)), []string{"cp-b", "cp-c"}, RemoveMember},
		"beside one that leaves":            {three(departing(0), departing(1, abandoned)), []string{"cp-b"}, LeaveEtcd},
		"when the Cluster goes":             {three(departing(1, abandoned), func(f *Facts) { f.ClusterDeleting = true }), []string{"cp-b"}, WaitForClusterDeletion},
		"not one that is not being deleted": {three(func(f *Facts) { f.Machines[1].Hook = HookAbandoned }), nil, Stable},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			decision := Decide(tc.facts)
			g.Expect(decision.Abandons).To(Equal(tc.want))
			g.Expect(decision.Action).To(Equal(tc.then), decision.Message)
		})
	}
}

// TestNeedsEndpoint: what is not asked for must have no say in the decision.
func TestNeedsEndpoint(t *testing.T) {
	unused := func(f *Facts) { f.Initialized = false }
	for name, tc := range map[string]struct {
		facts Facts
		want  bool
	}{
		"at rest":                                  {three(), true},
		"while a node leaves":                      {three(departing(1, leaving)), true},
		"when a node is to be asked to leave":      {three(departing(1)), false},
		"when a hook is to go":                     {three(departing(1, func(m *MachineFacts) { m.Configured, m.MemberID = false, 0 })), false},
		"when a member of no Machine is to leave":  {three(func(f *Facts) { f.Machines = f.Machines[:2] }), false},
		"when a Machine goes from an unused etcd":  {three(departing(1), unused), true},
		"when a Machine goes that is not due yet":  {three(departing(1, early)), true},
		"when something comes before the decision": {three(departing(1), func(f *Facts) { f.ForeignMachines = []string{"stray"} }), true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(tc.facts.NeedsEndpoint()).To(Equal(tc.want))
			if tc.want {
				return
			}
			for _, state := range []health.APIServerState{health.APIServerUnknown, health.APIServerSilent, health.APIServerNotReady, health.APIServerReady} {
				tc.facts.APIServer = state
				g.Expect(Decide(tc.facts).IsDeparture()).To(BeTrue())
			}
		})
	}
}
