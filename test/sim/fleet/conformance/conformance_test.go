package conformance_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/conformance"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestTalossimAnswersAsARealNode does all rows and scenarios on talossim, and
// compares with what is kept of real nodes.
func TestTalossimAnswersAsARealNode(t *testing.T) {
	g := NewWithT(t)
	machines, err := simfleet.New(t.Context(), simfleet.Options{Delays: talossim.Delays{Etcd: time.Second, Promote: 6 * time.Second}})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	got, err := conformance.Take(t.Context(), machines, string(talossim.Container), 2*time.Second)
	g.Expect(err).NotTo(HaveOccurred())
	kept, err := conformance.Kept(string(talossim.Container))
	g.Expect(err).NotTo(HaveOccurred())
	differences, gaps := conformance.Judge(got, kept)
	t.Logf("%d answers of Talos %s compared, %d of them are known gaps", kept.Rows(), kept.Talos, gaps)
	for _, difference := range differences {
		t.Error(difference)
	}
}
