package archive

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/backup/internal/store"
)

// cuts is how many connections are cut, or stalled, at each of which a test lets it happen.
const cuts, stalls = 100, 20

// silence is what an error says of a server that stands still.
const silence = "has neither taken nor sent anything for too long"

// bed is a cluster whose backups go over networks of all kinds.
type bed struct {
	config store.Config
	key    *age.X25519Identity
	plain  []byte
	stored atomic.Int64
	failed atomic.Int64
}

func newBed(t *testing.T, size int) *bed {
	t.Helper()

	return &bed{config: bucket(t, true), key: identity(t), plain: snapshot(size)}
}

// write stores a backup over a link.
func (b *bed) write(t *testing.T, name string, config store.Config) (*Manifest, error) {
	t.Helper()

	return archiveOf(t, someCluster, config).Write(t.Context(), draft(name, name), "attempt", contents(b.plain, b.key.Recipient()))
}

// faults are seeded ones, in both directions, of what goes over a link while something is done.
func (b *bed) faults(t *testing.T, count int, done func(config store.Config) error) []fault {
	t.Helper()
	whole, config := newLink(t, b.config, nil, [2]time.Duration{})
	NewWithT(t).Expect(done(config)).To(Succeed())
	whole.close()
	random := rand.New(rand.NewPCG(25, 25))
	var found []fault
	for i := range count {
		to := direction(i % 2)
		found = append(found, fault{direction: to, after: random.Int64N(whole.passed[to])})
	}

	return found
}

// judge expects that a backup is there as a whole or not at all, and is there if that was said.
func (b *bed) judge(t *testing.T, name string, written *Manifest, err error) {
	t.Helper()
	g, archive := NewWithT(t), archiveOf(t, someCluster, b.config)
	found, readErr := archive.Read(t.Context(), name)
	if err == nil {
		b.stored.Add(1)
		g.Expect(found).To(Equal(written))
	} else {
		b.failed.Add(1)
	}
	if store.ReasonOf(readErr) == store.NotFound {
		return
	}
	g.Expect(readErr).NotTo(HaveOccurred())
	g.Expect(archive.Check(t.Context(), found)).To(Succeed())
	whole(g, archive, found, b.plain, b.key)
}

// nothingElse expects that, once what was left is collected, the server lists the files of
// whole backups, and no upload.
func (b *bed) nothingElse(t *testing.T) {
	t.Helper()
	g, archive := NewWithT(t), archiveOf(t, someCluster, b.config)
	collectAll(t, archive)
	names, err := archive.Names(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	var want, found []string
	for _, name := range names {
		b.judge(t, name, nil, errors.New("nobody was told"))
		for _, file := range []string{manifestFile, "data-attempt", "secrets-attempt"} {
			want = append(want, path.Join(archive.folder, name, file))
		}
	}
	for object := range server.ListObjectsIter(t.Context(), b.config.Bucket, minio.ListObjectsOptions{Recursive: true, WithVersions: true}) {
		g.Expect(object.Err).NotTo(HaveOccurred())
		found = append(found, object.Key)
	}
	g.Expect(found).To(ConsistOf(want))
	for upload := range server.ListIncompleteUploads(t.Context(), b.config.Bucket, "", true) {
		g.Expect(upload.Err).NotTo(HaveOccurred())
		t.Errorf("an upload of %s is left", upload.Key)
	}
}

// TestAConnectionThatIsCutAnywhere: after any byte of a backup, in either direction, and with
// one attempt of each request or two. It is there as a whole, or there was an error.
func TestAConnectionThatIsCutAnywhere(t *testing.T) {
	t.Parallel()
	for size, count := range map[int]int{20_000: cuts, 6 << 20: 10} {
		bed := newBed(t, size)
		faults := bed.faults(t, count, func(config store.Config) error { _, err := bed.write(t, "whole", config); return err })
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			for i, fault := range faults {
				name := fmt.Sprintf("%s-%d", fault.direction, fault.after)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					broken, config := newLink(t, bed.config, &fault, [2]time.Duration{})
					config.Attempts = 1 + i/2%2
					written, err := bed.write(t, name, config)
					broken.close()
					bed.judge(t, name, written, err)
				})
			}
		})
		g := NewWithT(t)
		g.Expect(bed.stored.Load()).To(BeNumerically(">", 0))
		g.Expect(bed.failed.Load()).To(BeNumerically(">", 0))
		t.Logf("of %d backups of %d bytes whose connection was cut, %d were stored and %d ended with an error", count, size, bed.stored.Load(), bed.failed.Load())
		bed.nothingElse(t)
	}
}

