// Package alerts holds the alert rules to Prometheus and to the metrics that there
// are. It is a module of its own, so that nothing else needs Prometheus.
package alerts

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

// rules is a file of rules, with the fields that we use.
type rules struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// target are labels that the scrape job gives to all series.
func target() []string { return []string{"pod", "provider", "job", "instance"} }

// metrics are the metrics that there are, with their labels: those of the
// documentation, which other tests hold to the code, and those of libraries.
func metrics(g Gomega) map[string][]string {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	g.Expect(err).NotTo(HaveOccurred())
	known := map[string][]string{"controller_runtime_reconcile_total": {"controller", "result"}}
	name := regexp.MustCompile("^\\| `(capi_[a-z<>_]+)` \\|")
	for line := range strings.Lines(string(page)) {
		match := name.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		labels := []string{}
		for _, label := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(strings.Split(line, "|")[3], -1) {
			labels = append(labels, label[1])
		}
		if strings.HasPrefix(match[1], "capi_talos_") {
			known[match[1]] = labels
			continue
		}
		labels = append(labels, "name", "namespace", "uid", "cluster_name")
		kinds := []string{
			"talosconfig", "taloscontrolplane", "taloscluster", "talosmachine", "taloshost", "talosclusteraddon", "talosclusteraddonrelease",
			"talosbackupstore", "talosetcdbackup", "talosetcdbackupschedule", "talosetcdrestore",
		}
		for _, kind := range kinds {
			known[strings.Replace(match[1], "<kind>", kind, 1)] = labels
		}
	}

	return known
}

// all are the rules of the file.
func all(g Gomega) []rule {
	read := rules{}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "config", "metrics", "alerts.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(yaml.UnmarshalStrict(text, &read)).To(Succeed())
	var found []rule
	for _, group := range read.Groups {
		found = append(found, group.Rules...)
	}
	g.Expect(found).NotTo(BeEmpty())

	return found
}

func TestAlertRules(t *testing.T) {
	g := NewWithT(t)
	known := metrics(g)
	for _, rule := range all(g) {
		t.Run(rule.Alert, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(rule.Labels["severity"]).To(BeElementOf("info", "warning", "critical"))
			if rule.For != "" {
				_, err := time.ParseDuration(rule.For)
				g.Expect(err).NotTo(HaveOccurred())
			}
			shown := expectExpression(g, rule.Expr, known)
			expectSummary(g, rule.Annotations["summary"], shown)
		})
	}
}

// expectExpression says that an expression is one of Prometheus, over metrics and
// labels that there are, and returns the labels of its result.
func expectExpression(g Gomega, text string, known map[string][]string) []string {
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	g.Expect(err).NotTo(HaveOccurred())
	comparison, ok := expression.(*parser.BinaryExpr)
	g.Expect(ok && (comparison.Op.IsComparisonOperator() || comparison.Op.IsSetOperator())).To(BeTrue(), "an alert is a comparison")
	var selected, grouped, result []string
	selectors := 0
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			selectors++
			g.Expect(known).To(HaveKey(node.Name))
			selected = append(selected, known[node.Name]...)
			for _, matcher := range node.LabelMatchers {
				if matcher.Name != "__name__" {
					g.Expect(known[node.Name]).To(ContainElement(matcher.Name), node.Name)
				}
			}
		case *parser.AggregateExpr:
			grouped = append(grouped, node.Grouping...)
			if result == nil {
				result = node.Grouping
			}
		}
		return nil
	})
	g.Expect(selectors).NotTo(BeZero())
	for _, label := range grouped {
		g.Expect(slices.Concat(selected, target())).To(ContainElement(label))
	}

	return result
}

// expectSummary says that a summary is a template over labels that the alert has.
func expectSummary(g Gomega, text string, labels []string) {
	g.Expect(text).NotTo(BeEmpty())
	same := func(value any) any { return value }
	_, err := template.New("summary").
		Funcs(template.FuncMap{"humanize1024": same, "humanizeDuration": same, "humanizePercentage": same}).
		Parse("{{ $labels := .Labels }}{{ $value := .Value }}" + text)
	g.Expect(err).NotTo(HaveOccurred())
	for _, used := range regexp.MustCompile(`\$labels\.([a-z_]+)`).FindAllStringSubmatch(text, -1) {
		g.Expect(labels).To(ContainElement(used[1]))
	}
}
