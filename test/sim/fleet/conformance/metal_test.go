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

// TestTalossimTellsWhatAMachineWithDisksTells compares a machine of talossim that boots from
// its disk with what is kept of a virtual machine.
func TestTalossimTellsWhatAMachineWithDisksTells(t *testing.T) {
	g := NewWithT(t)
	machines, err := simfleet.New(t.Context(), simfleet.Options{
		Personality: talossim.Metal, Delays: talossim.Delays{Boot: time.Second, Etcd: time.Second, Promote: 6 * time.Second},
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed()) })
	got, err := conformance.TakeMetal(t.Context(), machines, string(talossim.Metal), time.Minute)
	g.Expect(err).NotTo(HaveOccurred())
	kept, err := conformance.Kept(string(talossim.Metal))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(conformance.Differences(got, kept)).To(BeEmpty())
}
