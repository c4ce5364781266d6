package templates

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"
)

// releases are the Talos releases that a flavor makes machines of.
func releases(g Gomega, file, text string, values map[string]string) []string {
	if file != topologyTemplate && file != containerTopologyTemplate {
		var found []string
		for _, machine := range parse(g, generate(g, text, values)).machines {
			if spec := machine.Spec.Template.Spec; spec.Metal != nil {
				found = append(found, spec.Metal.Talos.Version)
			} else {
				found = append(found, spec.Container.Talos.Version)
			}
		}
		return found
	}
	var cluster struct {
		Spec struct {
			Topology struct {
				Variables []struct {
					Name  string         `json:"name"`
					Value map[string]any `json:"value"`
				} `json:"variables"`
			} `json:"topology"`
		} `json:"spec"`
	}
	// Only objects have the form that is read here.
	scalar := regexp.MustCompile(`(?m)^    - name: (?:talosVersion|cni)\n      value: .*\n`)
	g.Expect(yaml.Unmarshal([]byte(scalar.ReplaceAllString(generate(g, text, values), "")), &cluster)).To(Succeed())
	for _, variable := range cluster.Spec.Topology.Variables {
		if variable.Name == "talosRelease" {
			return []string{variable.Value["version"].(string)}
		}
	}

	return nil
}

// TestOneNamePerThing: in all flavors TALOS_VERSION is the contract, and
// TALOS_RELEASE the release; hosts keep the one that they booted where none is said.
func TestOneNamePerThing(t *testing.T) {
	for file, text := range all(NewWithT(t)) {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			said := values("v1.13")
			byDefault := ""
			if strings.Contains(file, "container") {
				byDefault = "v1.13.9"
			}
			g.Expect(releases(g, file, text, said)).To(And(Not(BeEmpty()), HaveEach(byDefault)))
			said["TALOS_RELEASE"] = "v1.13.8"
			g.Expect(releases(g, file, text, said)).To(And(Not(BeEmpty()), HaveEach("v1.13.8")))
			g.Expect(text).To(MatchRegexp(`(?m)^#   TALOS_VERSION +configuration contract`))
			g.Expect(text).To(MatchRegexp(`(?m)^#   TALOS_RELEASE +the Talos release`))
		})
	}
}

// TestPagesGiveTheVariablesTheirMeaning: what is set on a page as TALOS_VERSION is a
// contract, and as TALOS_RELEASE a release.
func TestPagesGiveTheVariablesTheirMeaning(t *testing.T) {
	g := NewWithT(t)
	pages, err := filepath.Glob("../docs/*.md")
	g.Expect(err).NotTo(HaveOccurred())
	uses := 0
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		g.Expect(err).NotTo(HaveOccurred())
		for _, use := range regexp.MustCompile(`(TALOS_VERSION|TALOS_RELEASE)=(\S*\d)`).FindAllStringSubmatch(string(text), -1) {
			uses++
			want := map[string]string{"TALOS_VERSION": `^v1\.\d+$`, "TALOS_RELEASE": `^v1\.\d+\.\d+$`}[use[1]]
			g.Expect(use[2]).To(MatchRegexp(want), page)
		}
	}
	g.Expect(uses).To(BeNumerically(">=", 2))
}
