// Package store keeps files in a bucket of an S3 server, so that nothing that is there is
// ever written over, and says what is wrong with a bucket in words that people can act on.
package store

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/encrypt"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

const (
	// handshakeTimeout and responseTimeout are how long a handshake and the beginning of an
	// answer may take.
	handshakeTimeout = 10 * time.Second
	responseTimeout  = time.Minute
	// defaultPatience is for how long a server may neither take nor send anything: longer than
	// most networks take to come back. What waits for it may have the only turn at scratch space.
	defaultPatience = 2 * time.Minute
	// checkLeftover is how old the upload of another manager's check is that was left behind.
	checkLeftover = time.Hour
	// defaultAttempts is how often a request is made that fails in a way that may pass.
	defaultAttempts = 4
	// defaultRegion is what servers of a single region call it.
	defaultRegion = "us-east-1"
)

// Config says where a bucket is.
type Config struct {
	// Endpoint is the URL of the server, without a path.
	Endpoint string
	// Bucket is the bucket, and Region where it is; empty means us-east-1.
	Bucket, Region string
	// PathStyle names the bucket in the path of requests and not in the name of the host.
	PathStyle bool
	// Credentials are who asks. There is no default: what the environment of the manager
	// has is not meant for those who create stores.
	Credentials credentials.Value
	// CA are the certificates in PEM that are trusted; empty means those of the system.
	CA []byte
	// Encryption is how the server encrypts what it keeps; nil means as it does by itself.
	Encryption encrypt.ServerSide
	// Lock is how long nothing of what is uploaded can be deleted; nil means that it can.
	Lock *Lock
	// Guard says at which addresses the server may be, and how it is reached.
	Guard egress.Guard

	// Attempts is how often a request is made that fails in a way that may pass; 0 means 4.
	Attempts int
	// Patience is for how long the server may neither take nor send anything; 0 means two
	// minutes.
	Patience time.Duration
	// Wrap comes between the store and its server; nil means nothing.
	Wrap func(http.RoundTripper) http.RoundTripper
}

// Lock is the retention of object lock.
type Lock struct {
	// Mode is governance or compliance. Nobody of ours ever bypasses governance.
	Mode minio.RetentionMode
	// For is how long it lasts from the upload on.
	For time.Duration
}

// Store is a bucket. It is safe for concurrent use.
type Store struct {
	core       *minio.Core
	bucket     string
	encryption encrypt.ServerSide
	// customerKey is the encryption if its key goes with each request.
	customerKey encrypt.ServerSide
	lock        *Lock
	secure      bool
	now         func() time.Time
}

// Open returns the store of a bucket. It makes no request.
func Open(config Config, now func() time.Time) (*Store, error) {
	endpoint, err := parseEndpoint(config.Endpoint)
	if err != nil {
		return nil, err
	}
	if config.Credentials.AccessKeyID == "" || config.Credentials.SecretAccessKey == "" {
		return nil, errors.New("there is no access key, or no secret of it")
	}
	transport, err := config.transport()
	if err != nil {
		return nil, err
	}
	options := &minio.Options{
		Creds:  credentials.NewStatic(config.Credentials.AccessKeyID, config.Credentials.SecretAccessKey, config.Credentials.SessionToken, credentials.SignatureV4),
		Secure: endpoint.Scheme == "https", Transport: transport, Region: cmp.Or(config.Region, defaultRegion), BucketLookup: minio.BucketLookupDNS, MaxRetries: cmp.Or(config.Attempts, defaultAttempts),
	}
	if config.PathStyle {
		options.BucketLookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(endpoint.Host, options)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", config.Endpoint, err)
	}
	store := &Store{core: core, bucket: config.Bucket, encryption: config.Encryption, lock: config.Lock, secure: options.Secure, now: now}
	if store.encryption != nil && store.encryption.Type() == encrypt.SSEC {
		store.customerKey = store.encryption
	}

	return store, nil
}

// parseEndpoint reads the URL of a server. Its error does not repeat what may hold a
// password.
func parseEndpoint(text string) (*url.URL, error) {
	endpoint, err := url.Parse(text)
	if err != nil || endpoint.Host == "" || (endpoint.Scheme != "https" && endpoint.Scheme != "http") ||
		endpoint.User != nil || (endpoint.Path != "" && endpoint.Path != "/") || endpoint.RawQuery != "" {
		return nil, errors.New("the endpoint is not https://host or https://host:port")
	}

	return endpoint, nil
}

