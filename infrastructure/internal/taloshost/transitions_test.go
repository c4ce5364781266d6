package taloshost

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// transitions makes each change by the name of its function.
var transitions = map[string]func(*infrav1.TalosHost) error{
	"Claim":          func(h *infrav1.TalosHost) error { return Claim(h, consumer()) },
	"RenewClaim":     func(h *infrav1.TalosHost) error { return RenewClaim(h, consumer()) },
	"GiveBack":       func(h *infrav1.TalosHost) error { return GiveBack(h, time.Unix(1<<30, 0)) },
	"Disown":         Disown,
	"RecordHandover": func(h *infrav1.TalosHost) error { return RecordHandover(h, given(infrav1.HandoverStarted, "boot-2")) },
	"TakeBackHandover": func(h *infrav1.TalosHost) error {
		before := host("h", "192.0.2.1")
		before.Spec.Wiped = []infrav1.HostWipe{{ProviderID: "talos://1", ProvenAt: metav1.Unix(1, 0)}}
		return TakeBackHandover(h, &before)
	},
	"MarkRan": MarkRan,
	"RequestRelease": func(h *infrav1.TalosHost) error {
		return RequestRelease(h, infrav1.HostRelease{Policy: infrav1.ReleaseWipeAll, RequestedAt: metav1.Unix(1<<30, 0)})
	},
	"BeginReprovision":  func(h *infrav1.TalosHost) error { return BeginReprovision(h, "one", nil, time.Unix(1<<30, 0)) },
	"FinishReprovision": FinishReprovision,
	"StopWaiting":       StopWaiting,
	"Adopt":             func(h *infrav1.TalosHost) error { return Adopt(h, infrav1.HostIdentity{}, time.Unix(1<<30, 0)) },
	"RecordReset":       func(h *infrav1.TalosHost) error { return RecordReset(h, "apid-1", nil, time.Unix(1<<30, 0)) },
	"EndRelease":        func(h *infrav1.TalosHost) error { return EndRelease(h, time.Unix(1<<30, 0)) },
	"ReturnWiped":       func(h *infrav1.TalosHost) error { return ReturnWiped(h, time.Unix(1<<30, 0)) },
	"EndQuarantine":     EndQuarantine,
}

func consumer() *infrav1.TalosMachine {
	return &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "m", UID: "u"}, Spec: infrav1.TalosMachineSpec{ProviderID: "talos://1"},
	}
}

func given(progress infrav1.HandoverProgress, boot string) infrav1.HostHandover {
	return infrav1.HostHandover{ProviderID: "talos://1", Progress: progress, MaintenanceCertFingerprint: boot}
}

// hostsOf are hosts of each phase, by what they have beside it.
func hostsOf() map[Phase][]infrav1.TalosHost {
	claimed := func(h *infrav1.TalosHost) {
		h.Spec.ConsumerRef = infrav1.ConsumerReference{Kind: infrav1.TalosMachineKind, Namespace: "ns", Name: "m", ProviderID: "talos://1"}
	}
	started := func(h *infrav1.TalosHost) { h.Spec.Handover = given(infrav1.HandoverStarted, "boot-1") }
	ran := func(h *infrav1.TalosHost) { h.Spec.Handover = given(infrav1.HandoverRan, "boot-1") }
	released := func(h *infrav1.TalosHost) {
		h.Spec.Release.Policy, h.Spec.Release.ConsumerHealth = infrav1.ReleaseWipeSystem, infrav1.ConsumerUnhealthy
	}
	again := func(h *infrav1.TalosHost) {
		h.Spec.Reprovision = infrav1.HostReprovision{ClusterName: "one", Previous: given(infrav1.HandoverRan, "boot-0")}
	}
	shows := func(state infrav1.HostState) func(*infrav1.TalosHost) {
		return func(h *infrav1.TalosHost) {
			h.Status.State, h.Spec.AdoptionPolicy, h.Spec.Quarantine.Since = state, infrav1.AdoptionWipeForeign, metav1.Unix(1, 0)
		}
	}
	wiped := func(h *infrav1.TalosHost) {
		h.Spec.Wiped = []infrav1.HostWipe{{ProviderID: "talos://1", ProvenAt: metav1.Unix(1, 0)}}
	}

	return map[Phase][]infrav1.TalosHost{
		Free: {host("h", "192.0.2.1"), host("h", "192.0.2.1", shows(infrav1.HostAvailable)), host("h", "192.0.2.1", shows(infrav1.HostError))},
		Claimed: {
			host("h", "192.0.2.1", claimed), host("h", "192.0.2.1", claimed, again, wiped),
		},
		Provisioning: {host("h", "192.0.2.1", claimed, started), host("h", "192.0.2.1", claimed, started, again)},
		Provisioned:  {host("h", "192.0.2.1", claimed, ran), host("h", "192.0.2.1", claimed, ran, again)},
		Releasing: {
			host("h", "192.0.2.1", claimed, ran, released), host("h", "192.0.2.1", claimed, ran, released, again),
			host("h", "192.0.2.1", ran, released), host("h", "192.0.2.1", released),
		},
		Orphaned: {host("h", "192.0.2.1", ran)},
	}
}

