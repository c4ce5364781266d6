package vms

import (
	"flag"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/conformance"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var record = flag.Bool("record", false, "keep what a virtual machine tells as what talossim is held to")

// TestWhatAMachineTells: the record of a machine with disks is made anew, and must be the one
// that is kept in test/sim/fleet/conformance.
func TestWhatAMachineTells(t *testing.T) {
	const personality = "metal"
	machines := raise(t, nil)
	g := NewWithT(t)
	taken, err := conformance.TakeMetal(t.Context(), machines, personality, patience)
	for scenario, lines := range taken.Scenarios {
		for _, line := range lines {
			t.Logf("%s: %s", scenario, line)
		}
	}
	g.Expect(err).NotTo(HaveOccurred())
	keepOrCompare(t, taken)
}

// needKept fails a test at its beginning that has nothing to compare its record with at its end.
func needKept(t *testing.T, personality string) {
	t.Helper()
	if _, err := conformance.Kept(personality); err != nil && !*record {
		t.Fatalf("nothing is kept of %s yet; RECORD=1 makes the record: %v", personality, err)
	}
}

// keepOrCompare keeps a record where that is wanted, and else compares it with what is kept.
func keepOrCompare(t *testing.T, taken conformance.Record) {
	t.Helper()
	g := NewWithT(t)
	if *record {
		source, err := parts.SourceDir()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(taken.Write(filepath.Join(source, "test", "sim", "fleet", "conformance", "testdata"))).To(Succeed())
		// What was kept until now is built in.
		return
	}
	kept, err := conformance.Kept(taken.Personality)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(conformance.Differences(taken, kept)).To(BeEmpty())
}
