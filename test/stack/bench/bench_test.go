package bench

import (
	"bytes"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/fleet/dockerfleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

func TestRatiosAreThoseOfTheMedians(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	b := &Bench{Options: Options{Fleet: &dockerfleet.Fleet{}, Rounds: 3, Output: &out}}
	round := func(node, grown time.Duration) stages {
		return stages{certificate: time.Second, etcd: time.Second, api: time.Second, node: node * time.Second, grown: grown * time.Second}
	}
	b.printBuildUp(
		[]stages{round(50, 100), round(10, 90), round(40, 500)},
		[]stages{round(44, 130), round(90, 120), round(20, 10)},
	)
	g.Expect(out.String()).To(And(
		MatchRegexp(`first control plane Ready +40\.0 +44\.0 +1\.10 +≤ 1\.15: met`),
		MatchRegexp(`1→3 +100\.0 +120\.0 +1\.20 +≤ 1\.15: missed`),
	))
}

func TestWhoIsWaitedFor(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	b := &Bench{Options: Options{Rounds: 1, Output: &out}}
	b.printReplacements([][]milestone{{
		{name: "first", by: byUs, took: time.Second}, {name: "second", by: byMachine, took: 3 * time.Second}, {name: "third", by: byUs, took: time.Second},
	}})
	g.Expect(out.String()).To(And(MatchRegexp(`in all +ours +2\.0`), MatchRegexp(`in all +the machine +3\.0`), MatchRegexp(`in all +Cluster API +0\.0`)))
}

func TestSizesAreJudged(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	b := &Bench{Options: Options{Clusters: 50, Output: &out}}
	b.printSizes(
		map[string]size{management.Bootstrap: {residentMiB: 49, fileMiB: 30, cpu: 0.01}, management.ControlPlane: {residentMiB: 51}, management.Infrastructure: {}},
		map[string]size{management.Bootstrap: {residentMiB: 80, cpu: 0.5}},
	)
	g.Expect(out.String()).To(And(
		MatchRegexp(`bootstrap +49 +30 +≤ 50: met +1\.0 % +80 +50\.0 %`),
		MatchRegexp(`control-plane +51 +0 +≤ 50: missed`),
	))
}
