package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// allPages are the README and all pages, by their paths as seen from here.
func allPages(g Gomega) map[string]string {
	pages := map[string]string{}
	tree := os.DirFS("..")
	g.Expect(fs.WalkDir(tree, "docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := fs.ReadFile(tree, path)
		pages[path] = string(text)
		return err
	})).To(Succeed())
	readme, err := fs.ReadFile(tree, "README.md")
	g.Expect(err).NotTo(HaveOccurred())
	pages["README.md"] = string(readme)

	return pages
}

// TestPagesNameTargetsThatExist: what readers are told to make can be made.
func TestPagesNameTargetsThatExist(t *testing.T) {
	g := NewWithT(t)
	makefile, err := os.ReadFile("../Makefile")
	g.Expect(err).NotTo(HaveOccurred())
	targets := found(`(?m)^([a-z][a-z0-9-]*):`, string(makefile))
	command := regexp.MustCompile("(?m)(?:`|^    |^\\t)(?:[A-Z_]+=\\S+ )*make ((?:[A-Za-z][\\w=<>/.-]* ?)+)")
	for path, text := range allPages(g) {
		for _, match := range command.FindAllStringSubmatch(text, -1) {
			for word := range strings.FieldsSeq(match[1]) {
				g.Expect(strings.Contains(word, "=") || slices.Contains(targets, word)).To(BeTrue(), "make %s in %s", word, path)
			}
		}
	}
}

// TestClustersAreGeneratedOfFlavorsThatExist: a page that shows how a cluster is made
// says how many workers it has, because clusterctl makes none by itself, and gives what
// its template cannot do without.
func TestClustersAreGeneratedOfFlavorsThatExist(t *testing.T) {
	g := NewWithT(t)
	shown := 0
	// A command may go on in the next line.
	command := regexp.MustCompile(`(?m)^ *clusterctl generate cluster (?:[^\n]*\\\n)*[^\n]*`)
	for path, text := range allPages(g) {
		for _, typed := range command.FindAllString(text, -1) {
			flavors := found(`--flavor (\S+)`, typed)
			g.Expect(flavors).To(HaveLen(1), "%s in %s", typed, path)
			template, err := os.ReadFile("../templates/cluster-template-" + flavors[0] + ".yaml")
			g.Expect(err).NotTo(HaveOccurred(), path)
			g.Expect(typed).To(And(ContainSubstring("--worker-machine-count "), ContainSubstring("--kubernetes-version v")), path)
			for _, name := range found(`\$\{([A-Z_]+)\}`, string(template)) {
				given := slices.Contains([]string{"CLUSTER_NAME", "NAMESPACE", "KUBERNETES_VERSION"}, name)
				g.Expect(given || strings.Contains(text, "export "+name+"=")).To(BeTrue(), "%s of flavor %s in %s", name, flavors[0], path)
			}
			shown++
		}
	}
	g.Expect(shown).NotTo(BeZero())
}

// commandsOf are the commands of a program in the code of a page, each with the lines in
// which it goes on.
func commandsOf(program, text string) []string {
	line := regexp.MustCompile(`(?m)(?:^(?:    |\t)?|\| |; |do )` + program + ` ((?:[^\n|;]*\\\n)*[^\n|;]*)`)
	var commands []string
	for _, code := range regexp.MustCompile("(?ms)^```(?:sh|bash)\n.*?^```|^(?:    |\t).*?$|`"+program+" [^`]*`").FindAllString(text, -1) {
		for _, match := range line.FindAllStringSubmatch(strings.Trim(code, "`"), -1) {
			commands = append(commands, match[1])
		}
	}

	return commands
}

// TestPagesGiveClusterctlFlagsThatExist: each subcommand has a file of its own in the
// source of clusterctl, and inherits the flags of those above it.
func TestPagesGiveClusterctlFlagsThatExist(t *testing.T) {
	g := NewWithT(t)
	folder := filepath.Join(moduleFolders(t)[0], "cmd", "clusterctl", "cmd")
	checked := 0
	for path, text := range allPages(g) {
		for _, command := range commandsOf("clusterctl", text) {
			known, file := readAll(g, filepath.Join(folder, "root.go")), ""
			for word := range strings.FieldsSeq(regexp.MustCompile(`^[a-z -]*`).FindString(command)) {
				next := strings.TrimPrefix(file+"_"+word, "_")
				source, err := os.ReadFile(filepath.Join(folder, strings.ReplaceAll(next, "-", "_")+".go"))
				if err != nil {
					break // An argument.
				}
				file, known = next, known+string(source)
			}
			g.Expect(file).NotTo(BeEmpty(), "clusterctl %s in %s", command, path)
			for _, flag := range found(`--([a-z-]+)`, command) {
				g.Expect(known).To(ContainSubstring(`"`+flag+`"`), "clusterctl %s in %s", command, path)
				checked++
			}
		}
	}
	g.Expect(checked).To(BeNumerically(">", 20))
}

// TestPagesNameResourcesThatExist: what readers are to get, describe and the like with
// kubectl has that name.
func TestPagesNameResourcesThatExist(t *testing.T) {
	g := NewWithT(t)
	known := strings.Fields("cluster clusters clusterclass clusterclasses machine machines machineset machinesets machinedeployment machinedeployments machinehealthcheck machinehealthchecks " +
		"pod pods node nodes secret secrets service services namespace namespaces configmap event events deployment deployments clusterrole clusterroles clusterrolebinding clusterrolebindings " +
		"customresourcedefinitions validatingwebhookconfigurations mutatingwebhookconfigurations")
	kinds, err := filepath.Glob("../config/*/crd/bases/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	for _, file := range kinds {
		known = append(known, found(`(?m)^    (?:plural|singular): (\w+)$`, readAll(g, file))...)
		known = append(known, found(`(?m)^    - (\w+)$`, readAll(g, file))...)
	}
	verbs := regexp.MustCompile(`^(?:--\S+[ =]\S+ )*(?:get|describe|annotate|label|patch|scale|delete|wait) (?:--\S+ )*([a-z][a-z,]*)(?:/\S+)?(?: |$)`)
	checked := 0
	for path, text := range allPages(g) {
		for _, command := range commandsOf("kubectl", text) {
			match := verbs.FindStringSubmatch(command)
			if match == nil || strings.Contains(command, "--kustomize ") || strings.Contains(command, "-f ") {
				continue // Files name what is meant.
			}
			for name := range strings.SplitSeq(match[1], ",") {
				g.Expect(known).To(ContainElement(name), "kubectl %s in %s", command, path)
				checked++
			}
		}
	}
	g.Expect(checked).To(BeNumerically(">", 20))
}
