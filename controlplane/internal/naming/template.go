package naming

import (
	"fmt"
	"slices"
	"text/template"
	"text/template/parse"
)

// maxText is how long a text may be that a function of a template makes: much
// longer than a name.
const maxText = 1024

// parseTemplate reads a naming template. It ends when it is executed, and fills no
// memory: without loops and templates of its own it does not more than it says.
func parseTemplate(text string) (*template.Template, error) {
	parsed, err := template.New("machineNaming").Option("missingkey=error").Funcs(boundedFunctions()).Parse(text)
	if err != nil {
		return nil, &UnfitError{fmt.Sprintf("parsing the naming template: %v", err)}
	}
	isOther := func(t *template.Template) bool { return t.Name() != parsed.Name() }
	if slices.ContainsFunc(parsed.Templates(), isOther) || parsed.Tree != nil && repeats(parsed.Root) {
		return nil, &UnfitError{"must have no loops and no templates of its own ({{ range }}, {{ template }}, {{ define }}, {{ block }}): " +
			"a name is made of .cluster.name, .talosControlPlane.name and .random"}
	}

	return parsed, nil
}

// repeats reports whether a part of a template may be executed more than once.
func repeats(node parse.Node) bool {
	switch node := node.(type) {
	case *parse.RangeNode, *parse.TemplateNode:
		return true
	case *parse.ListNode:
		return node != nil && slices.ContainsFunc(node.Nodes, repeats)
	case *parse.IfNode:
		return repeats(node.List) || repeats(node.ElseList)
	case *parse.WithNode:
		return repeats(node.List) || repeats(node.ElseList)
	default:
		return false
	}
}

// boundedFunctions stand for the functions of text/template that make text. A short
// template can put one into another so that the text doubles with each.
func boundedFunctions() template.FuncMap {
	return template.FuncMap{
		"html":     bounded(template.HTMLEscaper),
		"js":       bounded(template.JSEscaper),
		"urlquery": bounded(template.URLQueryEscaper),
		"print":    bounded(fmt.Sprint),
		"println":  bounded(fmt.Sprintln),
		"printf": func(format string, values ...any) (string, error) {
			return bounded(func(values ...any) string { return fmt.Sprintf(format, values...) })(values...)
		},
	}
}

func bounded(text func(...any) string) func(...any) (string, error) {
	return func(values ...any) (string, error) {
		made := text(values...)
		if len(made) > maxText {
			return "", fmt.Errorf("makes a text of more than %d characters", maxText)
		}

		return made, nil
	}
}
