package source

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

const (
	// handshakeTimeout and responseTimeout are how long a handshake and the beginning of an
	// answer may take, and fetchTimeout all requests for one thing: an index, the list of
	// tags with all its pages, an archive.
	handshakeTimeout = 10 * time.Second
	responseTimeout  = 30 * time.Second
	fetchTimeout     = 2 * time.Minute
	// ResolveTimeout is how long Charts.Resolve may take: it finds a chart, and fetches it.
	ResolveTimeout = 2 * fetchTimeout
	// maxRedirects is how often a server may send somebody on.
	maxRedirects = 5
)

// errNotHTTPS says that a source would be asked without TLS.
var errNotHTTPS = errors.New("it is not https")

// Network is how sources are reached.
type Network struct {
	egress.Guard

	// Reading bounds how many indexes of repositories are read at a time; nil does not.
	Reading *semaphore.Weighted
}

// client is an HTTP client that trusts the given CA certificates, or those of the system
// where there are none.
func (n Network) client(ca []byte, allowHTTP bool) (*http.Client, error) {
	trust := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		trust.RootCAs = x509.NewCertPool()
		if !trust.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("there is no certificate in it")
		}
	}
	transport := n.Transport(&http.Transport{
		TLSClientConfig: trust, TLSHandshakeTimeout: handshakeTimeout, ResponseHeaderTimeout: responseTimeout, ForceAttemptHTTP2: true,
		// Nobody comes back for an hour.
		DisableKeepAlives: true,
	})
	if !allowHTTP {
		transport = onlyHTTPS{transport}
	}

	return &http.Client{Timeout: fetchTimeout, Transport: transport, CheckRedirect: checkRedirect}, nil
}

// checkRedirect follows so many redirections, and takes the password along to the server
// that it is for only: net/http does so to other ports and subdomains of it, too, and
// without TLS.
func checkRedirect(request *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("it redirects too often")
	}
	if !isSameServer(request.URL, via[0].URL) {
		request.Header.Del("Authorization")
	}

	return nil
}

// isSameServer reports whether two addresses are those of the same server, which may be
// told the same password.
func isSameServer(a, b *url.URL) bool { return a.Scheme == b.Scheme && a.Host == b.Host }

// onlyHTTPS refuses requests without TLS, wherever they come from: a redirection, the
// index of a repository, or a registry that names the server of its tokens.
type onlyHTTPS struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o onlyHTTPS) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "https" {
		return nil, fmt.Errorf("%s: %w", request.URL.Redacted(), errNotHTTPS)
	}

	return o.RoundTripper.RoundTrip(request)
}
