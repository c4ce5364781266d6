package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

var (
	server  *s3server.Server
	buckets atomic.Int64
)

func TestMain(m *testing.M) { os.Exit(s3server.Main(m, &server)) }

// kind is what a bucket can do.
type kind string

const (
	plain     kind = "plain"
	versioned kind = "versioned"
	locking   kind = "locking"
)

// bucketOf makes a bucket.
func bucketOf(t *testing.T, is kind) Config {
	t.Helper()
	g := NewWithT(t)
	config := configAt(server)
	administrator := open(t, config)
	g.Expect(administrator.core.MakeBucket(t.Context(), config.Bucket, minio.MakeBucketOptions{Region: defaultRegion, ObjectLocking: is == locking})).To(Succeed())
	if is == versioned {
		g.Expect(administrator.core.EnableVersioning(t.Context(), config.Bucket)).To(Succeed())
	}

	return config
}

func open(t *testing.T, config Config) *Store {
	t.Helper()
	opened, err := Open(config, time.Now)
	NewWithT(t).Expect(err).ToNot(HaveOccurred())

	return opened
}

// bucketAt makes a bucket on a server.
func bucketAt(t *testing.T, server *s3server.Server) Config {
	t.Helper()
	config := configAt(server)
	NewWithT(t).Expect(server.MakeBucket(t.Context(), config.Bucket, minio.MakeBucketOptions{})).To(Succeed())

	return config
}

// configAt leads to a bucket of a server that is not there yet.
func configAt(server *s3server.Server) Config {
	return Config{
		Endpoint: server.Endpoint, Bucket: fmt.Sprintf("bucket-%d", buckets.Add(1)), PathStyle: true, CA: server.CA, Guard: egress.Guard{AllowLocal: true},
		Credentials: credentials.Value{AccessKeyID: s3server.AccessKey, SecretAccessKey: s3server.SecretKey},
	}
}

// random is a stream of some bytes, and their digest when it was read.
func random(size int64) (io.Reader, func() [32]byte) {
	sum := sha256.New()
	source := rand.NewChaCha8([32]byte{})

	return io.TeeReader(io.LimitReader(source, size), sum), func() [32]byte { return [32]byte(sum.Sum(nil)) }
}

// nothingUnfinished is what no test leaves behind.
func nothingUnfinished(t *testing.T, s *Store) {
	t.Helper()
	found, err := s.Unfinished(t.Context(), "")
	g := NewWithT(t)
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(found).To(BeEmpty())
}

func keys(t *testing.T, s *Store) []string {
	t.Helper()
	var all []string
	for object, err := range s.List(t.Context(), "") {
		NewWithT(t).Expect(err).ToNot(HaveOccurred())
		all = append(all, object.Key)
	}

	return all
}

func TestWhatIsUploadedIsThere(t *testing.T) {
	for _, is := range []kind{plain, versioned, locking} {
		store := open(t, bucketOf(t, is))
		for _, size := range []int64{0, 1, partSize - 1, partSize, partSize + 1, 3*partSize + 12345} {
			t.Run(fmt.Sprintf("%s/%d", is, size), func(t *testing.T) {
				g := NewWithT(t)
				data, digest := random(size)
				key := fmt.Sprintf("a/b c/%d", size)
				stored, err := store.Upload(t.Context(), key, "one", iotest.HalfReader(data))
				g.Expect(err).ToNot(HaveOccurred())
				g.Expect(stored.Bytes).To(Equal(size))
				g.Expect(stored.VersionID == nullVersion).To(Equal(is == plain))
				body, found, err := store.Get(t.Context(), key, stored.VersionID)
				g.Expect(err).ToNot(HaveOccurred())
				g.Expect(found.Bytes).To(Equal(size))
				sum := sha256.New()
				g.Expect(io.Copy(sum, body)).To(Equal(size))
				g.Expect(body.Close()).To(Succeed())
				g.Expect([32]byte(sum.Sum(nil))).To(Equal(digest()))
				nothingUnfinished(t, store)
				g.Expect(store.Delete(t.Context(), key, stored.VersionID)).To(Succeed())
				g.Expect(store.Delete(t.Context(), key, stored.VersionID)).To(Succeed(), "once more")
				_, err = store.Stat(t.Context(), key)
				g.Expect(ReasonOf(err)).To(Equal(NotFound))
				g.Expect(keys(t, store)).To(BeEmpty())
			})
		}
	}
}

