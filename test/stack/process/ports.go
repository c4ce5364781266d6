package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports below the range from which Linux takes the ports of outgoing
// connections (net.ipv4.ip_local_port_range): such a connection could
// otherwise sit on a port while its server restarts.
const (
	firstPort = 20000
	lastPort  = 32000
	tries     = 200
)

// Ports hands out free TCP ports that no other Ports of this machine (network
// namespace) hands out until Release, also while nothing listens on them.
type Ports struct {
	claims []net.Listener
}

// Take reserves a port. The claim is a socket in the abstract name space, which
// the kernel takes back when this process dies.
func (p *Ports) Take(ctx context.Context) (int, error) {
	var config net.ListenConfig
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort) //nolint:gosec // spread, not secrecy
		claim, err := config.Listen(ctx, "unix", fmt.Sprintf("@capi-talos-stack-port-%d", port))
		if err != nil {
			continue
		}
		if !free(ctx, port) {
			_ = claim.Close()
			continue
		}
		p.claims = append(p.claims, claim)
		return port, nil
	}
	return 0, errors.New("looking for a free port: none found")
}

func free(ctx context.Context, port int) bool {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}

// Release gives all ports back.
func (p *Ports) Release() {
	for _, claim := range p.claims {
		_ = claim.Close()
	}
	p.claims = nil
}
