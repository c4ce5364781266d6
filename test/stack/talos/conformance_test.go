package talos

import (
	"flag"
	"fmt"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/conformance"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var record = flag.Bool("record", false, "keep the answers of the real nodes as those that talossim is held to")

// The record of what real nodes answer is made anew, and must be the one that
// talossim is held to by the tests of test/sim/fleet/conformance.
var _ = Describe("What talossim is held to", func() {
	It("is what real nodes answer", Label("conformance"), func(ctx SpecContext) {
		taken, err := conformance.Take(ctx, world.nodes.Fleet, "container", conformance.CallTimeout)
		Expect(err).NotTo(HaveOccurred())
		fmt.Fprintf(GinkgoWriter, "%d answers\n", taken.Rows())
		if *record {
			source, err := parts.SourceDir()
			Expect(err).NotTo(HaveOccurred())
			Expect(taken.Write(filepath.Join(source, "test", "sim", "fleet", "conformance", "testdata"))).To(Succeed())
			// What was kept until now is built in.
			return
		}
		kept, err := conformance.Kept(taken.Personality)
		Expect(err).NotTo(HaveOccurred())
		Expect(conformance.Differences(taken, kept)).To(BeEmpty())
	}, SpecTimeout(25*time.Minute))
})
