package config

import (
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/support/providers"
)

// TestTheMakefileReadsTheListOfProviders: with the tools of a bare machine.
func TestTheMakefileReadsTheListOfProviders(t *testing.T) {
	g := NewWithT(t)
	ours, err := providers.Read("..")
	g.Expect(err).NotTo(HaveOccurred())
	names := ""
	for _, provider := range ours {
		names += " " + provider.Folder + ":" + provider.Name
	}
	variables, err := exec.CommandContext(t.Context(), "make", "-C", "..", "--print-data-base", "--dry-run", "help").Output()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(variables)).To(ContainSubstring("\nPROVIDER_NAMES :=" + names + "\n"))
}

// TestImportRulesKnowAllProviders: a new one is allowed what the others are.
func TestImportRulesKnowAllProviders(t *testing.T) {
	g := NewWithT(t)
	ours, err := providers.Read("..")
	g.Expect(err).NotTo(HaveOccurred())
	var linter struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct{ Allow []string }
				}
			}
		}
	}
	g.Expect(yaml.Unmarshal([]byte(read(g, ".golangci.yml")), &linter)).To(Succeed())
	const module = "github.com/capi-talos/capi-talos/"
	want := map[string][]string{
		"api":       {},
		"shared":    {module + "bootstrap/api/", module + "bootstrap/pkg/", module + "test/"},
		"providers": {module + "bootstrap/pkg/", module + "test/"},
		"managers":  {module + "bootstrap/pkg/", module + "cmd/internal/"},
	}
	for _, provider := range ours {
		folder := module + provider.Folder
		want["api"] = append(want["api"], folder+"/api/")
		want["providers"] = append(want["providers"], folder+"/api/", folder+"/internal/")
		want["managers"] = append(want["managers"], folder+"/setup$")
	}
	for rule, allowed := range want {
		g.Expect(linter.Linters.Settings.Depguard.Rules[rule].Allow).To(ConsistOf(allowed), rule)
	}
}

// TestEachProviderIsOfferedToTilt: by the file that the Tiltfile of Cluster API's
// repository reads.
func TestEachProviderIsOfferedToTilt(t *testing.T) {
	g := NewWithT(t)
	ours, err := providers.Read("..")
	g.Expect(err).NotTo(HaveOccurred())
	var offered []struct{ Name string }
	g.Expect(yaml.Unmarshal([]byte(read(g, "config/tilt/tilt-provider.yaml")), &offered)).To(Succeed())
	names := make([]string, 0, len(offered))
	for _, entry := range offered {
		names = append(names, entry.Name)
	}
	for _, provider := range ours {
		g.Expect(names).To(ContainElement("talos-" + provider.Name))
	}
	g.Expect(names).To(HaveLen(len(ours)))
}
