package docs

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// blocksOfBackups are the fenced blocks of a language on the page about backups.
func blocksOfBackups(g Gomega, language string) []string {
	var all []string
	for _, block := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(source(g, "docs/backups.md"), -1) {
		all = append(all, block[1])
	}
	g.Expect(all).NotTo(BeEmpty(), language)

	return all
}

// fieldsOfManifests are the names that a manifest has in JSON.
func fieldsOfManifests(g Gomega) []string {
	return found("json:\"(\\w+)", source(g, "backup/internal/archive/manifest.go")+source(g, "backup/internal/archive/layout.go"))
}

// TestTheManifestOnThePageHasEachField: and no other, and all examples are JSON.
func TestTheManifestOnThePageHasEachField(t *testing.T) {
	g := NewWithT(t)
	manifest := ""
	for _, block := range blocksOfBackups(g, "json") {
		var content map[string]any
		g.Expect(json.Unmarshal([]byte(block), &content)).To(Succeed(), block)
		if content["format"] != nil {
			manifest = block
			g.Expect(content["format"]).To(Equal(pinned(g, "backup/internal/archive/manifest.go", `Format = "([^"]+)"`)))
		}
	}
	g.Expect(found(`"(\w+)":`, manifest)).To(ConsistOf(fieldsOfManifests(g)))
}

// TestARestoreByHandNeedsWhatThePageSays: the commands are shell, begin with what a person
// sets, read fields that a manifest has, and need no program that the page does not name.
// Another test runs them.
func TestARestoreByHandNeedsWhatThePageSays(t *testing.T) {
	g := NewWithT(t)
	var restore string
	for _, block := range blocksOfBackups(g, "bash") {
		if strings.Contains(block, "etcdutl") {
			g.Expect(restore).To(BeEmpty(), "there is one such block")
			restore = block
		}
	}
	g.Expect(restore).To(MatchRegexp(`\ABACKUP=\S+ .*\nIDENTITY=\S+ .*\n`))
	check := exec.CommandContext(t.Context(), "bash", "-n")
	check.Stdin = strings.NewReader(restore)
	out, err := check.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(out))
	for _, path := range found(`field \.([\w.]+)`, restore) {
		for name := range strings.SplitSeq(path, ".") {
			g.Expect(fieldsOfManifests(g)).To(ContainElement(name), path)
		}
	}
	programs := found(`(?m)(?:^ *|\| |\{ |\$\()([a-z0-9]+) [^=\n]`, regexp.MustCompile(`(?m)^ *#.*$`).ReplaceAllString(restore, ""))
	known := []string{"age", "etcdutl", "jq", "sha256sum", "zstd", "echo", "set", "umask", "if", "field"}
	g.Expect(programs).To(HaveEach(BeElementOf(known)))
	g.Expect(programs).To(ContainElements("age", "etcdutl", "jq", "sha256sum", "zstd"))
}
