package health

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	kubeconfigs "github.com/capi-talos/capi-talos/bootstrap/pkg/kubeconfig"
)

// APIServerState is what answers at the control plane endpoint.
type APIServerState int

const (
	// APIServerUnknown means that the endpoint was not asked, or could not be.
	APIServerUnknown APIServerState = iota
	// APIServerSilent means that nothing answers there: connections are
	// refused, broken off, or time out.
	APIServerSilent
	// APIServerUntrusted means that something answers that does not prove to be
	// an API server of this cluster.
	APIServerUntrusted
	// APIServerNotReady means that an API server of this cluster answers and is
	// not ready.
	APIServerNotReady
	// APIServerReady means that an API server of this cluster answers and is
	// ready.
	APIServerReady
)

// APIServerProber asks the API server of a cluster whether it is ready.
type APIServerProber interface {
	// Probe asks the server of kubeconfig once. An error means that the
	// kubeconfig is of no use; the state is APIServerUnknown then.
	Probe(ctx context.Context, kubeconfig []byte) (APIServerState, error)
}

// HTTPProber is the APIServerProber over the network. Each probe is a new
// connection, so that it always asks what serves the endpoint now.
type HTTPProber struct {
	// DialContext opens connections; nil means the net package's dialer.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout bounds a probe; 0 means DefaultProbeTimeout.
	Timeout time.Duration
}

// DefaultProbeTimeout bounds a probe of an API server.
const DefaultProbeTimeout = 5 * time.Second

// tlsAlert is the operation of the error that crypto/tls returns when the server
// has sent an alert.
const tlsAlert = "remote error"

var _ APIServerProber = HTTPProber{}

// Probe implements APIServerProber.
func (p HTTPProber) Probe(ctx context.Context, kubeconfig []byte) (APIServerState, error) {
	client, server, err := p.client(kubeconfig)
	if err != nil {
		return APIServerUnknown, err
	}
	defer client.CloseIdleConnections()

	timeout := p.Timeout
	if timeout == 0 {
		timeout = DefaultProbeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	address, err := url.JoinPath(server, "readyz")
	if err != nil {
		return APIServerUnknown, fmt.Errorf("making the address of the probe: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return APIServerUnknown, fmt.Errorf("making the probe of the API server: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return classify(err), nil
	}
	defer func() { _ = response.Body.Close() }() // Only the status is of interest.
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))

	// An API server without that endpoint says nothing about its readiness; that
	// it answers must do.
	if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusNotFound {
		return APIServerReady, nil
	}

	return APIServerNotReady, nil
}

func (p HTTPProber) client(kubeconfig []byte) (*http.Client, string, error) {
	if err := kubeconfigs.Check(kubeconfig); err != nil {
		return nil, "", err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		// The error may quote what it could not read, so it stays out.
		return nil, "", errors.New("reading the kubeconfig: it is not valid")
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, "", errors.New("reading the certificates of the kubeconfig: they are not valid")
	}
	transport := &http.Transport{
		TLSClientConfig:   tlsConfig,
		DialContext:       p.DialContext,
		DisableKeepAlives: true,
		// As the ClusterCache does, so that both see the same endpoint.
		Proxy: http.ProxyFromEnvironment,
	}

	// Whoever may write the kubeconfig does not have other servers asked.
	redirected := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

	return &http.Client{Transport: transport, CheckRedirect: redirected}, config.Host, nil
}

// classify tells a server that answered with the wrong certificate, or without
// TLS, from one that did not answer at all.
func classify(err error) APIServerState {
	operation, ok := errors.AsType[*net.OpError](err)
	switch {
	case ok && operation.Op == tlsAlert,
		isType[*tls.CertificateVerificationError](err), isType[x509.UnknownAuthorityError](err), isType[x509.HostnameError](err),
		isType[tls.RecordHeaderError](err), errors.Is(err, http.ErrSchemeMismatch):
		return APIServerUntrusted
	default:
		return APIServerSilent
	}
}

// isType reports whether err is, or wraps, an error of type E.
func isType[E error](err error) bool {
	_, ok := errors.AsType[E](err)

	return ok
}
