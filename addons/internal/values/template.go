package values

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"text/template"
	"text/template/parse"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

const (
	// maxCalls is how many functions a template may call, and how many rounds its loops
	// may make, all in all.
	maxCalls = 100_000
	// maxItems is how many items a list may have that a function makes.
	maxItems = 10_000
	// maxCount bounds the numbers from which functions make as much text or as many items.
	maxCount = 10_000
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
	*budget = maxCalls
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
// the network or the clock, give another result each time, or take very long. The rest
// gives the same for the same Cluster, so that nothing is rolled out without a reason.
var withheld = []string{
	"env", "expandenv", "getHostByName",
	"now", "ago", "date", "date_in_zone", "date_modify", "dateInZone", "dateModify", "mustDateModify", "must_date_modify", "htmlDate", "htmlDateInZone",
	"randAlphaNum", "randAlpha", "randAscii", "randNumeric", "randBytes", "randInt", "shuffle", "uuidv4",
	"genPrivateKey", "genCA", "genCAWithKey", "genSelfSignedCert", "genSelfSignedCertWithKey", "genSignedCert", "genSignedCertWithKey", "buildCustomCert",
	"bcrypt", "htpasswd", "derivePassword", "encryptAES", "decryptAES",
}

// counted are functions that make as much as a number among their arguments says.
var counted = []string{"repeat", "indent", "nindent", "until", "untilStep", "seq", "wrap", "wrapWith", "trunc", "abbrev", "abbrevboth"}

// functions are those of a template. Each call costs one of the budget, and what it makes
// is bounded.
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
			return read, yaml.Unmarshal([]byte(text), &read)
		},
		"printf": fmt.Sprintf, "print": fmt.Sprint, "println": fmt.Sprintln,
	})
	bounded := template.FuncMap{}
	for name, function := range known {
		bounded[name] = boundedFunction(function, budget, slices.Contains(counted, name))
	}
	bounded[tick] = func() (string, error) { return "", spend(budget) }

	return bounded
}

func spend(budget *int) error {
	if *budget--; *budget < 0 {
		return errTooMuch
	}

	return nil
}

// boundedFunction is a function that pays for its calls. It panics where the budget is
// spent, which text/template makes an error.
func boundedFunction(function any, budget *int, counted bool) any {
	value := reflect.ValueOf(function)
	kind := value.Type()

	return reflect.MakeFunc(kind, func(arguments []reflect.Value) []reflect.Value {
		if err := spend(budget); err != nil {
			panic(err)
		}
		if counted {
			refuseLargeNumbers(arguments)
		}
		call := value.Call
		if kind.IsVariadic() {
			call = value.CallSlice
		}
		results := call(arguments)
		if length(results[0]) > maxBytes || (isList(results[0]) && length(results[0]) > maxItems) {
			panic(errTooMuch)
		}
		return results
	}).Interface()
}

func refuseLargeNumbers(arguments []reflect.Value) {
	for _, argument := range arguments {
		if argument.Kind() == reflect.Slice {
			for i := range argument.Len() {
				refuseLargeNumbers([]reflect.Value{argument.Index(i)})
			}
			continue
		}
		if argument.Kind() == reflect.Interface {
			argument = argument.Elem()
		}
		if argument.IsValid() && argument.CanInt() && (argument.Int() > maxCount || argument.Int() < -maxCount) {
			panic(errTooMuch)
		}
	}
}

func isList(value reflect.Value) bool {
	if value.Kind() == reflect.Interface {
		value = value.Elem()
	}

	return value.IsValid() && value.Kind() == reflect.Slice && value.Type().Elem().Kind() != reflect.Uint8
}

func length(value reflect.Value) int {
	if value.Kind() == reflect.Interface {
		value = value.Elem()
	}
	if !value.IsValid() {
		return 0
	}
	switch value.Kind() {
	case reflect.String, reflect.Slice, reflect.Map:
		return value.Len()
	default:
		return 0
	}
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
