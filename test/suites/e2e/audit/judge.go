package audit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// Row is what came of one grant.
type Row struct {
	Grant

	// Used is how many requests needed it.
	Used int
	// Explanation is why it need not be used; empty when there is none.
	Explanation string
}

// Verdict is what came of all.
type Verdict struct {
	// Rows has each grant.
	Rows []Row
	// Refused are the requests that were, with the answers.
	Refused map[Request]string
	// Stale are explanations that fit no grant.
	Stale []Explanation
}

// Judge compares what was granted with what was asked for.
func Judge(rights Rights, requests Requests, explained []Explanation) Verdict {
	verdict := Verdict{Refused: requests.Refused}
	for _, grant := range rights.Grants {
		row := Row{Grant: grant, Used: requests.count(grant)}
		for _, explanation := range explained {
			if explanation.fits(grant) && explanation.holds(grant, requests) {
				row.Explanation = explanation.Reason
				break
			}
		}
		verdict.Rows = append(verdict.Rows, row)
	}
	for _, explanation := range explained {
		if !slices.ContainsFunc(rights.Grants, explanation.fits) {
			verdict.Stale = append(verdict.Stale, explanation)
		}
	}
	return verdict
}

func (r Requests) count(grant Grant) int {
	count := 0
	for request, times := range r.Allowed {
		if grant.Uses(request) {
			count += times
		}
	}
	return count
}

// fits reports whether an explanation is about a grant.
func (e Explanation) fits(grant Grant) bool {
	for _, pair := range [][2]string{{e.Manager, grant.Manager}, {e.Group, grant.Group}, {e.Verb, grant.Verb}} {
		if matched, err := path.Match(pair[0], pair[1]); err != nil || !matched {
			return false
		}
	}
	// "*" would stop at the slash before a subresource.
	matched, err := path.Match(e.Resource, grant.Resource)
	return err == nil && (matched || e.Resource == "*")
}

func (e Explanation) holds(grant Grant, requests Requests) bool {
	if e.Beside == "" {
		return true
	}
	grant.Verb = e.Beside
	return requests.count(grant) > 0
}

// Refusals fails when something was refused.
func (v Verdict) Refusals() error {
	failures := make([]error, 0, len(v.Refused))
	for request, answer := range v.Refused {
		failures = append(failures, fmt.Errorf("%s was refused %s on %s in %q: %s", request.Manager, request.Verb, name(request.Group, request.Resource), request.Namespace, answer))
	}
	slices.SortFunc(failures, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(failures...)
}

// Needless fails for each right that was neither used nor explained, and for
// explanations that explain nothing.
func (v Verdict) Needless() error {
	var failures []error
	for _, row := range v.Rows {
		if row.Used == 0 && row.Explanation == "" {
			failures = append(failures, fmt.Errorf("%s may %s %s, which was neither used nor explained", row.Manager, row.Verb, name(row.Group, row.Resource)))
		}
	}
	for _, explanation := range v.Stale {
		failures = append(failures, fmt.Errorf("there is no right to %s %s of %s, which is explained: %s",
			explanation.Verb, name(explanation.Group, explanation.Resource), explanation.Manager, explanation.Reason))
	}
	return errors.Join(failures...)
}

func name(group, resource string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}

// outcome is what the table says of a row that was not used.
func (r Row) outcome() string {
	switch {
	case r.Used > 0:
		return ""
	case r.Explanation != "":
		return r.Explanation
	default:
		return "**neither used nor explained**"
	}
}

// Summary is the numbers of all grants.
func (v Verdict) Summary() string {
	used, explained := 0, 0
	for _, row := range v.Rows {
		switch {
		case row.Used > 0:
			used++
		case row.Explanation != "":
			explained++
		}
	}
	return fmt.Sprintf("%d granted, %d used, %d explained, %d neither; %d requests refused",
		len(v.Rows), used, explained, len(v.Rows)-used-explained, len(v.Refused))
}

// Table writes all grants as a table of Markdown, with their numbers first.
func (v Verdict) Table(out io.Writer) error {
	var rows strings.Builder
	for _, row := range v.Rows {
		fmt.Fprintf(&rows, "| %s | %s | %s | %s | %d | %s |\n",
			row.Manager, cmp.Or(row.Namespace, "all"), name(row.Group, row.Resource), row.Verb, row.Used, row.outcome())
	}
	_, err := fmt.Fprintf(out, "Rights of the managers: %s.\n\n"+
		"| manager | namespace | resource | verb | used | why it need not be used |\n|---|---|---|---|---|---|\n%s", v.Summary(), rows.String())
	return err
}
