// Package egress guards what managers ask at addresses that users of a namespace name: no
// request goes to the manager's own machine or network segment, nor to the metadata of the
// cloud that it runs in, which are none of the users' business.
package egress

import (
	"context"
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
)

// dialTimeout is how long a connection may take.
const dialTimeout = 10 * time.Second

// ErrForbidden says that nobody may be asked at an address.
var ErrForbidden = errors.New("the address is one of the manager's own machine or network segment")

// Guard says at which addresses somebody may be asked.
type Guard struct {
	// AllowLocal allows all addresses, loopback and link-local ones, too.
	AllowLocal bool
	// Proxy picks the proxy of a request; nil means none.
	Proxy func(*http.Request) (*url.URL, error)
	// LookUp resolves the names of hosts that a proxy is asked for; nil means the resolver
	// of the system.
	LookUp func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Transport returns a transport that asks nobody whom the guard forbids: such requests fail
// with ErrForbidden. It is like base, whose dialer and proxy are those of the guard.
func (g Guard) Transport(base *http.Transport) http.RoundTripper {
	direct := base.Clone()
	direct.DialContext, direct.Proxy = (&net.Dialer{Timeout: dialTimeout, Control: g.control}).DialContext, nil
	if g.Proxy == nil {
		return direct
	}
	// Where the proxy is, its administrator knows.
	proxied := base.Clone()
	proxied.DialContext, proxied.Proxy = (&net.Dialer{Timeout: dialTimeout}).DialContext, g.Proxy

	return byProxy{guard: g, direct: direct, proxied: proxied}
}

// control looks at an address that is about to be dialled: names were resolved before.
func (g Guard) control(_, address string, _ syscall.RawConn) error {
	if g.AllowLocal {
		return nil
	}
	found, err := netip.ParseAddrPort(address)
	if err != nil || forbidden(found.Addr()) {
		return fmt.Errorf("dialling %s: %w", address, ErrForbidden)
	}

	return nil
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

// forbidden reports whether nobody may be asked at an address.
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

// byProxy sends requests by the proxy that is set for them. What is dialled then is the
// proxy, so that the address of the server is looked at before.
type byProxy struct {
	guard           Guard
	direct, proxied http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b byProxy) RoundTrip(request *http.Request) (*http.Response, error) {
	proxy, err := b.guard.Proxy(request)
	if err != nil {
		return nil, fmt.Errorf("picking the proxy: %w", err)
	}
	if proxy == nil {
		return b.direct.RoundTrip(request)
	}
	if !b.guard.AllowLocal && b.isForbiddenHost(request.Context(), request.URL.Hostname()) {
		return nil, fmt.Errorf("asking the proxy for %s: %w", request.URL.Hostname(), ErrForbidden)
	}

	return b.proxied.RoundTrip(request)
}

// isForbiddenHost reports whether a host may not be asked: it is a forbidden address, a
// name of one, or a number, which some resolvers take for an address of IPv4. A name that
// only the proxy can resolve is left to it.
func (b byProxy) isForbiddenHost(ctx context.Context, host string) bool {
	if address, err := netip.ParseAddr(host); err == nil {
		return forbidden(address)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	last := name[strings.LastIndexByte(name, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || name == "localhost" || last == "localhost" {
		return true
	}
	lookUp := b.guard.LookUp
	if lookUp == nil {
		lookUp = net.DefaultResolver.LookupNetIP
	}
	addresses, err := lookUp(ctx, "ip", host)

	return err == nil && slices.ContainsFunc(addresses, forbidden)
}
