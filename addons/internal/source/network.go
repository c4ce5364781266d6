package source

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"
)

const (
	// dialTimeout, responseTimeout and fetchTimeout are how long a connection, the
	// beginning of an answer, and all of it may take.
	dialTimeout     = 10 * time.Second
	responseTimeout = 30 * time.Second
	fetchTimeout    = 2 * time.Minute
	// maxRedirects is how often a server may send somebody on.
	maxRedirects = 5
)

// errForbiddenAddress says that a source may not be at an address.
var errForbiddenAddress = errors.New("the address is one of the manager's own machine or network segment")

// errNotHTTPS says that a source would be asked without TLS.
var errNotHTTPS = errors.New("it is not https")

// Network is how sources are reached.
type Network struct {
	// AllowLocal lets sources be at loopback and link-local addresses. They are the
	// manager's own machine, and the metadata of the cloud that it runs in, which is none
	// of the users' business.
	AllowLocal bool
	// Proxy picks the proxy of a request; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
}

// forbidden reports whether no source may be at an address.
func forbidden(address netip.Addr) bool {
	address = address.Unmap()

	return !address.IsValid() || address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsLinkLocalMulticast() ||
		address.IsInterfaceLocalMulticast() || address.IsMulticast() || address.IsUnspecified() ||
		// The metadata of a cloud over IPv6 (AWS: fd00:ec2::254) is at a unique local address.
		address == netip.MustParseAddr("fd00:ec2::254")
}

// control looks at an address that is about to be dialled: names were resolved before.
func (n Network) control(_, address string, _ syscall.RawConn) error {
	if n.AllowLocal {
		return nil
	}
	found, err := netip.ParseAddrPort(address)
	if err != nil || forbidden(found.Addr()) {
		return fmt.Errorf("dialling %s: %w", address, errForbiddenAddress)
	}

	return nil
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
	dialer := &net.Dialer{Timeout: dialTimeout, Control: n.control}

	transport := http.RoundTripper(&http.Transport{
		Proxy: n.Proxy, DialContext: dialer.DialContext, TLSClientConfig: trust, TLSHandshakeTimeout: dialTimeout,
		ResponseHeaderTimeout: responseTimeout, ForceAttemptHTTP2: true,
		// Nobody comes back for an hour.
		DisableKeepAlives: true,
	})
	if !allowHTTP {
		transport = onlyHTTPS{transport}
	}

	return &http.Client{Timeout: fetchTimeout, Transport: transport, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("it redirects too often")
		}
		if !isSameServer(next.URL, via[0].URL) {
			// net/http takes other ports, other schemes and subdomains for the same.
			next.Header.Del("Authorization")
		}
		return nil
	}}, nil
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