func (c *Config) transport() (http.RoundTripper, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(c.CA) > 0 {
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(c.CA) {
			return nil, errors.New("there is no certificate in the CA of the store")
		}
	}
	transport := c.Guard.Transport(&http.Transport{
		TLSClientConfig: trust, TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: responseTimeout, IdleConnTimeout: time.Minute,
		// What is stored is what was sent.
		DisableCompression: true,
	})
	if c.Wrap != nil {
		transport = c.Wrap(transport)
	}

	return bounded{lively{stays{transport}, cmp.Or(c.Patience, defaultPatience)}}, nil
}

// stays does not follow a server that sends requests elsewhere: they are signed, and
// carry what is stored.
type stays struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s stays) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(request)
	if err != nil || response.StatusCode < http.StatusMultipleChoices || response.StatusCode >= http.StatusBadRequest || response.StatusCode == http.StatusNotModified {
		return response, err
	}
	_ = response.Body.Close()

	return nil, redirectedError{to: response.Header.Get("Location")}
}

type redirectedError struct{ to string }

func (r redirectedError) Error() string {
	to, err := url.Parse(r.to)
	if err != nil || to.Host == "" {
		return "the server sends requests to another region or address"
	}

	return "the server sends requests to " + to.Scheme + "://" + to.Host
}

// Facts are what a check finds out about a bucket.
type Facts struct {
	// Versioned reports whether the bucket keeps the versions of its objects, and
	// LocksObjects whether these can be locked.
	Versioned, LocksObjects bool
}

// Check finds out whether the bucket can be read, and, where it is to be written to,
// whether an upload to a key may begin there. It leaves nothing behind.
func (s *Store) Check(ctx context.Context, key string, write bool) (Facts, error) {
	for object := range s.core.ListObjectsIter(listing(ctx), s.bucket, minio.ListObjectsOptions{Prefix: key, MaxKeys: 1}) {
		if object.Err != nil {
			return Facts{}, judge("listing the bucket", object.Err)
		}
		break
	}
	var facts Facts
	versioning, err := s.core.GetBucketVersioning(ctx, s.bucket)
	if err != nil && !isNotImplemented(err) {
		return Facts{}, judge("reading the versioning of the bucket", err)
	}
	facts.Versioned = versioning.Enabled()
	locking, _, _, _, err := s.core.GetObjectLockConfig(ctx, s.bucket)
	if err != nil && !isNotImplemented(err) && minio.ToErrorResponse(err).Code != "ObjectLockConfigurationNotFoundError" {
		return Facts{}, judge("reading the object lock of the bucket", err)
	}
	facts.LocksObjects = locking == "Enabled"
	if s.lock != nil && !facts.LocksObjects {
		return facts, NewError(LockUnsupported, "reading the object lock of the bucket", errors.New("it locks no objects"))
	}
	if !write {
		return facts, nil
	}

	return facts, s.checkUpload(ctx, key)
}

// checkUpload begins an upload, and gives it up, and those that a former check has not: one
// whose manager died, or was never told that it began.
func (s *Store) checkUpload(ctx context.Context, key string) error {
	left, err := s.Unfinished(ctx, key)
	if err != nil && !isNotImplemented(err) {
		return err
	}
	for _, upload := range left {
		if upload.Key != key || s.now().Sub(upload.Begun) < checkLeftover {
			continue
		}
		if err := s.Abort(ctx, upload.Key, upload.ID); err != nil {
			return err
		}
	}
	upload, err := s.core.NewMultipartUpload(ctx, s.bucket, key, s.options(nil))
	if err != nil {
		return judge("beginning an upload", err)
	}

	return s.giveUp(ctx, key, upload)
}

// options are those of an upload.
func (s *Store) options(metadata map[string]string) minio.PutObjectOptions {
	options := minio.PutObjectOptions{UserMetadata: metadata, ServerSideEncryption: s.encryption}
	if s.lock != nil {
		options.Mode, options.RetainUntilDate = s.lock.Mode, s.now().Add(s.lock.For).UTC()
	}

	return options
}
