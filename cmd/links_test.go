package cmd_test

import (
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestManagersLinkOnlyWhatTheyNeed: what is linked is initialised, and stays in memory.
func TestManagersLinkOnlyWhatTheyNeed(t *testing.T) {
	for manager, without := range map[string][]string{
		"addons":         {"github.com/siderolabs/", "github.com/cosi-project/"},
		"backup":         {"helm.sh/"},
		"bootstrap":      {"helm.sh/"},
		"controlplane":   {"helm.sh/"},
		"infrastructure": {"helm.sh/"},
	} {
		t.Run(manager, func(t *testing.T) {
			g := NewWithT(t)
			linked, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+manager).Output() //nolint:gosec // G204: names of this table.
			g.Expect(err).NotTo(HaveOccurred())
			for name := range strings.FieldsSeq(string(linked)) {
				for _, prefix := range without {
					g.Expect(name).NotTo(HavePrefix(prefix))
				}
			}
			g.Expect(string(linked)).To(ContainSubstring("sigs.k8s.io/controller-runtime"))
		})
	}
}
