package etcdhistory_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/sim/etcdhistory"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

var (
	histories = flag.Int("histories", 20, "how many histories to run")
	seed      = flag.Uint64("seed", 0, "the seed of the first history; 0 draws one")
	parallel  = flag.Int("clusters", 32, "how many clusters to run at once")
	shrinking = flag.Int("shrink", 15, "how many times to run a history that diverges again, to shorten it")
)

// TestHistoriesOnRealEtcd runs seeded histories on the model and on real etcd.
func TestHistoriesOnRealEtcd(t *testing.T) {
	g := NewWithT(t)
	built, err := parts.Ensure(t.Context(), parts.Print(os.Stderr), "etcd")
	g.Expect(err).NotTo(HaveOccurred())
	if *seed == 0 {
		*seed = rand.Uint64N(1 << 32)
	}
	t.Logf("seed %d; again with: go test ./test/sim/etcdhistory -args -seed=%d -histories=%d", *seed, *seed, *histories)
	began := time.Now()
	bed := &bed{binary: built.Path("etcd"), dir: t.TempDir(), next: *seed, left: *histories}
	bed.claim(t)
	var workers sync.WaitGroup
	for slot := range min(*parallel, *histories) {
		workers.Go(func() { bed.work(t.Context(), slot) })
	}
	workers.Wait()
	played := *histories - bed.left
	t.Logf("%d histories in %s: %+v", played, time.Since(began).Round(time.Second), bed.counts)
	if bed.left > 0 {
		t.Errorf("%d of %d histories were not played, because too many differed before", bed.left, *histories)
	}
	for _, err := range bed.failures {
		// On a busy machine etcd may miss its own deadlines, and elect anew. A model
		// that is wrong is wrong again.
		if found, is := errors.AsType[*etcdhistory.Divergence](err); is {
			if err = bed.run(t.Context(), found.History, 0); err == nil {
				t.Logf("the history of seed %d was disturbed, and agreed when it ran alone: %s", found.History.Seed, found.What)
				continue
			}
		}
		if found, is := errors.AsType[*etcdhistory.Divergence](err); is {
			err = etcdhistory.Shrink(found, *shrinking, func(history etcdhistory.History) error { return bed.run(t.Context(), history, 0) })
		}
		t.Error(err)
	}
}

// TestARemovedMemberEnds as soon as a member that it knows tells it. Where none of these
// answers, nobody does, and the model must not expect that its etcd ends.
func TestARemovedMemberEnds(t *testing.T) {
	g := NewWithT(t)
	built, err := parts.Ensure(t.Context(), parts.Print(os.Stderr), "etcd")
	g.Expect(err).NotTo(HaveOccurred())
	for name, one := range map[string]struct {
		stopped, ended int
	}{
		"a peer answers":                         {stopped: 5, ended: 1},
		"only one that it does not know answers": {stopped: 1, ended: 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			bed := &bed{binary: built.Path("etcd"), dir: t.TempDir()}
			bed.claim(t)
			steps := []etcdhistory.Step{
				{Kind: etcdhistory.Stop, Node: 2},
				{Kind: etcdhistory.Remove, Node: 2},
				// It takes the place of n0.
				{Kind: etcdhistory.Join, Node: 5, Name: "n0"},
				{Kind: etcdhistory.Stop, Node: one.stopped},
				{Kind: etcdhistory.Start, Node: 2},
			}
			g.Expect(bed.run(t.Context(), etcdhistory.History{Voters: 3, Steps: steps}, 0)).To(Succeed())
			g.Expect(bed.counts.Steps).To(Equal(len(steps)))
			g.Expect(bed.counts.Ended).To(Equal(one.ended))
		})
	}
}

// bed is what the histories share.
type bed struct {
	binary, dir string
	// network is the second byte of the loopback addresses.
	network int

	mu       sync.Mutex
	next     uint64
	left     int
	counts   etcdhistory.Counts
	failures []error
}

// claim takes loopback addresses that no other process uses.
func (b *bed) claim(t *testing.T) {
	t.Helper()
	const tries, first, last = 50, 16, 215
	for range tries {
		b.network = first + rand.IntN(last-first+1)
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.%d.255.254:2380", b.network))
		if err == nil {
			t.Cleanup(func() { _ = listener.Close() })
			return
		}
	}
	t.Fatal("no loopback addresses are free")
}

// take is the next seed.
func (b *bed) take() (uint64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	const enough = 10
	if b.left == 0 || len(b.failures) >= enough {
		return 0, false
	}
	b.left--
	b.next++
	return b.next - 1, true
}

func (b *bed) work(ctx context.Context, slot int) {
	for {
		seed, more := b.take()
		if !more {
			return
		}
		history, err := etcdhistory.Generate(seed)
		if err == nil {
			err = b.run(ctx, history, slot)
		}
		if err != nil {
			b.mu.Lock()
			b.failures = append(b.failures, err)
			b.mu.Unlock()
		}
	}
}

func (b *bed) run(ctx context.Context, history etcdhistory.History, slot int) error {
	dir, err := os.MkdirTemp(b.dir, fmt.Sprintf("%d-", history.Seed))
	if err != nil {
		return err
	}
	counts, err := etcdhistory.Run(ctx, history, etcdhistory.Options{
		Binary: b.binary, Dir: filepath.Clean(dir), Prefix: fmt.Sprintf("127.%d.%d", b.network, slot),
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counts.Add(counts)
	return err
}
