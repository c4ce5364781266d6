package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

// recorder is a server that keeps what it was told in the header Authorization.
type recorder struct {
	*httptest.Server

	mu   sync.Mutex
	told []string
}

func newRecorder(t *testing.T, handle http.HandlerFunc) *recorder {
	t.Helper()
	r := &recorder{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.mu.Lock()
		r.told = append(r.told, request.Header.Get("Authorization"))
		r.mu.Unlock()
		handle(w, request)
	}))
	t.Cleanup(r.Close)

	return r
}

func (r *recorder) heard() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.told
}

// TestThePasswordGoesToNoOtherPort: net/http takes it along in a redirection to the same
// host, whatever listens at another port there, and without TLS.
func TestThePasswordGoesToNoOtherPort(t *testing.T) {
	g := NewWithT(t)
	other := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, packed) })
	var server *recorder
	server = newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/moved.tgz":
			http.Redirect(w, r, other.URL+"/back", http.StatusFound)
		case "/own.tgz":
			http.Redirect(w, r, server.URL+"/demo.tgz", http.StatusFound)
		case "/demo.tgz":
			_, _ = fmt.Fprint(w, packed)
		default:
			_, _ = fmt.Fprint(w, indexOf(entry("1.0.0", "moved.tgz", ""), entry("2.0.0", "own.tgz", "")))
		}
	})
	for _, version := range []string{"1.0.0", "2.0.0"} {
		found, err := local.Find(t.Context(), addonv1.AddonSource{Repository: addonv1.RepositorySource{
			URL: server.URL, Chart: "demo", Version: version, Insecure: addonv1.AllowHTTP,
		}}, Access{Username: "u", Password: "p"})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = found.Fetch(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(other.heard()).To(Equal([]string{""}))
	g.Expect(server.heard()).To(HaveLen(5))
	g.Expect(server.heard()).NotTo(ContainElement(""), "the server itself gets it, after a redirection as well")
}

// TestCredentialsOfARegistryStayThere: a registry may have its tokens given out elsewhere,
// its archives lie elsewhere, and its list go on elsewhere.
func TestCredentialsOfARegistryStayThere(t *testing.T) {
	g := NewWithT(t)
	other := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/tags/") {
			w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = fmt.Fprint(w, packed)
	})
	layer := map[string]any{"mediaType": chartMediaType, "digest": "sha256:" + hexDigest(packed), "size": len(packed)}
	manifest, err := json.Marshal(map[string]any{"schemaVersion": 2, "config": layer, "layers": []any{layer}})
	g.Expect(err).NotTo(HaveOccurred())
	var continued atomic.Bool
	server := newRecorder(t, func(w http.ResponseWriter, r *http.Request) {
		switch user, _, _ := r.BasicAuth(); {
		case user != "u":
			w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/tags/"):
			if continued.Load() {
				w.Header().Set("Link", "<"+other.URL+`/v2/demo/tags/list>; rel="next"`)
			}
			_, _ = fmt.Fprint(w, `{"tags":["1.0.0"]}`)
		case strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, other.URL+"/blob", http.StatusTemporaryRedirect)
		default:
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", "sha256:"+hexDigest(string(manifest)))
			_, _ = w.Write(manifest)
		}
	})
	host := strings.TrimPrefix(server.URL, "http://")
	access := Access{DockerConfig: []byte(`{"auths":{"` + host + `":{"username":"u","password":"p"}}}`)}
	asked := addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://" + host + "/demo", Insecure: addonv1.AllowHTTP}}
	found, err := local.Find(t.Context(), asked, access)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := found.Fetch(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(Equal(packed))
	continued.Store(true)
	_, err = local.Find(t.Context(), asked, access)
	g.Expect(err).To(HaveField("Reason", addonv1.SourceUnauthorizedReason))
	g.Expect(other.heard()).To(Equal([]string{"", ""}))
}