// changed are the records in which two hosts differ.
func changed(before, after *infrav1.TalosHost) []Record {
	var found []Record
	kind := reflect.TypeFor[infrav1.TalosHostSpec]()
	for i := range kind.NumField() {
		if !reflect.DeepEqual(reflect.ValueOf(before.Spec).Field(i).Interface(), reflect.ValueOf(after.Spec).Field(i).Interface()) {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			found = append(found, Record(name))
		}
	}

	return found
}

// TestTransitionsKeepToTheTable: each function does what its row says, from each phase:
// it leads to that phase, writes those records, and each of them somewhere; or it refuses,
// and changes nothing.
func TestTransitionsKeepToTheTable(t *testing.T) {
	g := NewWithT(t)
	for _, rule := range Rules() {
		written := map[Record]bool{}
		g.Expect(transitions).To(HaveKey(rule.Name))
		for phase, hosts := range hostsOf() {
			for _, before := range hosts {
				g.Expect(PhaseOf(&before)).To(Equal(phase))
				after := *before.DeepCopy()
				err := transitions[rule.Name](&after)
				if !rule.Allows(&before) {
					var refused *RefusedError
					g.Expect(errors.As(err, &refused)).To(BeTrue(), "%s in %s", rule.Name, phase)
					g.Expect(refused).To(Equal(&RefusedError{Transition: rule.Name, Phase: phase, Host: "h"}))
					g.Expect(after).To(Equal(before))
					continue
				}
				g.Expect(err).NotTo(HaveOccurred(), "%s in %s", rule.Name, phase)
				g.Expect(rule.From).To(ContainElement(phase))
				to := rule.To
				if to == "" {
					to = phase
				}
				g.Expect(PhaseOf(&after)).To(Equal(to), "%s in %s", rule.Name, phase)
				for _, record := range changed(&before, &after) {
					written[record] = true
					g.Expect(rule.Records).To(ContainElement(record), "%s in %s", rule.Name, phase)
				}
			}
		}
		for _, record := range rule.Records {
			g.Expect(written).To(HaveKey(record), "%s writes %s nowhere", rule.Name, record)
		}
	}
	g.Expect(transitions).To(HaveLen(len(Rules())))
}

// TestWhatBecomesFreeIsFree: nothing of a claim is left on a host that anybody may have
// next, or that nobody has.
func TestWhatBecomesFreeIsFree(t *testing.T) {
	g := NewWithT(t)
	for _, rule := range Rules() {
		if rule.To != Free {
			continue
		}
		for _, hosts := range hostsOf() {
			for _, host := range hosts {
				metav1.SetMetaDataAnnotation(&host.ObjectMeta, infrav1.BlockMoveAnnotation, "")
				if !rule.Allows(&host) || rule.Name == "EndQuarantine" {
					continue
				}
				g.Expect(transitions[rule.Name](&host)).To(Succeed())
				g.Expect(RecordsOf(&host.Spec)).To(Or(BeEmpty(), HaveEach(BeElementOf(Quarantine, Wiped))), rule.Name)
				g.Expect(host.Annotations).NotTo(HaveKey(infrav1.BlockMoveAnnotation), rule.Name)
			}
		}
	}
}

