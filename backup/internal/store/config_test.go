package store

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

func TestChecks(t *testing.T) {
	config := bucketOf(t, plain)
	for name, test := range map[string]struct {
		change func(*Config)
		want   Reason
		says   string
	}{
		"all is well":       {func(*Config) {}, "", ""},
		"a wrong secret":    {func(c *Config) { c.Credentials.SecretAccessKey = "wrong-one" }, InvalidCredentials, "correct the Secret"},
		"an unknown key":    {func(c *Config) { c.Credentials.AccessKeyID = "nobody" }, InvalidCredentials, "correct the Secret"},
		"an unknown bucket": {func(c *Config) { c.Bucket = "nowhere" }, NoBucket, "correct its name"},
		"no trusted CA":     {func(c *Config) { c.CA = nil }, UntrustedCertificate, "give the CA"},
		"another region":    {func(c *Config) { c.Region = "mars-north-1" }, Redirected, "the region of the bucket"},
		"nobody there":      {func(c *Config) { c.Endpoint = "https://127.0.0.1:1" }, Unavailable, "refused"},
		"the manager's own": {func(c *Config) { c.Guard = egress.Guard{} }, Refused, "name another endpoint"},
		"a clock that is off": {func(c *Config) {
			c.Wrap = func(http.RoundTripper) http.RoundTripper {
				return tripper(func(r *http.Request) (*http.Response, error) {
					return answer(r, http.StatusForbidden, "RequestTimeTooSkewed"), nil
				})
			}
		}, ClockSkew, "set the clocks"},
		"sent elsewhere": {func(c *Config) {
			c.Wrap = func(http.RoundTripper) http.RoundTripper {
				return tripper(func(r *http.Request) (*http.Response, error) {
					found := answer(r, http.StatusTemporaryRedirect, "TemporaryRedirect")
					found.Header.Set("Location", "http://169.254.169.254/latest?secret")
					return found, nil
				})
			}
		}, Redirected, "http://169.254.169.254: name the endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			changed := config
			test.change(&changed)
			store := open(t, changed)
			facts, err := store.Check(t.Context(), "probe", true)
			g.Expect(ReasonOf(err)).To(Equal(test.want), "%v", err)
			if test.want == "" {
				g.Expect(err).ToNot(HaveOccurred())
				g.Expect(facts).To(Equal(Facts{}))
				g.Expect(keys(t, store)).To(BeEmpty())
				nothingUnfinished(t, store)
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(test.says)))
			g.Expect(err.Error()).ToNot(Or(ContainSubstring(config.Credentials.SecretAccessKey), ContainSubstring("?secret"), ContainSubstring("wrong-one")))
		})
	}
}

func TestConfigsThatAreNone(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no URL":            {func(c *Config) { c.Endpoint = "s3.example.com" }, "is not https://host"},
		"a path":            {func(c *Config) { c.Endpoint = "https://s3.example.com/bucket" }, "is not https://host"},
		"a password in it":  {func(c *Config) { c.Endpoint = "https://me:it@s3.example.com" }, "is not https://host"},
		"no credentials":    {func(c *Config) { c.Credentials = credentials.Value{} }, "no access key"},
		"a CA that is none": {func(c *Config) { c.CA = []byte("none") }, "no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Endpoint: "https://s3.example.com", Bucket: "bucket", Credentials: credentials.Value{AccessKeyID: "a", SecretAccessKey: "b"}}
			test.change(&config)
			_, err := Open(config, time.Now)
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
}

// TestTheBucketIsInTheName: of the host, unless the path is asked for.
func TestTheBucketIsInTheName(t *testing.T) {
	for pathStyle, want := range map[bool]string{true: "https://s3.example.com/bucket/", false: "https://bucket.s3.example.com/"} {
		var asked *url.URL
		store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
			asked = request.URL
			return answer(request, http.StatusForbidden, "AccessDenied"), nil
		}).with(t, Config{Endpoint: "https://s3.example.com", Bucket: "bucket", PathStyle: pathStyle, Credentials: credentials.Value{AccessKeyID: "a", SecretAccessKey: "b"}})
		_, err := store.Check(t.Context(), "key", false)
		g := NewWithT(t)
		g.Expect(ReasonOf(err)).To(Equal(Denied))
		g.Expect(asked.String()).To(HavePrefix(want))
	}
}

// TestACheckLeavesNoUpload: neither of its own, where its caller goes in the middle, nor one of
// a manager that died in the middle. Those of others stay, and what another manager begins now.
func TestACheckLeavesNoUpload(t *testing.T) {
	g := NewWithT(t)
	config := bucketOf(t, plain)
	ctx, cancel := context.WithCancel(t.Context())
	interrupted := meddler(func(server http.RoundTripper, request *http.Request) (*http.Response, error) {
		if begins(request) {
			defer cancel()
			return server.RoundTrip(request.WithContext(t.Context()))
		}
		return nil, nil
	}).with(t, config)
	g.Expect(interrupted.Check(ctx, "probe", true)).Error().NotTo(HaveOccurred())
	g.Expect(ctx.Err()).To(HaveOccurred())
	nothingUnfinished(t, interrupted)

	store := open(t, config)
	for _, key := range []string{"probe", "probe/below", "probe-2", "prob"} {
		_, err := store.core.NewMultipartUpload(t.Context(), store.bucket, key, store.options(nil))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(store.Check(t.Context(), "probe", true)).Error().NotTo(HaveOccurred())
	g.Expect(store.Unfinished(t.Context(), "")).To(HaveLen(4), "another manager may be about to give it up")
	later, err := Open(config, func() time.Time { return time.Now().Add(2 * time.Hour) })
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(later.Check(t.Context(), "probe", false)).Error().NotTo(HaveOccurred())
	g.Expect(later.Unfinished(t.Context(), "")).To(HaveLen(4), "who may only read deletes nothing")
	g.Expect(later.Check(t.Context(), "probe", true)).Error().NotTo(HaveOccurred())
	left, err := later.Unfinished(t.Context(), "")
	g.Expect(err).NotTo(HaveOccurred())
	var keys []string
	for _, upload := range left {
		keys = append(keys, upload.Key)
	}
	g.Expect(keys).To(ConsistOf("probe/below", "probe-2", "prob"))
}

// TestACheckNeedsNoListOfUploads: some servers have none. One that is denied is said to be.
func TestACheckNeedsNoListOfUploads(t *testing.T) {
	config := bucketOf(t, plain)
	for code, want := range map[string]Reason{"NotImplemented": "", "AccessDenied": Denied} {
		g := NewWithT(t)
		store := meddler(func(_ http.RoundTripper, request *http.Request) (*http.Response, error) {
			if request.Method == http.MethodGet && request.URL.Query().Has("uploads") {
				return answer(request, map[string]int{"NotImplemented": http.StatusNotImplemented, "AccessDenied": http.StatusForbidden}[code], code), nil
			}
			return nil, nil
		}).with(t, config)
		_, err := store.Check(t.Context(), "probe", true)
		g.Expect(ReasonOf(err)).To(Equal(want))
	}
}
