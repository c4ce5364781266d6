package naming

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestMachineName(t *testing.T) {
	long := strings.Repeat("a", 80)
	for name, tc := range map[string]struct {
		template, controlPlane, want string
	}{
		"by default":            {"", "cp", "^cp-[a-z0-9]{5}$"},
		"by a template":         {"{{ .cluster.name }}-{{ .random }}-x", "cp", "^one-[a-z0-9]{5}-x$"},
		"cut when it is longer": {"", long, "^a{58}[a-z0-9]{5}$"},
		"with a part of a name": {`{{ slice .cluster.name 0 2 }}-{{ printf "%.3s" .random }}`, "cp", "^on-[a-z0-9]{3}$"},
		"by a condition":        {`{{ if eq .cluster.name "one" }}a{{ else }}b{{ end }}-{{ .random }}`, "cp", "^a-[a-z0-9]{5}$"},
		"with an assignment":    {`{{ with .talosControlPlane }}{{ .name }}{{ end }}-{{ .random | print }}`, "cp", "^cp-[a-z0-9]{5}$"},
		"cut before its random": {`{{ if .random }}{{ .talosControlPlane.name }}{{ end }}`, long, "^a{58}[a-z0-9]{5}$"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := MachineName(tc.template, "one", tc.controlPlane, rand.New(rand.NewPCG(1, 1)))
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(got).To(MatchRegexp(tc.want))
		})
	}
}

func TestMachineNameWithATemplateThatIsNone(t *testing.T) {
	for _, template := range []string{"{{", "{{ .other }}", "{{ .cluster.other }}"} {
		NewWithT(t).Expect(Check(template, "one", "cp")).To(HaveOccurred(), template)
	}
}

// Talos cuts a host name at its first dot: the node would never be recognized.
func TestMachineNameThatCannotBeAHostName(t *testing.T) {
	for _, tc := range []struct{ template, cluster, want string }{
		{"{{ .cluster.name }}-{{ .random }}", "one.example", `gives names like "one.example-`},
		{"{{ .random }}_", "one", "which cannot be host names of nodes"},
	} {
		_, err := MachineName(tc.template, tc.cluster, "cp", rand.New(rand.NewPCG(1, 1)))
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(tc.want)))
	}
}

// Whoever may write a template must not be able to hold the manager up with it, also
// not with one that was stored before.
func TestATemplateThatCouldGoOnForEverIsNotExecuted(t *testing.T) {
	const loops, long = "must have no loops and no templates of its own", "makes a text of more than 1024 characters"
	for name, tc := range map[string]struct{ template, want string }{
		"a loop":                      {`{{ range 9223372036854775807 }}{{ end }}{{ .random }}`, loops},
		"a loop that writes":          {`{{ range 9999999999 }}{{ $.random }}{{ end }}`, loops},
		"a loop under a condition":    {`{{ if .random }}{{ range 9223372036854775807 }}{{ end }}{{ end }}`, loops},
		"a loop under another one":    {`{{ if not .random }}a{{ else }}{{ range 9223372036854775807 }}{{ end }}{{ end }}`, loops},
		"a loop in a block":           {`{{ with .cluster }}{{ range 9223372036854775807 }}{{ end }}{{ end }}`, loops},
		"a template of its own":       {`{{ define "a" }}{{ .random }}{{ end }}{{ template "a" . }}`, loops},
		"a template that is not used": {`{{ define "a" }}a{{ end }}{{ .random }}`, loops},
		"nothing but templates":       {`{{ define "a" }}{{ .random }}{{ end }}`, loops},
		"a block":                     {`{{ block "a" . }}{{ .random }}{{ end }}`, loops},
		"itself":                      {`{{ .random }}{{ template "machineNaming" . }}`, loops},
		"a width":                     {`{{ printf "%999999s" .random }}`, long},
		"a text that doubles":         {`{{ .random }}{{ "\\" ` + strings.Repeat("|js", 26) + ` }}`, long},
		"texts of texts":              {`{{ .random }}{{ with print . . . . . . }}{{ with print . . . . . . }}{{ . }}{{ end }}{{ end }}`, long},
		"escapes of escapes":          {`{{ .random }}{{ html (printf "%900v" "") | printf "%s%[1]s" | urlquery }}`, long},
		"lines":                       {`{{ println (printf "%1024s" .random) }}`, long},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			var unfit *UnfitError
			err := Check(tc.template, "one", "cp")
			g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
			g.Expect(errors.As(err, &unfit)).To(BeTrue())
			_, err = MachineName(tc.template, "one", "cp", rand.New(rand.NewPCG(1, 1)))
			g.Expect(err).To(MatchError(ContainSubstring(tc.want)))
		})
	}
}

func TestATemplateThatGivesAllMachinesOneName(t *testing.T) {
	for template, name := range map[string]string{
		"{{/* .random */}}cp":                      "cp",
		"{{ if .random }}cp{{ end }}":              "cp",
		"cp-{{ len .random }}":                     "cp-5",
		`{{ .cluster.name }}{{ ".random" | len }}`: "one7",
	} {
		NewWithT(t).Expect(Check(template, "one", "cp")).To(MatchError(
			`gives every Machine the name "`+name+`": {{ .random }} must be part of the name itself`), template)
	}
}