// TestAnUnknownTransitionIsRefused: what has no row is not allowed.
func TestAnUnknownTransitionIsRefused(t *testing.T) {
	free := host("h", "192.0.2.1")
	NewWithT(t).Expect(check(&free, "Sell")).To(MatchError(ContainSubstring("allow no Sell in phase Free")))
}

// TestRecordsAreFields: each record is a field of the spec, and admission knows when it
// is set.
func TestRecordsAreFields(t *testing.T) {
	g := NewWithT(t)
	all := []Record{ConsumerRef, Handover, Release, Quarantine, Reprovision, Wiped}
	var set []Record
	for _, hosts := range hostsOf() {
		for i := range hosts {
			set = append(set, RecordsOf(&hosts[i].Spec)...)
			for _, record := range RecordsOf(&hosts[i].Spec) {
				g.Expect(changed(&infrav1.TalosHost{}, &hosts[i])).To(ContainElement(record))
			}
		}
	}
	g.Expect(set).To(ContainElements(all))
	for _, rule := range Rules() {
		g.Expect(all).To(ContainElements(rule.Records), rule.Name)
	}
}

// edge is a line of a state diagram.
type edge struct{ from, to, text string }

// TestTheDiagramIsTheTable: the diagram of docs/hosts.md has a line for each change of a
// phase, and for each change of what is seen, and no other.
func TestTheDiagramIsTheTable(t *testing.T) {
	g := NewWithT(t)
	texts := map[[2]string][]string{{"[*]", string(infrav1.HostUnknown)}: {""}}
	add := func(from, to infrav1.HostState, text string) {
		key := [2]string{string(from), string(to)}
		texts[key] = append(texts[key], text)
	}
	for _, rule := range Rules() {
		for _, phase := range rule.From {
			if rule.To == "" || rule.To == phase {
				continue
			}
			// What becomes free is looked at next; only what was not seen as Error is claimed.
			from, to := []infrav1.HostState{infrav1.HostState(phase)}, rule.To.States()[0]
			if phase == Free {
				from = phase.States()
			}
			for _, state := range from {
				if len(rule.Seen) == 0 || slices.Contains(rule.Seen, state) {
					add(state, to, rule.Text)
				}
			}
		}
	}
	for _, seen := range Observations() {
		add(seen.From, seen.To, seen.Text)
	}
	var wanted []edge
	for key, text := range texts {
		wanted = append(wanted, edge{key[0], key[1], strings.Join(text, ", or ")})
	}
	g.Expect(diagram(g)).To(ConsistOf(wanted))
}

// TestObservationsStayInAPhase: they are all changes between the states of one phase.
func TestObservationsStayInAPhase(t *testing.T) {
	var wanted, found [][2]infrav1.HostState
	for _, phase := range []Phase{Free, Claimed, Provisioning, Provisioned, Releasing, Orphaned} {
		for _, from := range phase.States() {
			for _, to := range phase.States() {
				if from != to {
					wanted = append(wanted, [2]infrav1.HostState{from, to})
				}
			}
		}
	}
	for _, seen := range Observations() {
		found = append(found, [2]infrav1.HostState{seen.From, seen.To})
	}
	NewWithT(t).Expect(found).To(ConsistOf(wanted))
}

// diagram is that of the hosts page.
func diagram(g *WithT) []edge {
	page, err := os.ReadFile("../../../docs/hosts.md")
	g.Expect(err).NotTo(HaveOccurred())
	_, text, _ := strings.Cut(string(page), "stateDiagram-v2\n")
	text, _, _ = strings.Cut(text, "```")
	var edges []edge
	for line := range strings.Lines(text) {
		from, rest, isEdge := strings.Cut(strings.TrimSpace(line), " --> ")
		g.Expect(isEdge).To(BeTrue(), line)
		to, words, _ := strings.Cut(rest, ": ")
		edges = append(edges, edge{from, to, words})
	}

	return edges
}

