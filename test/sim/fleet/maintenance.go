package fleet

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

// dialTimeout is how long a machine may take to take a connection.
const dialTimeout = 2 * time.Second

// AnswersInMaintenance returns nil when a machine answers in maintenance mode.
func AnswersInMaintenance(ctx context.Context, pool *talosclient.Pool, host Host) error {
	// Who dials with gRPC too early gets its warnings printed.
	dialer := &net.Dialer{Timeout: dialTimeout}
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host.Address, strconv.Itoa(talosclient.Port)))
	if err != nil {
		return err
	}
	_ = connection.Close()
	node, err := pool.Maintenance(ctx, host.Address, "")
	if err != nil {
		return err
	}
	return node.Close()
}
