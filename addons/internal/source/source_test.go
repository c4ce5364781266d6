package source

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
)

const packed = "the archive"

var local = Network{Guard: egress.Guard{AllowLocal: true}}

func hexDigest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func caOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// repositoryServer serves a repository to those who know the password.
func repositoryServer(t *testing.T, index string) *httptest.Server {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "p" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/charts/index.yaml":
			_, _ = fmt.Fprint(w, index)
		case "/charts/demo.tgz":
			_, _ = fmt.Fprint(w, packed)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)

	return server
}

func indexOf(entries ...string) string {
	return "apiVersion: v1\nentries:\n  demo:\n" + strings.Join(entries, "")
}

func entry(version, url, digest string) string {
	return fmt.Sprintf("  - {version: %q, urls: [%q], digest: %q}\n", version, url, digest)
}

func inRepository(server *httptest.Server, version string) addonv1.AddonSource {
	return addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: server.URL + "/charts", Chart: "demo", Version: version}}
}

func withLogin(source addonv1.AddonSource) addonv1.AddonSource {
	source.Repository.CredentialsSecretName = "login"

	return source
}

func TestAChartIsFoundInARepository(t *testing.T) {
	g := NewWithT(t)
	index := indexOf(entry("1.2.0", "demo.tgz", hexDigest(packed)), entry("1.10.0", "demo.tgz", ""), entry("2.0.0-rc.1", "demo.tgz", ""), entry("odd", "x", ""))
	server := repositoryServer(t, index)
	access := Access{Username: "u", Password: "p", CA: caOf(server)}
	for wanted, version := range map[string]string{"": "1.10.0", "1.2.0": "1.2.0", "1.x": "1.10.0", "~1.2": "1.2.0", ">=2.0.0-0": "2.0.0-rc.1"} {
		found, err := local.Find(t.Context(), inRepository(server, wanted), access)
		g.Expect(err).NotTo(HaveOccurred(), wanted)
		g.Expect(found.Version).To(Equal(version), wanted)
		content, err := found.Fetch(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(string(content)).To(Equal(packed))
	}
	found, err := local.Find(t.Context(), inRepository(server, "1.2.0"), access)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Digest).To(Equal(DigestOf([]byte(packed))))
}

func TestWhyARepositoryHasNoChart(t *testing.T) {
	good := indexOf(entry("1.0.0", "demo.tgz", hexDigest("another")), entry("2.0.0", "http://127.0.0.1:1/demo.tgz", ""), entry("3.0.0", "file:///etc/passwd", ""), entry("4.0.0", "gone.tgz", ""))
	server := repositoryServer(t, good)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	access := Access{Username: "u", Password: "p", CA: caOf(server)}
	tests := map[string]struct {
		network         *Network
		source          addonv1.AddonSource
		access          *Access
		reason, message string
	}{
		"nobody logs in":     {source: inRepository(server, ""), access: &Access{CA: access.CA}, reason: addonv1.SourceUnauthorizedReason, message: "401 Unauthorized; name a Secret in credentialsSecretName"},
		"a wrong password":   {source: withLogin(inRepository(server, "")), access: &Access{Username: "u", Password: "x", CA: access.CA}, reason: addonv1.SourceUnauthorizedReason, message: "401 Unauthorized; check Secret login"},
		"another CA":         {source: inRepository(server, ""), access: &Access{Username: "u", Password: "p"}, reason: addonv1.SourceUnreachableReason, message: "is not trusted"},
		"a CA that is none":  {source: inRepository(server, ""), access: &Access{CA: []byte("none")}, reason: addonv1.SecretInvalidReason, message: "no certificate"},
		"no such chart":      {source: addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: server.URL + "/charts", Chart: "other"}}, reason: addonv1.SourceNotFoundReason, message: "has no chart other"},
		"no such version":    {source: inRepository(server, "9.x"), reason: addonv1.VersionNotFoundReason, message: "none of its 4 versions is 9.x"},
		"no version":         {source: inRepository(server, "newest please"), reason: addonv1.VersionNotFoundReason, message: "neither a version nor a range"},
		"no repository":      {source: addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: server.URL, Chart: "demo"}}, reason: addonv1.SourceNotFoundReason, message: "404"},
		"another digest":     {source: inRepository(server, "1.0.0"), reason: addonv1.ChartInvalidReason, message: "digest"},
		"an archive by HTTP": {source: inRepository(server, "2.0.0"), reason: addonv1.SourceRefusedReason, message: "not https"},
		"a file":             {source: inRepository(server, "3.0.0"), reason: addonv1.SourceNotFoundReason, message: "no https:// URL"},
		"no archive":         {source: inRepository(server, "4.0.0"), reason: addonv1.SourceNotFoundReason, message: "404"},
		"an address of the manager's own machine": {network: &Network{}, source: inRepository(server, ""), reason: addonv1.SourceRefusedReason, message: "manager's own machine"},
		"no such host": {source: addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "https://nowhere.invalid", Chart: "demo"}}, reason: addonv1.SourceNotFoundReason, message: "no host nowhere.invalid"},
		"nobody there": {source: addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: "https://127.0.0.1:1", Chart: "demo"}}, reason: addonv1.SourceUnreachableReason, message: "refused"},
		"HTTP":         {source: addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: plain.URL, Chart: "demo"}}, reason: addonv1.SourceRefusedReason, message: "AllowHTTP"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			network := local
			if tt.network != nil {
				network = *tt.network
			}
			if tt.access == nil {
				tt.access = &access
			}
			found, err := network.Find(t.Context(), tt.source, *tt.access)
			if err == nil {
				_, err = found.Fetch(t.Context())
			}
			var said *Error
			g.Expect(err).To(BeAssignableToTypeOf(said), fmt.Sprint(err))
			said = err.(*Error) //nolint:errorlint,forcetypeassert // The type is part of what is tested.
			g.Expect(said.Reason).To(Equal(tt.reason), said.Message)
			g.Expect(said.Message).To(ContainSubstring(tt.message))
			g.Expect(said.Message).NotTo(ContainSubstring(access.Password + "@"))
		})
	}
}