// TestARegistryCannotHaveItsTokenFetchedFromAnywhere: neither without TLS, nor from the
// metadata of a cloud.
func TestARegistryCannotHaveItsTokenFetchedFromAnywhere(t *testing.T) {
	plain := newRecorder(t, func(http.ResponseWriter, *http.Request) {})
	for name, realm := range map[string]string{
		"without TLS":                  plain.URL + "/token",
		"from the metadata of a cloud": "https://169.254.169.254/token",
		"from a file":                  "file:///etc/passwd",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="`+realm+`",service="charts"`)
				w.WriteHeader(http.StatusUnauthorized)
			}))
			t.Cleanup(server.Close)
			host := strings.TrimPrefix(server.URL, "https://")
			_, err := local.Find(t.Context(), addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://" + host + "/demo"}}, Access{
				CA: caOf(server), DockerConfig: []byte(`{"auths":{"` + host + `":{"username":"u","password":"hunter2"}}}`),
			})
			g.Expect(err).To(MatchError(And(ContainSubstring("realm"), Not(ContainSubstring("hunter2")))))
			g.Expect(plain.heard()).To(BeEmpty())
		})
	}
}

// TestARegistryWithoutEndIsLeft: it may always have a next page, with nothing on it.
func TestARegistryWithoutEndIsLeft(t *testing.T) {
	pages := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages++
		w.Header().Set("Link", fmt.Sprintf(`<%s?page=%d>; rel="next"`, r.URL.Path, pages))
		_, _ = fmt.Fprint(w, `{"tags":[]}`)
	}))
	t.Cleanup(server.Close)
	g := NewWithT(t)
	_, err := local.Find(t.Context(), addonv1.AddonSource{Registry: addonv1.RegistrySource{
		URL: "oci://" + strings.TrimPrefix(server.URL, "http://") + "/demo", Insecure: addonv1.AllowHTTP,
	}}, Access{})
	g.Expect(err).To(HaveField("Reason", addonv1.SourceRefusedReason), fmt.Sprint(err))
	g.Expect(pages).To(Equal(maxPages + 1))
}

// TestNoRequestGoesToTheManagersOwnMachine, whoever names the address: the URL of a source,
// a name, a redirection or an index.
func TestNoRequestGoesToTheManagersOwnMachine(t *testing.T) {
	own := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, packed) })
	port := own.URL[strings.LastIndexByte(own.URL, ':')+1:]
	for name, host := range map[string]string{
		"an address": "127.0.0.1", "a name": "localhost", "another address of it": "127.8.8.8", "no address": "0.0.0.0",
		"an address of IPv6": "[::1]", "one of IPv4 as one of IPv6": "[::ffff:127.0.0.1]", "the same with letters": "[::ffff:7f00:1]", "a number": "2130706433",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := Network{}.Find(t.Context(), addonv1.AddonSource{Repository: addonv1.RepositorySource{
				URL: "http://" + net.JoinHostPort(strings.Trim(host, "[]"), port), Chart: "demo", Insecure: addonv1.AllowHTTP,
			}}, Access{})
			g.Expect(err).To(HaveOccurred())
			_, err = Network{}.Find(t.Context(), addonv1.AddonSource{Registry: addonv1.RegistrySource{
				URL: "oci://" + net.JoinHostPort(strings.Trim(host, "[]"), port) + "/demo", Insecure: addonv1.AllowHTTP,
			}}, Access{})
			g.Expect(err).To(HaveOccurred())
		})
	}
	NewWithT(t).Expect(own.heard()).To(BeEmpty())
}

// TestWhatAServerSendsTheManagerToIsLookedAt: each address is, when it is dialled. The
// network of this test has one server of the outside, which is dialled as such.
func TestWhatAServerSendsTheManagerToIsLookedAt(t *testing.T) {
	own := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, packed) })
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved.tgz" {
			http.Redirect(w, r, own.URL+"/demo.tgz", http.StatusFound)
			return
		}
		_, _ = fmt.Fprint(w, indexOf(entry("1.0.0", "moved.tgz", ""), entry("2.0.0", own.URL+"/demo.tgz", "")))
	}))
	t.Cleanup(outside.Close)
	through, err := url.Parse(outside.URL)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	network := Network{Guard: egress.Guard{Proxy: func(r *http.Request) (*url.URL, error) {
		if r.URL.Host == "charts.example.com" {
			return through, nil
		}
		return nil, nil //nolint:nilnil // That is how net/http has it.
	}, LookUp: nowhere}}
	for _, version := range []string{"1.0.0", "2.0.0"} {
		t.Run(version, func(t *testing.T) {
			g := NewWithT(t)
			found, err := network.Find(t.Context(), addonv1.AddonSource{Repository: addonv1.RepositorySource{
				URL: "http://charts.example.com", Chart: "demo", Version: version, Insecure: addonv1.AllowHTTP,
			}}, Access{})
			g.Expect(err).NotTo(HaveOccurred())
			_, err = found.Fetch(t.Context())
			g.Expect(err).To(HaveField("Reason", addonv1.SourceRefusedReason))
			g.Expect(own.heard()).To(BeEmpty())
		})
	}
}

func nowhere(_ context.Context, _, host string) ([]netip.Addr, error) {
	return nil, &net.DNSError{Name: host, IsNotFound: true}
}

// TestIndexesThatStandForMuchAreRefused: a few kilobytes must not become gigabytes.
func TestIndexesThatStandForMuchAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		index, message string
	}{
		"very many values": {"entries: {demo: [" + strings.Repeat("{},", maxMarks) + "]}", "too many values"},
		"lists of lists": {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n" +
			"e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nentries: {demo: [{version: 1.0.0, urls: *f}]}\n", "no index"},
		"what is no index": {"hunter2: [", "no index of a repository"},
	} {
		t.Run(name, func(t *testing.T) {
			server := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, tt.index) })
			_, err := local.Find(t.Context(), addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: server.URL, Chart: "demo", Insecure: addonv1.AllowHTTP}}, Access{})
			NewWithT(t).Expect(err).To(MatchError(And(ContainSubstring(tt.message), Not(ContainSubstring("hunter2")))))
		})
	}
	g := NewWithT(t)
	long := "a: &a " + strings.Repeat("x", 1<<20) + "\nb: [" + strings.Repeat("*a,", 300_000) + "]\n" + indexOf(entry("1.0.0", "demo.tgz", ""))
	server := newRecorder(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, long) })
	_, err := local.Find(t.Context(), addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: server.URL, Chart: "demo", Insecure: addonv1.AllowHTTP}}, Access{})
	g.Expect(err).NotTo(HaveOccurred(), "what is not read is not written out")
}

// TestTenantsDoNotWaitForEachOthersServers: the archive of one chart may come from several
// servers, and be fetched by several credentials.
func TestTenantsDoNotWaitForEachOthersServers(t *testing.T) {
	g, began, letGo := NewWithT(t), make(chan struct{}), make(chan struct{})
	charts := NewCharts(finder(func(source addonv1.AddonSource, access Access) (Found, error) {
		return Found{Version: "1.0.0", fetch: func(context.Context) ([]byte, error) {
			if source.Repository.URL == "https://hostile.example.com" || access.Password == "wrong" {
				began <- struct{}{}
				<-letGo
				return nil, errors.New("asking https://hostile.example.com: no")
			}
			return []byte("one"), nil
		}}, nil
	}), says)
	chart := addonv1.ChartStatus{Name: "demo", Version: "1.0.0", Digest: DigestOf([]byte("one"))}
	from := func(url string) addonv1.AddonSource {
		return addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: url, Chart: "demo"}, IntervalSeconds: new(int32)}
	}
	var tenants sync.WaitGroup
	for _, other := range []struct {
		source addonv1.AddonSource
		access Access
	}{{from("https://hostile.example.com"), Access{}}, {from("https://example.com"), Access{Username: "u", Password: "wrong"}}} {
		tenants.Go(func() {
			_, err := charts.Archive(t.Context(), other.source, other.access, chart)
			g.Expect(err).To(HaveOccurred())
		})
		g.Eventually(began).Should(Receive())
	}
	got := make(chan string)
	tenants.Go(func() {
		content, err := charts.Archive(t.Context(), from("https://example.com"), Access{Username: "u", Password: "p"}, chart)
		got <- fmt.Sprint(string(content), err)
	})
	g.Eventually(got).Should(Receive(Equal("one<nil>")))
	close(letGo)
	tenants.Wait()
}

// finder is a function as Finder.
type finder func(source addonv1.AddonSource, access Access) (Found, error)

func (f finder) Find(_ context.Context, source addonv1.AddonSource, access Access) (Found, error) {
	return f(source, access)
}