func TestNothingIsWrittenOver(t *testing.T) {
	g := NewWithT(t)
	store := open(t, bucketOf(t, plain))
	first, err := store.Upload(t.Context(), "key", "one", strings.NewReader("first"))
	g.Expect(err).ToNot(HaveOccurred())
	_, err = store.Upload(t.Context(), "key", "two", strings.NewReader("other"))
	g.Expect(ReasonOf(err)).To(Equal(Exists))
	g.Expect(err).To(MatchError(ContainSubstring("another object has that key")))
	_, err = store.Put(t.Context(), "key", []byte("other"))
	g.Expect(ReasonOf(err)).To(Equal(Exists))
	found, err := store.Stat(t.Context(), "key")
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(found).To(Equal(first))
	data, _, err := store.GetSmall(t.Context(), "key", "", 5)
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(string(data)).To(Equal("first"))
	_, _, err = store.GetSmall(t.Context(), "key", "", 4)
	g.Expect(err).To(MatchError(ContainSubstring("more than 4")))
	nothingUnfinished(t, store)
}

func TestAFileIsPutOnce(t *testing.T) {
	g := NewWithT(t)
	store := open(t, bucketOf(t, versioned))
	first, err := store.Put(t.Context(), "manifest.json", []byte("{}"))
	g.Expect(err).ToNot(HaveOccurred())
	again, err := store.Put(t.Context(), "manifest.json", []byte("{}"))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(again).To(Equal(first))
	_, err = store.Put(t.Context(), "manifest.json", []byte("[]"))
	g.Expect(ReasonOf(err)).To(Equal(Exists))
	g.Expect(keys(t, store)).To(HaveLen(1))
}

// meddler changes what becomes of requests. It lets pass what it returns nil for.
type meddler func(server http.RoundTripper, request *http.Request) (*http.Response, error)

// with is the store of a bucket with a meddler between.
func (m meddler) with(t *testing.T, config Config) *Store {
	t.Helper()
	config.Wrap = func(server http.RoundTripper) http.RoundTripper {
		return tripper(func(request *http.Request) (*http.Response, error) {
			if response, err := m(server, request); response != nil || err != nil {
				return response, err
			}
			return server.RoundTrip(request)
		})
	}

	return open(t, config)
}

type tripper func(*http.Request) (*http.Response, error)

func (t tripper) RoundTrip(request *http.Request) (*http.Response, error) { return t(request) }

// The requests of an upload.
func begins(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Query().Has("uploads") }
func sends(r *http.Request) bool {
	return r.Method == http.MethodPut && r.URL.Query().Has("partNumber")
}
func ends(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Query().Has("uploadId") }
func puts(r *http.Request) bool {
	return r.Method == http.MethodPut && !r.URL.Query().Has("partNumber") && strings.Contains(r.URL.Path, "key")
}

var errReset = errors.New("connection reset by peer")

