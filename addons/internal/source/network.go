package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// dialTimeout and responseTimeout are how long a connection and the beginning of an
	// answer may take, and fetchTimeout all requests for one thing: an index, the list of
	// tags with all its pages, an archive.
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
	// Reading bounds how many indexes of repositories are read at a time; nil does not.
	Reading *semaphore.Weighted
	// LookUp resolves the names of hosts that a proxy is asked for; nil means the resolver
	// of the system.
	LookUp func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// metadata are addresses of the metadata of clouds that are not link-local: those of
// Alibaba Cloud, Azure, Oracle Cloud, AWS and Google Cloud, as their documentation has them.
var metadata = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
}

// embedding are the networks of IPv6 whose addresses end with one of IPv4, to which they
// lead: IPv4-compatible (RFC 4291) and translated ones (RFC 6052, RFC 8215).
var embedding = []netip.Prefix{
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
}

// forbidden reports whether no source may be at an address.
func forbidden(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	if !address.IsValid() || address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified() ||
		slices.Contains(metadata, address) {
		return true
	}
	if address.Is4() {
		// This network, and broadcasts.
		return address.As4()[0] == 0 || address == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	bytes := address.As16()

	return slices.ContainsFunc(embedding, func(network netip.Prefix) bool { return network.Contains(address) }) &&
		forbidden(netip.AddrFrom4([4]byte(bytes[12:])))
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
	direct := &http.Transport{
		DialContext:     (&net.Dialer{Timeout: dialTimeout, Control: n.control}).DialContext,
		TLSClientConfig: trust, TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: responseTimeout, ForceAttemptHTTP2: true,
		// Nobody comes back for an hour.
		DisableKeepAlives: true,
	}
	transport := http.RoundTripper(direct)
	if n.Proxy != nil {
		// Where the proxy is, its administrator knows.
		proxied := direct.Clone()
		proxied.DialContext, proxied.Proxy = (&net.Dialer{Timeout: dialTimeout}).DialContext, n.Proxy
		transport = byProxy{network: n, direct: direct, proxied: proxied}
	}
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

// byProxy sends requests by the proxy that is set for them. What is dialled then is the
// proxy, so that the address of the source is looked at before.
type byProxy struct {
	network         Network
	direct, proxied http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b byProxy) RoundTrip(request *http.Request) (*http.Response, error) {
	proxy, err := b.network.Proxy(request)
	if err != nil {
		return nil, fmt.Errorf("picking the proxy: %w", err)
	}
	if proxy == nil {
		return b.direct.RoundTrip(request)
	}
	if !b.network.AllowLocal && b.isForbiddenHost(request.Context(), request.URL.Hostname()) {
		return nil, fmt.Errorf("asking the proxy for %s: %w", request.URL.Hostname(), errForbiddenAddress)
	}

	return b.proxied.RoundTrip(request)
}

// isForbiddenHost reports whether no source may be at a host: it is an address at which
// none may be, a name of one, or a number, which some resolvers take for an address of
// IPv4. A name that only the proxy can resolve is left to it.
func (b byProxy) isForbiddenHost(ctx context.Context, host string) bool {
	if address, err := netip.ParseAddr(host); err == nil {
		return forbidden(address)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || name == "localhost" || last == "localhost" {
		return true
	}
	lookUp := b.network.LookUp
	if lookUp == nil {
		lookUp = net.DefaultResolver.LookupNetIP
	}
	addresses, err := lookUp(ctx, "ip", host)

	return err == nil && slices.ContainsFunc(addresses, forbidden)
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
