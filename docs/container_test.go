package docs

import (
	"os"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
)

// TestTheRunBookOfPodsNamesEachReason: whoever meets a reason of a machine in a Pod
// finds its cause and cure.
func TestTheRunBookOfPodsNamesEachReason(t *testing.T) {
	g := NewWithT(t)
	source, err := os.ReadFile("../infrastructure/api/v1alpha1/container_conditions.go")
	g.Expect(err).NotTo(HaveOccurred())
	page, err := os.ReadFile("container.md")
	g.Expect(err).NotTo(HaveOccurred())
	reasons := regexp.MustCompile(`(?m)^\t\w+ = "(\w+)"$`).FindAllStringSubmatch(string(source), -1)
	g.Expect(reasons).NotTo(BeEmpty())
	runBook := regexp.MustCompile(`(?s)## Run-book.*`).FindString(string(page))
	for _, reason := range reasons {
		g.Expect(runBook).To(ContainSubstring("`"+reason[1]+"`"), "reason %s", reason[1])
	}
}
