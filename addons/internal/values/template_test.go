package values

import (
	"testing"

	. "github.com/onsi/gomega"
)

var cluster = Data{Cluster: map[string]any{"metadata": map[string]any{"name": "blue", "labels": map[string]any{"zone": "north"}}}}

func TestTemplatesRenderToValues(t *testing.T) {
	for name, tt := range map[string]struct {
		template, rendered string
	}{
		"plain text":             {"a: b\n", "a: b\n"},
		"nothing":                {"{{/* nothing */}}", ""},
		"a field of the Cluster": {"name: {{ .Cluster.metadata.name }}", "name: blue"},
		"a function of sprig":    {`zone: {{ .Cluster.metadata.labels.zone | upper | quote }}`, `zone: "NORTH"`},
		"a default for what may be missing": {
			`tier: {{ dig "metadata" "annotations" "tier" "small" .Cluster }}`, "tier: small",
		},
		"loops":              {"l: [{{ range $i := until 3 }}{{ if $i }}, {{ end }}{{ $i }}{{ end }}]", "l: [0, 1, 2]"},
		"part of it as YAML": {"labels:\n{{ .Cluster.metadata.labels | toYaml | indent 2 }}", "labels:\n  zone: north"},
		"with else":          {"{{ with .ControlPlane }}a: {{ . }}{{ else }}a: none{{ end }}", "a: none"},
		"variadic functions": {`a: {{ list 1 2 3 | join "-" }}`, "a: 1-2-3"},
		"keys in order":      {`a: {{ keys (dict "b" 1 "a" 2) (dict "c" 3) | join "," }}`, "a: a,b,c"},
		"values in order":    {`a: {{ values (dict "b" 1 "a" 2) | join "," }}`, "a: 2,1"},
		"maps merged": {
			`{{ $a := dict "x" (dict "y" 1) }}{{ merge $a (dict "x" (dict "y" 2 "z" 3)) | toJson }} {{ mergeOverwrite $a (dict "x" (dict "y" 2)) | toJson }} {{ toJson $a }}`,
			`{"x":{"y":1,"z":3}} {"x":{"y":2}} {"x":{"y":1}}`,
		},
		"patterns": {`a: {{ regexReplaceAll "^(b)lue" .Cluster.metadata.name "${1}lack" }}`, "a: black"},
		"printf":   {`a: {{ printf "%s-%03d" .Cluster.metadata.name 7 }}`, "a: blue-007"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(Check(tt.template)).To(Succeed())
			part, err := Render(tt.template, cluster)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(string(part.Text)).To(Equal(tt.rendered))
			g.Expect(part.From).To(Equal("valuesTemplate"))
		})
	}
}

func TestTemplatesThatCannotBeUsedAreRefusedWithTheLine(t *testing.T) {
	for name, tt := range map[string]struct {
		template, message string
	}{
		"no template":          {"a: b\nc: {{ .Cluster", "valuesTemplate: template: valuesTemplate:2: unclosed action"},
		"an unknown function":  {"\n\na: {{ nonsense }}", `valuesTemplate:3: function "nonsense" not defined`},
		"the environment":      {`a: {{ env "HOME" }}`, `function "env" not defined`},
		"the environment, too": {`a: {{ expandenv "$HOME" }}`, `function "expandenv" not defined`},
		"the network":          {`a: {{ getHostByName "example.com" }}`, `function "getHostByName" not defined`},
		"chance":               {`a: {{ randAlphaNum 5 }}`, `function "randAlphaNum" not defined`},
		"the clock":            {`a: {{ now }}`, `function "now" not defined`},
		"files":                {`a: {{ readFile "/etc/passwd" }}`, `function "readFile" not defined`},
		"a map in itself":      {`{{ $d := dict }}{{ $x := set $d "a" $d }}{{ $d }}`, `function "set" not defined`},
		"templates of its own": {`{{ define "x" }}{{ end }}a: b`, "define and block cannot be used"},
		"recursion":            {"a: b\n{{ if true }}{{ template \"valuesTemplate\" . }}{{ end }}", "line 2: template cannot be used"},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(Check(tt.template)).To(MatchError(ContainSubstring(tt.message)))
		})
	}
}

