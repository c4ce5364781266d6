package egress

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
)

func TestForbiddenAddresses(t *testing.T) {
	g := NewWithT(t)
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true, "169.254.169.254": true, "fe80::1": true, "0.0.0.0": true, "::": true,
		"224.0.0.1": true, "ff02::1": true, "fd00:ec2::254": true, "fd20:ce::254": true,
		"100.100.100.200": true, "168.63.129.16": true, "0.1.2.3": true, "255.255.255.255": true, "::7f00:1": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b:1::7f00:1": true,
		"64:ff9b::c000:201": false, "100.64.0.1": false, "10.0.0.1": false, "192.0.2.1": false, "2001:db8::1": false, "fd00::1": false,
	} {
		g.Expect(forbidden(netip.MustParseAddr(address))).To(Equal(want), address)
	}
}

// ask sends a request, and returns how it ended.
func ask(t *testing.T, guard Guard, address string) error {
	t.Helper()
	g := NewWithT(t)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	g.Expect(err).NotTo(HaveOccurred())
	response, err := guard.Transport(&http.Transport{DisableKeepAlives: true}).RoundTrip(request)
	if err == nil {
		g.Expect(response.Body.Close()).To(Succeed())
	}

	return err
}

// serve is a server, and how many requests it had.
func serve(t *testing.T) (*httptest.Server, *atomic.Int64) {
	t.Helper()
	var heard atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard.Add(1) }))
	t.Cleanup(server.Close)

	return server, &heard
}

func TestNobodyIsDialledWhoIsForbidden(t *testing.T) {
	server, heard := serve(t)
	port := server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	for name, host := range map[string]string{
		"an address": "127.0.0.1", "a name": "localhost", "another address of it": "127.8.8.8", "no address": "0.0.0.0",
		"an address of IPv6": "::1", "one of IPv4 as one of IPv6": "::ffff:127.0.0.1", "the same with letters": "::ffff:7f00:1",
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(ask(t, Guard{}, "http://"+net.JoinHostPort(host, port))).To(HaveOccurred())
		})
	}
	g := NewWithT(t)
	g.Expect(ask(t, Guard{}, server.URL)).To(MatchError(ErrForbidden))
	g.Expect(heard.Load()).To(BeZero())
	g.Expect(ask(t, Guard{AllowLocal: true}, server.URL)).To(Succeed())
	g.Expect(heard.Load()).To(Equal(int64(1)))
}

// TestAProxyIsNotAskedForWhoIsForbidden: what is dialled then is the proxy, which may be
// anywhere.
func TestAProxyIsNotAskedForWhoIsForbidden(t *testing.T) {
	proxy, heard := serve(t)
	through, err := url.Parse(proxy.URL)
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	guard := Guard{Proxy: http.ProxyURL(through), LookUp: func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if host == "rebound.example.com" {
			return []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("169.254.169.254")}, nil
		}
		return nil, &net.DNSError{Name: host, IsNotFound: true}
	}}
	for _, host := range []string{
		"169.254.169.254", "127.0.0.1", "[::ffff:169.254.169.254]", "localhost", "LocalHost.", "x.localhost", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "rebound.example.com",
	} {
		t.Run(host, func(t *testing.T) {
			NewWithT(t).Expect(ask(t, guard, "http://"+host)).To(MatchError(ErrForbidden))
		})
	}
	g.Expect(heard.Load()).To(BeZero())
	g.Expect(ask(t, guard, "http://store.example.com")).To(Succeed(), "only the proxy knows the name")
	g.Expect(ask(t, guard, "http://192.0.2.1")).To(Succeed())
	guard.AllowLocal = true
	g.Expect(ask(t, guard, "http://169.254.169.254")).To(Succeed())
	g.Expect(heard.Load()).To(Equal(int64(3)))
	// Requests that need no proxy are sent without it, and looked at when they are.
	guard = Guard{Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }} //nolint:nilnil // That is how net/http has it.
	g.Expect(ask(t, guard, proxy.URL)).To(MatchError(ErrForbidden))
}
