package store

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7/pkg/credentials"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

// hostile is the store of a server that answers as it likes.
func hostile(t *testing.T, answers http.HandlerFunc, changes ...func(*Config)) *Store {
	t.Helper()
	server := httptest.NewTLSServer(answers)
	t.Cleanup(server.Close)
	config := Config{
		Endpoint: server.URL, Bucket: "bucket", PathStyle: true, Guard: egress.Guard{AllowLocal: true}, Attempts: 1,
		CA:          pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		Credentials: credentials.Value{AccessKeyID: "key", SecretAccessKey: "secret"},
	}
	for _, change := range changes {
		change(&config)
	}

	return open(t, config)
}

// flood is an answer without a length, and how many mebibytes of its end were not taken.
type flood struct {
	status          int
	begins, repeats string
	left            atomic.Int64
}

func newFlood(status int, begins, repeats string) *flood {
	made := &flood{status: status, begins: begins, repeats: strings.Repeat(repeats, 1<<20/len(repeats))}
	made.left.Store(64)

	return made
}

func (f *flood) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Last-Modified", "Wed, 25 Nov 2026 12:00:00 GMT")
	w.WriteHeader(f.status)
	if _, err := io.WriteString(w, f.begins); err != nil {
		return
	}
	for f.left.Load() > 0 {
		if _, err := io.WriteString(w, f.repeats); err != nil {
			return
		}
		f.left.Add(-1)
	}
}

// TestAnObjectWithoutALengthIsSmallNevertheless: no more of it is read than may be.
func TestAnObjectWithoutALengthIsSmallNevertheless(t *testing.T) {
	g, floods := NewWithT(t), newFlood(http.StatusOK, "{", "a")
	_, _, err := hostile(t, floods.ServeHTTP).GetSmall(t.Context(), "key", "", 1000)
	g.Expect(err).To(MatchError(ContainSubstring("more than 1000")))
	g.Expect(floods.left.Load()).To(BeNumerically(">", 0), "it is not read to its end")
	small := hostile(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", "Wed, 25 Nov 2026 12:00:00 GMT")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "small")
	})
	data, _, err := small.GetSmall(t.Context(), "key", "", 5)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(data)).To(Equal("small"))
}

// TestAnswersWithoutAnEndAreNotReadToIt: whatever was asked, and whether it went well.
func TestAnswersWithoutAnEndAreNotReadToIt(t *testing.T) {
	for status, floods := range map[int][2]string{http.StatusOK: {"<Result>", "<Version/>"}, http.StatusForbidden: {"<Error>", " "}} {
		for name, ask := range map[string]func(t *testing.T, s *Store) error{
			"the check": func(t *testing.T, s *Store) error {
				t.Helper()
				_, err := s.Check(t.Context(), "key", true)
				return err
			},
			"a list": func(t *testing.T, s *Store) error {
				t.Helper()
				for _, err := range s.List(t.Context(), "") {
					return err
				}
				return nil
			},
			"the list of uploads": func(t *testing.T, s *Store) error {
				t.Helper()
				_, err := s.Unfinished(t.Context(), "")
				return err
			},
			"an upload": func(t *testing.T, s *Store) error { t.Helper(); return upload(t, s, false) },
		} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				g, endless := NewWithT(t), newFlood(status, floods[0], floods[1])
				err := ask(t, hostile(t, endless.ServeHTTP))
				g.Expect(ReasonOf(err)).To(Equal(Unavailable))
				g.Expect(err).To(MatchError(errAnswer))
				g.Expect(endless.left.Load()).To(BeNumerically(">", 50))
			})
		}
	}
}