// TestATemplateCannotWorkForEver: who may write add-ons in a namespace must not stop the
// manager for the others.
func TestATemplateCannotWorkForEver(t *testing.T) {
	for name, template := range map[string]string{
		"loops in loops":                  `{{ range until 1000 }}{{ range until 1000 }}{{ range until 1000 }}{{ end }}{{ end }}{{ end }}`,
		"loops over data":                 `{{ $l := splitList "," (repeat 9999 ",") }}{{ range $l }}{{ range $l }}{{ end }}{{ end }}`,
		"a long list":                     `{{ range until 1000000000 }}{{ end }}`,
		"a list of steps":                 `{{ range untilStep 0 2000000000 1 }}{{ end }}`,
		"a sequence":                      `{{ seq 2000000000 }}`,
		"a long text":                     `{{ repeat 1000000000 "x" }}`,
		"far to the right":                `{{ indent 1000000000 "x" }}`,
		"a text that doubles":             `{{ $s := "xx" }}{{ range until 60 }}{{ $s = print $s $s }}{{ end }}`,
		"a list that doubles":             `{{ $l := list 1 }}{{ range until 60 }}{{ $l = concat $l $l }}{{ end }}`,
		"much output":                     `{{ range until 2000 }}{{ repeat 1000 "x" }}{{ end }}`,
		"a wide number":                   `{{ range until 9000 }}{{ printf "%999999d" 1 }}{{ end }}`,
		"texts of texts":                  `{{ $s := repeat 100 (repeat 1000 "x") }}{{ repeat 10000 $s }}`,
		"many lines far to the right":     `{{ $s := repeat 10000 "\n" }}{{ indent 9999 $s }}`,
		"many lines further down":         `{{ $s := repeat 10000 "\n" }}{{ nindent 9999 $s }}`,
		"a replacement":                   `{{ $s := repeat 10000 "x" }}{{ replace "x" $s $s }}`,
		"a replacement by a pattern":      `{{ $s := repeat 10000 "x" }}{{ regexReplaceAll "x" $s $s }}`,
		"what was found, again and again": `{{ $s := repeat 10000 "x" }}{{ regexReplaceAll "(.*)" $s (repeat 9000 "$1") }}`,
		"a literal replacement":           `{{ $s := repeat 10000 "x" }}{{ mustRegexReplaceAllLiteral "x" $s $s }}`,
		"a long separator":                `{{ $s := repeat 10000 "x" }}{{ join $s (until 10000) }}`,
		"long line ends":                  `{{ $s := repeat 10000 "x " }}{{ wrapWith 1 $s $s }}`,
		"an argument, again and again":    `{{ $s := repeat 10000 "x" }}{{ printf (repeat 9000 "%[1]s") $s }}`,
		"many wide numbers":               `{{ printf (repeat 9000 "%999d") 1 }}`,
		"a width that is an argument":     `{{ printf "%*d" 999999 1 }}`,
		"lists of lists":                  `{{ $l := list 1 }}{{ range until 60 }}{{ $l = list $l $l }}{{ end }}{{ $l }}`,
		"lists of lists, as JSON":         `{{ $l := list 1 }}{{ range until 18 }}{{ $l = list $l $l }}{{ end }}{{ toJson $l }}`,
		"lists in lists":                  `{{ $l := list 1 }}{{ range until 1000 }}{{ $l = list $l }}{{ end }}`,
		"aliases that stand for much":     `{{ $s := repeat 10000 "x" }}{{ fromYaml (printf "a: &a %s\nb: [%s]" $s (repeat 1000 "*a,")) }}`,
		"escapes of escapes":              `{{ $s := "\\" }}{{ range until 60 }}{{ $s = js $s }}{{ end }}`,
		"comparisons":                     `{{ $l := until 10000 }}{{ range until 60 }}{{ $x := uniq $l }}{{ end }}`,
		"a pattern that takes long":       `{{ $s := repeat 10000 "a" }}{{ range until 60 }}{{ $x := regexMatch "(a{100}){10}b" $s }}{{ end }}`,
		"long texts, again and again":     `{{ $s := repeat 90 (repeat 10000 "x") }}{{ range until 9000 }}{{ $x := upper $s }}{{ end }}`,
		"a map of many":                   `{{ $x := split "" (repeat 9000 "xxxx") }}`,
		"a loop in else":                  `{{ if false }}{{ else }}{{ range until 1000 }}{{ range until 1000 }}{{ end }}{{ end }}{{ end }}`,
		"a loop in with":                  `{{ with .Cluster }}{{ range until 1000 }}{{ range until 1000 }}{{ end }}{{ end }}{{ end }}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Render(template, cluster)
			NewWithT(t).Expect(err).To(MatchError("valuesTemplate: the template works too much: fewer loops, or shorter texts"))
		})
	}
}

func TestATemplateThatFailsSaysWhere(t *testing.T) {
	_, err := Render("a: b\nc: {{ .Cluster.metadata.annotations.tier }}", cluster)
	NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring("valuesTemplate:2:"), ContainSubstring(`map has no entry for key "annotations"`))))
}
