package addons

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	. "github.com/onsi/gomega"
	"golang.org/x/crypto/bcrypt"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	// How the registry authenticates, and where it keeps its content.
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
)

const (
	user, password = "reader", "correct horse"
	// loginName and caName are the Secrets with the credentials and the CA of a shelf.
	loginName, caName = "login", "ca"
)

// server is an HTTP server on a loopback address. It can go, and come back at the same
// address.
type server struct {
	handler http.Handler
	address string
	// certificate is nil without TLS.
	certificate *tls.Certificate
	// ca is the certificate of the CA, as PEM.
	ca []byte
	// elsewhere is where those who have told a password find archives; nil when they are
	// here.
	elsewhere atomic.Pointer[server]
	// asked is how many requests there were.
	asked atomic.Int64

	running *httptest.Server
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked.Add(1)
	isLoggedIn := r.Header.Get("Authorization") != ""
	if other := s.elsewhere.Load(); other != nil && isLoggedIn && r.Method == http.MethodGet && isArchive(r.URL.Path) {
		http.Redirect(w, r, other.url()+r.URL.Path, http.StatusTemporaryRedirect) //nolint:gosec // To a server of the test.
		return
	}
	s.handler.ServeHTTP(w, r)
}

// isArchive reports whether a path is that of an archive of a repository, or of a blob of
// a registry.
func isArchive(path string) bool {
	return strings.HasSuffix(path, ".tgz") || strings.Contains(path, "/blobs/sha256:")
}

// newServer starts a server with TLS and a CA of its own.
func newServer(t *testing.T, handler http.Handler) *server {
	t.Helper()
	g := NewWithT(t)
	chain, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	g.Expect(err).NotTo(HaveOccurred())
	certificate, err := tls.X509KeyPair(chain, key)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(certificate.Certificate).To(HaveLen(2), "the server's own and that of the CA")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[1]})

	return started(t, &server{handler: handler, address: "127.0.0.1:0", certificate: &certificate, ca: ca})
}

// beside starts another server with the same certificate at another port.
func (s *server) beside(t *testing.T, handler http.Handler) *server {
	t.Helper()

	return started(t, &server{handler: handler, address: "127.0.0.1:0", certificate: s.certificate, ca: s.ca})
}

// newPlainServer starts a server without TLS.
func newPlainServer(t *testing.T, handler http.Handler) *server {
	t.Helper()

	return started(t, &server{handler: handler, address: "127.0.0.1:0"})
}

func started(t *testing.T, s *server) *server {
	t.Helper()
	s.start(t)
	t.Cleanup(func() { s.running.Close() })

	return s
}

func (s *server) start(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", s.address)
	g.Expect(err).NotTo(HaveOccurred())
	s.address = listener.Addr().String()
	s.running = &httptest.Server{Listener: listener, Config: &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: patience}}
	if s.certificate == nil {
		s.running.Start()
		return
	}
	s.running.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*s.certificate}}
	s.running.StartTLS()
}

func (s *server) url() string {
	if s.certificate == nil {
		return "http://" + s.address
	}

	return "https://" + s.address
}

// client is one that trusts the server.
func (s *server) client() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.ca)

	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}}}
}

// shelf is where charts are published and found.
type shelf interface {
	// publish publishes the archive of a chart.
	publish(t *testing.T, archive []byte)
	// source is the source of a chart, with both Secrets.
	source(chart, version string) addonv1.AddonSource
	// secrets are the Secrets of the source in a namespace, with a password.
	secrets(namespace, password string) []*corev1.Secret
	// at returns the server.
	at() *server
}

// shelves are the kinds of shelves, by their name.
var shelves = map[string]func(*testing.T) shelf{
	"registry":   func(t *testing.T) shelf { t.Helper(); return newRegistry(t) },
	"repository": func(t *testing.T) shelf { t.Helper(); return newRepository(t) },
}

// onEachShelf runs a test with each kind of shelf.
func onEachShelf(t *testing.T, test func(t *testing.T, kind string, shelf shelf)) {
	t.Helper()
	for kind, open := range shelves {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind, open(t))
		})
	}
}

// repository is a Helm repository, as a file server serves it.
type repository struct {
	*server

	folder string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	folder := t.TempDir()

	return &repository{newServer(t, withPassword(filesOf(folder))), folder}
}

func filesOf(folder string) http.Handler {
	return http.StripPrefix("/charts", http.FileServer(http.Dir(folder)))
}

