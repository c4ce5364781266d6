package store

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// silent is the store of a server that falls silent at the requests that are picked: it has
// sent what is given before, or nothing at all, and takes nothing more of what is sent.
func silent(t *testing.T, picks func(*http.Request) bool, sends string) (*Store, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	over := make(chan struct{})
	opened := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if !picks(r) {
			_, _ = io.WriteString(w, "<Result><UploadId>1</UploadId></Result>")
			return
		}
		asked.Add(1)
		w.Header().Set("Last-Modified", "Wed, 25 Nov 2026 12:00:00 GMT")
		if sends != "" {
			_, _ = io.WriteString(w, sends)
			_ = http.NewResponseController(w).Flush()
		}
		<-over
	}, func(c *Config) { c.Patience = 200 * time.Millisecond })
	t.Cleanup(func() { close(over) })

	return opened, &asked
}

func gets(r *http.Request) bool { return r.Method == http.MethodGet }

// TestASilentServerIsNotWaitedFor: whatever it is asked, and wherever it falls silent.
func TestASilentServerIsNotWaitedFor(t *testing.T) {
	for name, test := range map[string]struct {
		picks func(*http.Request) bool
		sends string
		ask   func(t *testing.T, s *Store) error
	}{
		"before an object":     {gets, "", read},
		"within an object":     {gets, "the beginning", read},
		"within a list":        {gets, "<Result>", func(t *testing.T, s *Store) error { t.Helper(); _, err := s.Unfinished(t.Context(), ""); return err }},
		"while it gets a part": {sends, "", func(t *testing.T, s *Store) error { t.Helper(); return upload(t, s, false) }},
		"while it gets a file": {puts, "", func(t *testing.T, s *Store) error { t.Helper(); return upload(t, s, true) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			store, asked := silent(t, test.picks, test.sends)
			err := test.ask(t, store)
			g.Expect(ReasonOf(err)).To(Equal(Unavailable))
			g.Expect(err).To(MatchError(errSilent))
			g.Expect(asked.Load()).To(BeNumerically(">", 0))
		})
	}
}

func read(t *testing.T, s *Store) error {
	t.Helper()
	_, _, err := s.GetSmall(t.Context(), "key", "", 1000)

	return err
}
