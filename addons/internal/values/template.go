package values

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
)

const (
	// templateName is how errors call the template.
	templateName = "valuesTemplate"
	// tick is the function that counts the rounds of loops.
	tick = "__tick"
)

// Data is what a template is given: the objects as the management cluster has them. A nil
// one is empty.
type Data struct {
	Cluster, InfraCluster, ControlPlane map[string]any
}

// errTooMuch ends a template that works too much.
var errTooMuch = errors.New("the template works too much: fewer loops, or shorter texts")

// Check reports why a template cannot be used, with the line; nil when it can.
func Check(text string) error {
	_, _, err := compile(text)
	return err
}

// Render renders a template to a part of values.
func Render(text string, data Data) (Part, error) {
	compiled, budget, err := compile(text)
	if err != nil {
		return Part{}, err
	}
	out := &limited{}
	*budget = maxWork
	if err := compiled.Execute(out, map[string]any{
		"Cluster": data.Cluster, "InfraCluster": data.InfraCluster, "ControlPlane": data.ControlPlane,
	}); err != nil {
		return Part{}, templateError(err)
	}

	return Part{From: templateName, Text: out.Bytes()}, nil
}

func templateError(err error) error {
	if errors.Is(err, errTooMuch) {
		return &Error{templateName, errTooMuch.Error()}
	}

	return &Error{templateName, err.Error()}
}

// compile parses a template, and has it count what it does. The budget is its to spend.
func compile(text string) (*template.Template, *int, error) {
	budget := new(int)
	compiled, err := template.New(templateName).Option("missingkey=error").Funcs(functions(budget)).Parse(text)
	if err != nil {
		return nil, nil, &Error{templateName, err.Error()}
	}
	if len(compiled.Templates()) > 1 {
		return nil, nil, &Error{templateName, "define and block cannot be used: values need no templates of their own"}
	}
	if compiled.Tree == nil {
		return compiled, budget, nil
	}
	counter, err := template.New(tick).Funcs(template.FuncMap{tick: func() string { return "" }}).Parse("{{" + tick + "}}")
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the template: %w", err)
	}
	if err := count(compiled.Root, counter.Root.Nodes[0]); err != nil {
		return nil, nil, err
	}

	return compiled, budget, nil
}

// count has each loop below a node count its rounds.
func count(list *parse.ListNode, counter parse.Node) error {
	if list == nil {
		return nil
	}
	for _, node := range list.Nodes {
		var branch *parse.BranchNode
		switch node := node.(type) {
		case *parse.RangeNode:
			branch = &node.BranchNode
			node.List.Nodes = append([]parse.Node{counter.Copy()}, node.List.Nodes...)
		case *parse.IfNode:
			branch = &node.BranchNode
		case *parse.WithNode:
			branch = &node.BranchNode
		case *parse.TemplateNode:
			return &Error{templateName, fmt.Sprintf("line %d: template cannot be used: values need no templates of their own", node.Line)}
		default:
			continue
		}
		if err := errors.Join(count(branch.List, counter), count(branch.ElseList, counter)); err != nil {
			return err
		}
	}

	return nil
}

// withheld are functions of sprig that templates do not have: they read the environment,
// the network or the clock, give another result each time, take very long, or change what
// was made before: a map that contains itself has no end. The rest gives the same for the
// same Cluster, so that nothing is rolled out without a reason.
var withheld = []string{
	"env", "expandenv", "getHostByName",
	"now", "ago", "date", "date_in_zone", "date_modify", "dateInZone", "dateModify", "mustDateModify", "must_date_modify", "htmlDate", "htmlDateInZone", "durationRound",
	"randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4",
	"genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey", "buildCustomCert",
	"bcrypt", "htpasswd", "derivePassword", "encryptAES", "decryptAES",
	"set", "unset",
}

// functions are those of a template. Each call costs of the budget, and what it makes is
// bounded.
func functions(budget *int) template.FuncMap {
	known := sprig.TxtFuncMap()
	for _, name := range withheld {
		delete(known, name)
	}
	maps.Copy(known, template.FuncMap{
		"toYaml": func(value any) (string, error) {
			text, err := yaml.Marshal(value)
			return string(bytes.TrimSuffix(text, []byte("\n"))), err
		},
		"fromYaml": func(text string) (map[string]any, error) {
			read := map[string]any{}
			if err := yamlsize.Check([]byte(text), maxBytes); err != nil {
				return nil, errTooMuch
			}
			return read, yaml.Unmarshal([]byte(text), &read)
		},
		// Those of text/template, to be bounded as well.
		"printf": fmt.Sprintf, "print": fmt.Sprint, "println": fmt.Sprintln,
		"html": template.HTMLEscaper, "js": template.JSEscaper, "urlquery": template.URLQueryEscaper,
		// Those of sprig have another order each time.
		"keys": sortedKeys, "values": valuesByKey,
		// Those of sprig change what they are given.
		"merge": merged(false), "mustMerge": merged(false), "mergeOverwrite": merged(true), "mustMergeOverwrite": merged(true),
	})
	bounded := template.FuncMap{}
	for name, function := range known {
		bounded[name] = boundedFunction(name, function, budget)
	}
	bounded[tick] = func() (string, error) { return "", spend(budget, 1) }

	return bounded
}

// sortedKeys are the keys of maps.
func sortedKeys(maps ...map[string]any) []string {
	var keys []string
	for _, one := range maps {
		for key := range one {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)

	return keys
}

// valuesByKey are the values of a map, in the order of its keys.
func valuesByKey(of map[string]any) []any {
	var found []any
	for _, key := range slices.Sorted(maps.Keys(of)) {
		found = append(found, of[key])
	}

	return found
}

// merged merges maps into a new one. The first that has a key counts, or the last one.
func merged(lastCounts bool) func(maps ...map[string]any) map[string]any {
	return func(all ...map[string]any) map[string]any {
		if !lastCounts {
			all = slices.Clone(all)
			slices.Reverse(all)
		}
		made := map[string]any{}
		for _, one := range all {
			made = mergedTwo(made, one)
		}
		return made
	}
}

// mergedTwo is a new map with what is in base and over.
func mergedTwo(base, over map[string]any) map[string]any {
	made := map[string]any{}
	maps.Copy(made, base)
	for key, value := range over {
		below, isMap := value.(map[string]any)
		former, wasMap := made[key].(map[string]any)
		if isMap && wasMap {
			value = mergedTwo(former, below)
		}
		made[key] = value
	}

	return made
}

// limited is a buffer that takes no more than values may have.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(text []byte) (int, error) {
	if l.Len()+len(text) > maxBytes {
		return 0, errTooMuch
	}

	return l.Buffer.Write(text)
}