// answer is what a server might say.
func answer(request *http.Request, status int, code string) *http.Response {
	body := fmt.Sprintf("<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>so says the test</Message></Error>", code)

	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": []string{"application/xml"}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// upload stores two parts, or a small file.
func upload(t *testing.T, store *Store, small bool) error {
	t.Helper()
	if small {
		_, err := store.Put(t.Context(), "key", []byte("small"))
		return err
	}
	data, _ := random(partSize + 1)
	_, err := store.Upload(t.Context(), "key", "attempt", data)

	return err
}

// TestALostAnswerIsNoFailure: whichever answer of an upload is lost, once or whenever it
// is asked, and what it was about has happened.
func TestALostAnswerIsNoFailure(t *testing.T) {
	for name, test := range map[string]struct {
		is    func(*http.Request) bool
		small bool
		times int64
	}{
		"that it begins":        {begins, false, 1},
		"that a part came":      {sends, false, 1},
		"that it ended":         {ends, false, 1},
		"that it ended, always": {ends, false, 100},
		"that a file is there":  {puts, true, 1},
		"that one is, always":   {puts, true, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			var lost atomic.Int64
			config := bucketOf(t, versioned)
			store := meddler(func(server http.RoundTripper, request *http.Request) (*http.Response, error) {
				if !test.is(request) || lost.Add(1) > test.times {
					return nil, nil
				}
				response, err := server.RoundTrip(request)
				if err != nil {
					return nil, err
				}
				return nil, errors.Join(errReset, response.Body.Close())
			}).with(t, config)
			g.Expect(upload(t, store, test.small)).To(Succeed())
			g.Expect(lost.Load()).To(BeNumerically(">", 0))
			g.Expect(keys(t, open(t, config))).To(Equal([]string{"key"}))
		})
	}
}

// TestAnUploadThatFailsLeavesNothing: at each of its requests, and with its stream.
func TestAnUploadThatFailsLeavesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		is     func(*http.Request) bool
		status int
		code   string
		want   Reason
	}{
		"no bucket":           {begins, http.StatusNotFound, "NoSuchBucket", NoBucket},
		"denied":              {begins, http.StatusForbidden, "AccessDenied", Denied},
		"a clock that is off": {begins, http.StatusForbidden, "RequestTimeTooSkewed", ClockSkew},
		"full at a part":      {sends, http.StatusInsufficientStorage, "XMinioStorageFull", Full},
		"a quota at a part":   {sends, http.StatusBadRequest, "XMinioAdminBucketQuotaExceeded", Full},
		"a part too large":    {sends, http.StatusBadRequest, "EntityTooLarge", Rejected},
		"denied at its end":   {ends, http.StatusForbidden, "AccessDenied", Denied},
		"unwell for too long": {sends, http.StatusServiceUnavailable, "SlowDown", Unavailable},
		"a part that is lost": {ends, http.StatusBadRequest, "InvalidPart", Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			config := bucketOf(t, plain)
			store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
				if test.is(request) {
					return answer(request, test.status, test.code), nil
				}
				return nil, nil
			}).with(t, config)
			g.Expect(ReasonOf(upload(t, store, false))).To(Equal(test.want))
			g.Expect(keys(t, store)).To(BeEmpty())
			nothingUnfinished(t, store)
		})
	}
}

// TestAServerThatDoesNotSpeakS3 cannot be read by what it answers.
func TestAServerThatDoesNotSpeakS3(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusInternalServerError, http.StatusBadGateway} {
		for _, body := range []string{"hidden", `{"password": "hidden"}`, "<html>hidden</html>", "<Error>hidden</Error>"} {
			t.Run(fmt.Sprint(status, body), func(t *testing.T) {
				t.Parallel()
				g := NewWithT(t)
				store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
					other := answer(request, status, "")
					other.Body, other.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
					return other, nil
				}).with(t, bucketOf(t, plain))
				_, _, err := store.GetSmall(t.Context(), "key", "", 1000)
				g.Expect(ReasonOf(err)).NotTo(BeEmpty())
				g.Expect(err.Error()).NotTo(ContainSubstring("hidden"))
				_, err = store.Check(t.Context(), "probe", true)
				g.Expect(ReasonOf(err)).NotTo(BeEmpty())
				g.Expect(err.Error()).NotTo(ContainSubstring("hidden"))
			})
		}
	}
}

