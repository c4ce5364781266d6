package talossim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// lastAddress is the address that claims a subnet.
const lastAddress = 254

// Subnet is a network of 256 loopback addresses that one fleet has for itself.
// Its last address is not free.
type Subnet struct {
	prefix [3]byte
}

// claims hold a port in each subnet until the process ends: a management cluster may know
// the machines of a fleet longer than that lives, and would take those of another fleet at
// the same addresses for them.
var claims struct { //nolint:gochecknoglobals // The loopback addresses of the process.
	sync.Mutex
	held []net.Listener
}

// ClaimSubnet picks a subnet at random that nobody has claimed, nor has before in this
// process.
func ClaimSubnet(ctx context.Context) (*Subnet, error) {
	const tries, first, last = 50, 16, 215
	for range tries {
		s := &Subnet{prefix: [3]byte{127, byte(first + rand.IntN(last-first+1)), byte(rand.IntN(256))}} //nolint:gosec // No secret, and below 256.
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(s.Address(lastAddress), strconv.Itoa(constants.ApidPort)))
		if err == nil {
			claims.Lock()
			defer claims.Unlock()
			claims.held = append(claims.held, listener)
			return s, nil
		}
	}
	return nil, errors.New("no loopback subnet is free")
}

// Address is one of its addresses, by the last byte.
func (s *Subnet) Address(last int) string {
	return fmt.Sprintf("%d.%d.%d.%d", s.prefix[0], s.prefix[1], s.prefix[2], last)
}

// Bytes are those that tell it from other subnets: no two processes have a
// machine in common that is named after them.
func (s *Subnet) Bytes() (second, third byte) { return s.prefix[1], s.prefix[2] }