func withPassword(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name, given, _ := r.BasicAuth(); name != user || given != password {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	})
}

func (r *repository) at() *server { return r.server }

// publish implements shelf. The index is that of helm repo index.
func (r *repository) publish(t *testing.T, archive []byte) {
	t.Helper()
	g := NewWithT(t)
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	g.Expect(err).NotTo(HaveOccurred())
	file := filepath.Join(r.folder, loaded.Metadata.Name+"-"+loaded.Metadata.Version+".tgz")
	g.Expect(os.WriteFile(file, archive, 0o600)).To(Succeed())
	index, err := repo.IndexDirectory(r.folder, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(index.WriteFile(filepath.Join(r.folder, "index.yaml"), 0o600)).To(Succeed())
}

func (r *repository) source(chart, version string) addonv1.AddonSource {
	return addonv1.AddonSource{Repository: addonv1.RepositorySource{
		URL: r.url() + "/charts", Chart: chart, Version: version, CredentialsSecretName: loginName, CASecretName: caName,
	}}
}

func (r *repository) secrets(namespace, password string) []*corev1.Secret {
	return []*corev1.Secret{
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: loginName}, Type: corev1.SecretTypeBasicAuth,
			StringData: map[string]string{corev1.BasicAuthUsernameKey: user, corev1.BasicAuthPasswordKey: password},
		},
		caSecret(namespace, r.ca),
	}
}

func caSecret(namespace string, ca []byte) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: caName}, Data: map[string][]byte{"ca.crt": ca}}
}

// ociRegistry is a registry of the CNCF Distribution project.
type ociRegistry struct{ *server }

func newRegistry(t *testing.T) *ociRegistry {
	t.Helper()

	return &ociRegistry{newServer(t, registryApp(t))}
}

// registryApp is a registry whose users are in a file of htpasswd.
func registryApp(t *testing.T) http.Handler {
	t.Helper()
	g := NewWithT(t)
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	g.Expect(err).NotTo(HaveOccurred())
	users := filepath.Join(t.TempDir(), "htpasswd")
	g.Expect(os.WriteFile(users, fmt.Appendf(nil, "%s:%s\n", user, hash), 0o600)).To(Succeed())
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	config := &configuration.Configuration{
		Storage: configuration.Storage{
			"inmemory":    configuration.Parameters{},
			"maintenance": configuration.Parameters{"uploadpurging": map[any]any{"enabled": false}},
		},
		Auth: configuration.Auth{"htpasswd": configuration.Parameters{"realm": "charts", "path": users}},
	}
	config.HTTP.Secret = "of one instance"
	app := handlers.NewApp(ctx, config)
	t.Cleanup(func() {
		stop()
		g.Expect(app.Shutdown()).To(Succeed())
	})

	return app
}

func (r *ociRegistry) at() *server { return r.server }

// publish implements shelf, as helm push does.
func (r *ociRegistry) publish(t *testing.T, archive []byte) {
	t.Helper()
	g := NewWithT(t)
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	g.Expect(err).NotTo(HaveOccurred())
	options := []registry.ClientOption{
		registry.ClientOptHTTPClient(r.client()), registry.ClientOptBasicAuth(user, password), registry.ClientOptCredentialsFile(filepath.Join(t.TempDir(), "config.json")),
	}
	if r.certificate == nil {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = client.Push(archive, fmt.Sprintf("%s/charts/%s:%s", r.address, loaded.Metadata.Name, loaded.Metadata.Version))
	g.Expect(err).NotTo(HaveOccurred())
}

func (r *ociRegistry) source(chart, version string) addonv1.AddonSource {
	return addonv1.AddonSource{Registry: addonv1.RegistrySource{
		URL: "oci://" + r.address + "/charts/" + chart, Version: version, CredentialsSecretName: loginName, CASecretName: caName,
	}}
}

func (r *ociRegistry) secrets(namespace, password string) []*corev1.Secret {
	config, _ := json.Marshal(map[string]any{"auths": map[string]any{r.address: map[string]string{"username": user, "password": password}}}) //nolint:errchkjson // Strings can be written.

	return []*corev1.Secret{
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: loginName}, Type: corev1.SecretTypeDockerConfigJson,
			Data: map[string][]byte{corev1.DockerConfigJsonKey: config},
		},
		caSecret(namespace, r.ca),
	}
}