// TestListsWithoutAnEndEnd: with the same page again and again, with ever new ones, and with
// keys that no server has.
func TestListsWithoutAnEndEnd(t *testing.T) {
	lists := map[string]func(t *testing.T, s *Store) error{
		"of objects": func(t *testing.T, s *Store) error {
			t.Helper()
			for _, err := range s.List(t.Context(), "") {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"of uploads": func(t *testing.T, s *Store) error {
			t.Helper()
			_, err := s.Unfinished(t.Context(), "")
			return err
		},
		"of the check": func(t *testing.T, s *Store) error {
			t.Helper()
			_, err := s.Check(t.Context(), "key", false)
			return err
		},
	}
	for name, test := range map[string]struct {
		page func(asked *http.Request, number int64) string
		most int64
	}{
		"the same, empty": {func(asked *http.Request, _ int64) string { return nextPage(asked, "a") }, 2},
		"the same":        {func(asked *http.Request, _ int64) string { return entry(asked, "a") + nextPage(asked, "a") }, 2},
		"ever new ones":   {func(asked *http.Request, number int64) string { return nextPage(asked, fmt.Sprint(number)) }, maxPages},
	} {
		for of, list := range lists {
			t.Run(name+" "+of, func(t *testing.T) {
				t.Parallel()
				var number atomic.Int64
				endless := hostile(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "<Result><IsTruncated>true</IsTruncated>"+test.page(r, number.Add(1))+"</Result>")
				})
				err := list(t, endless)
				g := NewWithT(t)
				g.Expect(ReasonOf(err)).To(Equal(Unavailable))
				g.Expect(err).To(MatchError(ContainSubstring("does not come to an end")))
				g.Expect(number.Load()).To(Equal(test.most))
			})
		}
	}
	for _, of := range []string{"of objects", "of uploads"} {
		t.Run("long keys "+of, func(t *testing.T) {
			t.Parallel()
			long := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "<Result>"+entry(r, strings.Repeat("a", maxName+1))+"</Result>")
			})
			NewWithT(t).Expect(lists[of](t, long)).To(MatchError(ContainSubstring("longer than 1024 bytes")))
		})
	}
}

// TestAListThatIsGivenUpIsNotWhole: whose caller ends before the first page, or between two, is
// told so.
func TestAListThatIsGivenUpIsNotWhole(t *testing.T) {
	for name, after := range map[string]int{"at once": 0, "between two pages": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "<Result><IsTruncated>true</IsTruncated>"+entry(r, "a")+nextPage(r, "a")+"</Result>")
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if after == 0 {
				cancel()
			}
			var keys []string
			var failed []error
			for object, err := range store.List(ctx, "") {
				if cancel(); err != nil {
					failed = append(failed, err)
					continue
				}
				keys = append(keys, object.Key)
			}
			g := NewWithT(t)
			g.Expect(keys).To(HaveLen(after))
			g.Expect(failed).To(ConsistOf(MatchError(context.Canceled)))
		})
	}
}

// TestUploadsThatCannotAllBeListed can be given up nevertheless, as far as they were.
func TestUploadsThatCannotAllBeListed(t *testing.T) {
	for name, test := range map[string]struct {
		pages int64
		want  int
		says  string
	}{
		"too many":              {100, maxUnfinished, "more than 10000"},
		"a page that is denied": {2, 2000, "Access Denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			var number atomic.Int64
			found, err := hostile(t, func(w http.ResponseWriter, r *http.Request) {
				if number.Add(1) > test.pages {
					w.WriteHeader(http.StatusForbidden)
					return
				}
				_, _ = io.WriteString(w, "<Result><IsTruncated>true</IsTruncated>"+strings.Repeat(entry(r, "a"), 1000)+nextPage(r, fmt.Sprint(number.Load()))+"</Result>")
			}).Unfinished(t.Context(), "")
			g.Expect(err).To(MatchError(ContainSubstring(test.says)))
			g.Expect(found).To(HaveLen(test.want))
		})
	}
}

// entry is an object or an upload, as it was asked for.
func entry(asked *http.Request, key string) string {
	if asked.URL.Query().Has("uploads") {
		return fmt.Sprintf("<Upload><Key>%s</Key><UploadId>1</UploadId></Upload>", key)
	}
	if asked.URL.Query().Has("versions") {
		return fmt.Sprintf("<Version><Key>%s</Key><VersionId>1</VersionId></Version>", key)
	}

	return ""
}

// nextPage is where a list goes on.
func nextPage(asked *http.Request, marker string) string {
	if asked.URL.Query().Has("list-type") {
		return fmt.Sprintf("<NextContinuationToken>%s</NextContinuationToken>", marker)
	}

	return fmt.Sprintf("<NextKeyMarker>%s</NextKeyMarker>", marker)
}
