package health

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func kubeconfig(t *testing.T, server string, ca []byte) []byte {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	data, err := clientcmd.Write(*config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())

	return data
}

func caOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

func TestProbe(t *testing.T) {
	status := func(code int) *httptest.Server {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/readyz" {
				code = http.StatusTeapot
			}
			w.WriteHeader(code)
		}))
		t.Cleanup(server.Close)
		return server
	}
	ready, broken := status(http.StatusOK), status(http.StatusInternalServerError)
	bare := status(http.StatusNotFound)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	elsewhere := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	t.Cleanup(elsewhere.Close)
	closed := httptest.NewTLSServer(http.NotFoundHandler())
	closed.Close()
	hangUp := listen(t)

	for name, tc := range map[string]struct {
		kubeconfig []byte
		want       APIServerState
	}{
		"an API server that is ready":          {kubeconfig(t, ready.URL, caOf(ready)), APIServerReady},
		"an API server that is not ready":      {kubeconfig(t, broken.URL, caOf(broken)), APIServerNotReady},
		"a server that sends it elsewhere":     {kubeconfig(t, elsewhere.URL, caOf(elsewhere)), APIServerNotReady},
		"an API server without the endpoint":   {kubeconfig(t, bare.URL, caOf(bare)), APIServerReady},
		"a server of another CA":               {kubeconfig(t, ready.URL, otherCA(t)), APIServerUntrusted},
		"a server without TLS":                 {kubeconfig(t, "https://"+plain.Listener.Addr().String(), caOf(ready)), APIServerUntrusted},
		"nobody listens":                       {kubeconfig(t, closed.URL, caOf(ready)), APIServerSilent},
		"a balancer without servers, hangs up": {kubeconfig(t, "https://"+hangUp, caOf(ready)), APIServerSilent},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			state, err := HTTPProber{}.Probe(t.Context(), tc.kubeconfig)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(state).To(Equal(tc.want))
		})
	}
}

func TestProbeWithAKubeconfigThatIsNone(t *testing.T) {
	g := NewWithT(t)
	state, err := HTTPProber{}.Probe(t.Context(), []byte("secret: {"))
	g.Expect(state).To(Equal(APIServerUnknown))
	g.Expect(err).To(HaveOccurred())
	g.Expect(err.Error()).NotTo(ContainSubstring("secret"))
}

// TestProbeReadsNoFiles: users may write the kubeconfig of a Cluster.
func TestProbeReadsNoFiles(t *testing.T) {
	g, config := NewWithT(t), clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1", CertificateAuthority: os.DevNull}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c"}
	config.CurrentContext = "c"
	data, err := clientcmd.Write(*config)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = HTTPProber{}.Probe(t.Context(), data)
	g.Expect(err).To(MatchError(ContainSubstring("certificate-authority")))
}

// listen accepts connections and closes them at once.
func listen(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			_ = connection.Close()
		}
	}()

	return listener.Addr().String()
}

// otherCA is the certificate of a CA that signed nothing.
func otherCA(t *testing.T) []byte {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	g.Expect(err).NotTo(HaveOccurred())

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