// TestRecordsAreWrittenHereOnly: no other package of the provider assigns a record of a
// host, or lends one out to be assigned.
func TestRecordsAreWrittenHereOnly(t *testing.T) {
	g := NewWithT(t)
	var strays []string
	tree := os.DirFS("../..")
	g.Expect(fs.WalkDir(tree, ".", func(file string, entry fs.DirEntry, err error) error {
		// The harness plays users, who restore hosts as they were.
		if file == "internal/taloshost" || file == "internal/harness" {
			return fs.SkipDir
		}
		if err != nil || path.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") || strings.HasPrefix(entry.Name(), "zz_generated") {
			return err
		}
		source, err := fs.ReadFile(tree, file)
		strays = append(strays, straysIn(g, file, string(source))...)
		return err
	})).To(Succeed())
	g.Expect(strays).To(BeEmpty())

	for name, source := range map[string]string{
		"assigned":                  `host.Spec.ConsumerRef = x`,
		"assigned in part":          `host.Spec.Handover.Progress = x`,
		"assigned beside others":    `a, host.Spec.Wiped = x, y`,
		"an element of it":          `host.Spec.Wiped[0] = x`,
		"through a spec":            `spec.Release = x`,
		"lent out":                  `release := &host.Spec.Release`,
		"lent out in part":          `f(&host.Spec.Release.ResetAt)`,
		"given to a new spec":       `f(infrav1.TalosHostSpec{Quarantine: x})`,
		"the whole spec":            `host.Spec = x`,
		"the whole spec of a field": `s.host.Spec = x`,
	} {
		g.Expect(straysIn(g, name, "package p\nfunc f() {\n"+source+"\n}")).To(HaveLen(1), name)
	}
}

// straysIn are the places of a source that write a record of a host.
func straysIn(g *WithT, file, source string) []string {
	fileSet := token.NewFileSet()
	parsed, err := parser.ParseFile(fileSet, file, source, parser.SkipObjectResolution)
	g.Expect(err).NotTo(HaveOccurred())
	var strays []string
	note := func(node ast.Node) { strays = append(strays, fileSet.Position(node.Pos()).String()) }
	ast.Inspect(parsed, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.AssignStmt:
			for _, left := range node.Lhs {
				if isRecord(left) || isHostSpec(left) {
					note(left)
				}
			}
		case *ast.UnaryExpr:
			if node.Op == token.AND && isRecord(node.X) {
				note(node)
			}
		case *ast.CompositeLit:
			if kind, ok := node.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "TalosHostSpec" && slices.ContainsFunc(node.Elts, isRecordOfLiteral) {
				note(node)
			}
		}
		return true
	})

	return strays
}

var recordFields = []string{"ConsumerRef", "Handover", "Release", "Quarantine", "Reprovision", "Wiped"}

// isRecord reports whether an expression is a record in a spec, or a part of it.
func isRecord(expression ast.Expr) bool {
	for {
		switch found := expression.(type) {
		case *ast.IndexExpr:
			expression = found.X
		case *ast.SelectorExpr:
			if slices.Contains(recordFields, found.Sel.Name) && isSpec(found.X) {
				return true
			}
			expression = found.X
		default:
			return false
		}
	}
}

// isSpec reports whether an expression ends in a spec.
func isSpec(expression ast.Expr) bool {
	switch found := expression.(type) {
	case *ast.SelectorExpr:
		return found.Sel.Name == "Spec"
	case *ast.Ident:
		return found.Name == "spec"
	}

	return false
}

// isHostSpec reports whether an expression is the whole spec of a host.
func isHostSpec(expression ast.Expr) bool {
	selector, ok := expression.(*ast.SelectorExpr)
	if !ok || selector.Sel.Name != "Spec" {
		return false
	}
	switch of := selector.X.(type) {
	case *ast.Ident:
		return of.Name == "host"
	case *ast.SelectorExpr:
		return of.Sel.Name == "host"
	}

	return false
}

func isRecordOfLiteral(element ast.Expr) bool {
	pair, ok := element.(*ast.KeyValueExpr)
	if !ok {
		return false
	}
	key, ok := pair.Key.(*ast.Ident)

	return ok && slices.Contains(recordFields, key.Name)
}
