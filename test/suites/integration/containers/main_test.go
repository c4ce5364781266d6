// Package containers is rung 2 for machines in Pods: the real kube-apiserver,
// etcd, scheduler, controllers and Cluster API core, our managers as processes
// under their shipped rights, and talossim in the Pods.
package containers

import (
	"flag"
	"testing"
	"time"

	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
)

// timeout is how long the tests wait for what takes seconds on an idle machine. It is
// generous, because only a failure lasts that long: with a dozen clusters beside each
// other on two slow cores, one that does come up has been seen to take four minutes.
const timeout = 10 * time.Minute

// world is the management cluster that the tests share, each in a namespace of its
// own, several at a time. TestManagersAreKilled… comes first, alone.
var world bed.World

// slots are how many tests run at a time; they wait most of the time.
var slots = flag.String("slots", "12", "run so many tests at a time")

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", *slots)
	bed.Main(m, bed.Options{Pods: true}, &world)
}
