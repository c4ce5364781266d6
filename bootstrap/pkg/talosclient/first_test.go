package talosclient

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
)

// record is what several goroutines have said.
type record struct {
	mu   sync.Mutex
	said []string
}

func (r *record) add(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, what)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.said)
}

// tried is what a try makes.
type tried struct {
	address string
	closed  *record
}

func (t tried) Close() error {
	t.closed.add(t.address)
	return nil
}

// TestTheFirstAddressThatAnswers: what does not answer costs a second, and not the time
// until it is given up; what a slower one makes is closed.
func TestTheFirstAddressThatAnswers(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	for name, tt := range map[string]struct {
		// after is how long each address takes; a negative one fails after that time.
		after map[string]time.Duration
		want  string
		took  time.Duration
		tried []string
	}{
		"the first is well":                   {map[string]time.Duration{"a": 0, "b": 0}, "a", 0, []string{"a"}},
		"the first takes its time":            {map[string]time.Duration{"a": 900 * time.Millisecond, "b": 0}, "a", 900 * time.Millisecond, []string{"a"}},
		"the first does not answer":           {map[string]time.Duration{"a": never, "b": 0}, "b", time.Second, []string{"a", "b"}},
		"two do not answer":                   {map[string]time.Duration{"a": never, "b": never, "c": 0}, "c", 2 * time.Second, []string{"a", "b", "c"}},
		"the first fails":                     {map[string]time.Duration{"a": -time.Millisecond, "b": 0}, "b", time.Millisecond, []string{"a", "b"}},
		"the first is slow, the second fails": {map[string]time.Duration{"a": 3 * time.Second, "b": -1}, "a", 3 * time.Second, []string{"a", "b"}},
		"all fail":                            {map[string]time.Duration{"a": -time.Millisecond, "b": -time.Millisecond}, "", 2 * time.Millisecond, []string{"a", "b"}},
		"there is none":                       {nil, "", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				var closed, asked record
				addresses := []string{"a", "b", "c"}[:len(tt.after)]
				begin := time.Now()
				got, err := First(t.Context(), addresses, func(ctx context.Context, address string) (tried, error) {
					asked.add(address)
					wait := tt.after[address]
					select {
					case <-ctx.Done():
						return tried{}, ctx.Err()
					case <-time.After(max(wait, -wait)):
					}
					if wait < 0 {
						return tried{}, errors.New(address + " has failed")
					}
					return tried{address, &closed}, nil
				})
				g.Expect(time.Since(begin)).To(Equal(tt.took))
				synctest.Wait()
				g.Expect(asked.all()).To(Equal(tt.tried))
				g.Expect(closed.all()).To(BeEmpty())
				if tt.want == "" {
					g.Expect(err).To(HaveOccurred())
					for _, address := range addresses {
						g.Expect(err).To(MatchError(ContainSubstring(address + " has failed")))
					}
					return
				}
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(got.address).To(Equal(tt.want))
			})
		})
	}
}

func TestWhatASlowerAddressMakesIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		var closed record
		got, err := First(t.Context(), []string{"a", "b"}, func(_ context.Context, address string) (tried, error) {
			if address == "a" { // It does not notice that nobody waits any more.
				<-time.After(time.Minute)
			}
			return tried{address, &closed}, nil
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got.address).To(Equal("b"))
		<-time.After(time.Hour)
		g.Expect(closed.all()).To(Equal([]string{"a"}))
	})
}