// TestAConnectionThatIsCutWhileABackupIsReadBack: it is not damaged for that.
func TestAConnectionThatIsCutWhileABackupIsReadBack(t *testing.T) {
	t.Parallel()
	bed := newBed(t, 100_000)
	written, err := bed.write(t, "whole", bed.config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	check := func(config store.Config) error { return archiveOf(t, someCluster, config).Check(t.Context(), written) }
	faults := bed.faults(t, cuts, check)
	t.Run("cut", func(t *testing.T) {
		for i, fault := range faults {
			t.Run(fmt.Sprintf("%s-%d", fault.direction, fault.after), func(t *testing.T) {
				t.Parallel()
				broken, config := newLink(t, bed.config, &fault, [2]time.Duration{})
				config.Attempts = 1 + i/2%2
				err := check(config)
				broken.close()
				if err != nil {
					bed.failed.Add(1)
					NewWithT(t).Expect(store.ReasonOf(err)).To(Equal(store.Unavailable), "%v", err)
				}
			})
		}
	})
	NewWithT(t).Expect(bed.failed.Load()).To(BeNumerically(">", cuts/2))
	bed.nothingElse(t)
}

// TestAConnectionThatStalls: nothing goes on after any byte, in either direction. Nobody waits
// for it, and what was not stored is said to be for that reason.
func TestAConnectionThatStalls(t *testing.T) {
	t.Parallel()
	bed := newBed(t, 20_000)
	faults := bed.faults(t, stalls, func(config store.Config) error { _, err := bed.write(t, "whole", config); return err })
	t.Run("stalled", func(t *testing.T) {
		for _, fault := range faults {
			fault.stalls = true
			name := fmt.Sprintf("%s-%d", fault.direction, fault.after)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				stalled, config := newLink(t, bed.config, &fault, [2]time.Duration{})
				config.Patience = time.Second
				written, err := bed.write(t, name, config)
				if err != nil {
					NewWithT(t).Expect(err).To(MatchError(ContainSubstring(silence)))
				}
				stalled.close()
				bed.judge(t, name, written, err)
			})
		}
	})
	NewWithT(t).Expect(bed.failed.Load()).To(BeNumerically(">", 0))
	bed.nothingElse(t)
}

// TestASlowNetworkIsWaitedFor: for much longer than one that stands still.
func TestASlowNetworkIsWaitedFor(t *testing.T) {
	t.Parallel()
	bed := newBed(t, 2_500_000)
	stored, err := bed.write(t, "fast", bed.config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	// 250 KiB a second: ten seconds.
	const pace = time.Second * piece / (250 << 10)
	for to, do := range map[direction]func(config store.Config) error{
		up:   func(config store.Config) error { _, err := bed.write(t, "slow", config); return err },
		down: func(config store.Config) error { return archiveOf(t, someCluster, config).Check(t.Context(), stored) },
	} {
		t.Run(to.String(), func(t *testing.T) {
			t.Parallel()
			var paces [2]time.Duration
			paces[to] = pace
			slow, config := newLink(t, bed.config, nil, paces)
			config.Patience = 8 * time.Second
			NewWithT(t).Expect(do(config)).To(Succeed())
			slow.close()
		})
	}
}