// TestAServerThatReadsOnSeesNothingOfOthers: one that answers before it has read, and goes on
// reading when the memory of the parts is that of another upload.
func TestAServerThatReadsOnSeesNothingOfOthers(t *testing.T) {
	g := NewWithT(t)
	var bodies sync.Map
	curious := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
		if !sends(request) {
			return nil, nil
		}
		first := make([]byte, 1)
		if _, err := io.ReadFull(request.Body, first); err != nil || first[0] != 'a' {
			return nil, fmt.Errorf("the part begins with %q: %w", first, err)
		}
		bodies.Store(request.URL.Query().Get("partNumber"), request.Body)
		accepted := answer(request, http.StatusOK, "")
		accepted.Header.Set("Etag", `"any"`)

		return accepted, nil
	}).with(t, bucketOf(t, plain))
	_, err := curious.Upload(t.Context(), "key", "attempt", strings.NewReader(strings.Repeat("a", partsInMemory*partSize)))
	g.Expect(err).To(HaveOccurred(), "the parts that the server has not read are not there")
	secret := strings.NewReader(strings.Repeat("secret", partsInMemory*partSize/6))
	_, err = open(t, bucketOf(t, plain)).Upload(t.Context(), "key", "attempt", secret)
	g.Expect(err).ToNot(HaveOccurred())
	for number := range partsInMemory {
		body, found := bodies.Load(strconv.Itoa(number + 1))
		g.Expect(found).To(BeTrue())
		rest, err := io.ReadAll(body.(io.Reader))
		g.Expect(string(rest)).To(BeEmpty())
		g.Expect(err).To(MatchError(os.ErrClosed))
	}
}

func TestAStreamThatFailsLeavesNothing(t *testing.T) {
	g := NewWithT(t)
	store := open(t, bucketOf(t, plain))
	// What is wrapped is no end, and an end that was not expected is none.
	for _, broken := range []error{errors.New("the node is gone"), io.ErrUnexpectedEOF, fmt.Errorf("reading: %w", io.EOF)} {
		for _, size := range []int64{0, 10, partSize, 4*partSize + 5} {
			data, _ := random(size)
			_, err := store.Upload(t.Context(), "key", "attempt", io.MultiReader(data, iotest.ErrReader(broken)))
			g.Expect(err).To(MatchError(broken))
			g.Expect(ReasonOf(err)).To(BeEmpty())
		}
	}
	g.Expect(keys(t, store)).To(BeEmpty())
	nothingUnfinished(t, store)
}

// TestACallerThatGoesCleansUp: an upload whose context ends is given up nevertheless.
func TestACallerThatGoesCleansUp(t *testing.T) {
	g := NewWithT(t)
	config := bucketOf(t, plain)
	ctx, cancel := context.WithCancel(t.Context())
	store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
		if sends(request) && request.URL.Query().Get("partNumber") == "2" {
			cancel()
		}
		return nil, nil
	}).with(t, config)
	data, _ := random(5 * partSize)
	_, err := store.Upload(ctx, "key", "attempt", data)
	g.Expect(err).To(MatchError(context.Canceled))
	g.Expect(keys(t, store)).To(BeEmpty())
	nothingUnfinished(t, store)
}

// TestAServerThatIsUnwellForAWhile: 503 and broken connections pass. Each request is
// counted by itself, since two parts of an upload are on their way at once.
func TestAServerThatIsUnwellForAWhile(t *testing.T) {
	g := NewWithT(t)
	var tries sync.Map
	store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
		count, _ := tries.LoadOrStore(request.Method+request.URL.String(), &atomic.Int64{})
		switch count.(*atomic.Int64).Add(1) {
		case 1:
			return answer(request, http.StatusServiceUnavailable, "SlowDown"), nil
		case 2:
			return nil, errReset
		}
		return nil, nil
	}).with(t, bucketOf(t, plain))
	g.Expect(upload(t, store, false)).To(Succeed())
	nothingUnfinished(t, store)
}

