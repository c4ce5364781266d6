package restore

import (
	"context"
	"os"
	"testing"

	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/etcds"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

// server keeps backups, programs is the folder with those of etcd, and workload is the API
// server of a cluster.
var (
	server   *s3server.Server
	programs string
	workload *apiserver.Server
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "etcd-"); err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(programs) }()
	if err := etcds.Programs(context.Background(), programs, etcdtool.Releases()...); err != nil {
		panic(err)
	}

	return apiserver.Run(apiserver.Options{}, func(started *apiserver.Server) int {
		workload = started

		return s3server.Main(m, &server)
	})
}