// TestThePasswordGoesToItsServerOnly: the index of a repository may name archives
// elsewhere, and it may redirect.
func TestThePasswordGoesToItsServerOnly(t *testing.T) {
	g := NewWithT(t)
	var told []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told = append(told, r.Header.Get("Authorization"))
		_, _ = fmt.Fprint(w, packed)
	}))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved.tgz" {
			http.Redirect(w, r, elsewhere.URL+"/demo.tgz", http.StatusFound)
			return
		}
		_, _ = fmt.Fprint(w, indexOf(entry("1.0.0", elsewhere.URL+"/demo.tgz", ""), entry("2.0.0", "moved.tgz", "")))
	}))
	t.Cleanup(server.Close)
	for _, version := range []string{"1.0.0", "2.0.0"} {
		// Of the two addresses one has another host than elsewhere, and one another port.
		for _, address := range []string{server.URL, strings.Replace(server.URL, "127.0.0.1", "localhost", 1)} {
			source := addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: address, Chart: "demo", Version: version, Insecure: addonv1.AllowHTTP}}
			found, err := local.Find(t.Context(), source, Access{Username: "u", Password: "p"})
			g.Expect(err).NotTo(HaveOccurred())
			_, err = found.Fetch(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
		}
	}
	g.Expect(told).To(Equal([]string{"", "", "", ""}))
}

func TestWhatIsTooLargeIsNotRead(t *testing.T) {
	g := NewWithT(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "index.yaml") {
			_, _ = fmt.Fprint(w, indexOf(entry("1.0.0", "demo.tgz", "")))
			return
		}
		chunk := make([]byte, 1<<20)
		for range maxArchive>>20 + 1 {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	found, err := local.Find(t.Context(), addonv1.AddonSource{Repository: addonv1.RepositorySource{URL: server.URL, Chart: "demo", Insecure: addonv1.AllowHTTP}}, Access{})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = found.Fetch(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("larger than 16 MiB")))
}

// registryServer answers as a registry does, to those who know the password.
func registryServer(t *testing.T, tags ...string) *httptest.Server {
	t.Helper()
	layer := map[string]any{"mediaType": chartMediaType, "digest": "sha256:" + hexDigest(packed), "size": len(packed)}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": layer, "layers": []any{layer},
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "p" {
			w.Header().Set("WWW-Authenticate", `Basic realm="charts"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		switch r.URL.Path {
		case "/v2/charts/demo/tags/list":
			_ = json.NewEncoder(w).Encode(map[string]any{"name": "charts/demo", "tags": tags})
		case "/v2/charts/demo/manifests/1.0.0_build.1":
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", "sha256:"+hexDigest(string(manifest)))
			_, _ = w.Write(manifest)
		case "/v2/charts/demo/blobs/sha256:" + hexDigest(packed):
			_, _ = fmt.Fprint(w, packed)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)

	return server
}

func TestAChartIsFoundInARegistry(t *testing.T) {
	g := NewWithT(t)
	server := registryServer(t, "0.9.0", "1.0.0_build.1", "latest")
	host := strings.TrimPrefix(server.URL, "https://")
	source := addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://" + host + "/charts/demo"}}
	access := Access{CA: caOf(server), DockerConfig: []byte(`{"auths":{"` + host + `":{"username":"u","password":"p"}}}`)}
	found, err := local.Find(t.Context(), source, access)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Version).To(Equal("1.0.0+build.1"))
	g.Expect(found.Digest).To(Equal(DigestOf([]byte(packed))))
	content, err := found.Fetch(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(content)).To(Equal(packed))

	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for name, tt := range map[string]struct {
		source addonv1.RegistrySource
		access Access
		reason string
	}{
		"a wrong password":          {source.Registry, Access{CA: access.CA, DockerConfig: []byte(`{"auths":{"` + host + `":{"username":"u","password":"x"}}}`)}, addonv1.SourceUnauthorizedReason},
		"it is asked by HTTPS":      {addonv1.RegistrySource{URL: "oci://" + strings.TrimPrefix(plain.URL, "http://") + "/charts/demo"}, Access{}, addonv1.SourceRefusedReason},
		"nobody logs in":            {source.Registry, Access{CA: access.CA}, addonv1.SourceUnauthorizedReason},
		"credentials of another":    {source.Registry, Access{CA: access.CA, DockerConfig: []byte(`{"auths":{"other":{"username":"u","password":"p"}}}`)}, addonv1.SourceUnauthorizedReason},
		"credentials of other form": {source.Registry, Access{CA: access.CA, DockerConfig: []byte(`none`)}, addonv1.SecretInvalidReason},
		"no such repository":        {addonv1.RegistrySource{URL: "oci://" + host + "/charts/other"}, access, addonv1.SourceNotFoundReason},
		"no such version":           {addonv1.RegistrySource{URL: source.Registry.URL, Version: "2.x"}, access, addonv1.VersionNotFoundReason},
		"no chart":                  {addonv1.RegistrySource{URL: source.Registry.URL, Version: "0.9.0"}, access, addonv1.SourceNotFoundReason},
		"another CA":                {source.Registry, Access{DockerConfig: access.DockerConfig}, addonv1.SourceUnreachableReason},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := local.Find(t.Context(), addonv1.AddonSource{Registry: tt.source}, tt.access)
			NewWithT(t).Expect(err).To(HaveField("Reason", tt.reason), fmt.Sprint(err))
		})
	}
}