// TestWhatIsLeftIsFound: where a server does not even let uploads be given up, they are
// listed, and given up later.
func TestWhatIsLeftIsFound(t *testing.T) {
	g := NewWithT(t)
	config := bucketOf(t, plain)
	store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
		if sends(request) || request.Method == http.MethodDelete {
			return answer(request, http.StatusForbidden, "AccessDenied"), nil
		}
		return nil, nil
	}).with(t, config)
	g.Expect(upload(t, store, false)).To(MatchError(ContainSubstring("giving up")))
	later := open(t, config)
	left, err := later.Unfinished(t.Context(), "k")
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(left).To(HaveLen(1))
	g.Expect(left[0].Begun).To(BeTemporally("~", time.Now(), time.Minute))
	g.Expect(later.Unfinished(t.Context(), "other")).To(BeEmpty())
	g.Expect(later.Abort(t.Context(), left[0].Key, left[0].ID)).To(Succeed())
	g.Expect(later.Abort(t.Context(), left[0].Key, left[0].ID)).To(Succeed(), "once more")
	nothingUnfinished(t, later)
}

// TestABodyThatEndsEarlyIsAnError: with a broken connection or without.
func TestABodyThatEndsEarlyIsAnError(t *testing.T) {
	g := NewWithT(t)
	config := bucketOf(t, plain)
	g.Expect(upload(t, open(t, config), true)).To(Succeed())
	for _, end := range []error{io.EOF, errReset} {
		store := meddler(func(server http.RoundTripper, request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodGet || !strings.HasSuffix(request.URL.Path, "key") {
				return nil, nil
			}
			response, err := server.RoundTrip(request)
			if err == nil {
				response.Body = struct {
					io.Reader
					io.Closer
				}{io.MultiReader(io.LimitReader(response.Body, 2), iotest.ErrReader(end)), response.Body}
			}
			return response, err
		}).with(t, config)
		_, _, err := store.GetSmall(t.Context(), "key", "", 100)
		g.Expect(ReasonOf(err)).To(Equal(Unavailable))
	}
}

func TestLockedObjectsStay(t *testing.T) {
	g := NewWithT(t)
	config := bucketOf(t, locking)
	config.Lock = &Lock{Mode: minio.Governance, For: time.Hour}
	store := open(t, config)
	facts, err := store.Check(t.Context(), "key", true)
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(facts).To(Equal(Facts{Versioned: true, LocksObjects: true}))
	for _, small := range []bool{false, true} {
		g.Expect(upload(t, store, small)).To(Or(Succeed(), MatchError(ContainSubstring("another object"))))
	}
	stored, err := store.Stat(t.Context(), "key")
	g.Expect(err).ToNot(HaveOccurred())
	err = store.Delete(t.Context(), "key", stored.VersionID)
	g.Expect(ReasonOf(err)).To(Equal(Locked))
	g.Expect(err).To(MatchError(ContainSubstring("locked until")))
	g.Expect(store.Delete(t.Context(), "key", "")).To(MatchError(ContainSubstring("hidden only")))
	g.Expect(keys(t, store)).To(Equal([]string{"key"}))
	config.Lock = nil
	unlocked := open(t, config)
	free, err := unlocked.Put(t.Context(), "free", []byte("free"))
	g.Expect(err).ToNot(HaveOccurred())
	g.Expect(unlocked.Delete(t.Context(), "free", free.VersionID)).To(Succeed())
}

func TestAllObjectsAreListed(t *testing.T) {
	g := NewWithT(t)
	store := open(t, bucketOf(t, versioned))
	const many = 1010
	for i := range many {
		_, err := store.core.PutObject(t.Context(), store.bucket, fmt.Sprintf("p/%04d", i), bytes.NewReader(nil), 0, "", "", minio.PutObjectOptions{})
		g.Expect(err).ToNot(HaveOccurred())
	}
	g.Expect(keys(t, store)).To(HaveLen(many))
}
