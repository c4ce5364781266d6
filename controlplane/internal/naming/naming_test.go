package naming

import (
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
