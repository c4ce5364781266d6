package talossim_test

import (
	"net"
	"runtime"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/constants"

	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestASubnetIsClaimedOnce in the life of a process: hosts of a fleet that has ended may be
// known to a management cluster still.
func TestASubnetIsClaimedOnce(t *testing.T) {
	g := NewWithT(t)
	subnet, err := talossim.ClaimSubnet(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	address := subnet.Address(254)
	runtime.GC()
	runtime.GC()
	_, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(constants.ApidPort)))
	g.Expect(err).To(MatchError(ContainSubstring("address already in use")))
}
