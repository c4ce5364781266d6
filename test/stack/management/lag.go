package management

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// Behind serves the API server a second time, until ctx ends, with watches that tell of each
// change so much later than it happened: caches that are fed by them are always behind, as on
// a busy machine. All else is answered at once. It returns a kubeconfig with which the manager
// asks there.
func (c *Cluster) Behind(ctx context.Context, m *Manager, lag time.Duration) (string, error) {
	config, err := clientcmd.LoadFromFile(m.Kubeconfig)
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig of manager %s: %w", m.Name, err)
	}
	listener, err := c.serveBehind(ctx, lag)
	if err != nil {
		return "", fmt.Errorf("serving the API of the management cluster a second time: %w", err)
	}
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + listener
	}
	path := filepath.Join(filepath.Dir(m.Kubeconfig), "kubeconfig-behind")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("writing a kubeconfig of manager %s: %w", m.Name, err)
	}
	return path, nil
}

func (c *Cluster) serveBehind(ctx context.Context, lag time.Duration) (string, error) {
	target, err := url.Parse(c.server)
	if err != nil {
		return "", err
	}
	serving, err := c.authority.server("kube-apiserver-behind")
	if err != nil {
		return "", err
	}
	certificate, err := tls.X509KeyPair(serving.certificate, serving.key)
	if err != nil {
		return "", err
	}
	known := x509.NewCertPool()
	known.AddCert(c.authority.certificate)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		FlushInterval: -1,
		ModifyResponse: func(response *http.Response) error {
			if response.Request.URL.Query().Get("watch") != "" {
				response.Body = late(response.Body, lag)
			}
			return nil
		},
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback+":0")
	if err != nil {
		return "", err
	}
	server := &http.Server{
		Handler:           proxy,
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: readyTimeout,
	}
	go func() { _ = server.ServeTLS(listener, "", "") }() // It ends with an error, always.
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return listener.Addr().String(), nil
}

// late is a stream of which each part is read at once and given so much later.
func late(stream io.ReadCloser, lag time.Duration) io.ReadCloser {
	type part struct {
		content []byte
		due     time.Time
	}
	const parts, size = 10_000, 1 << 16
	reader, writer := io.Pipe()
	read := make(chan part, parts)
	go func() {
		defer close(read)
		for {
			buffer := make([]byte, size)
			n, err := stream.Read(buffer)
			if n > 0 {
				read <- part{content: buffer[:n], due: time.Now().Add(lag)}
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		for part := range read {
			time.Sleep(time.Until(part.due))
			_, _ = writer.Write(part.content) // Who reads no more has closed the stream, too.
		}
		_ = writer.Close()
	}()
	return &lateStream{PipeReader: reader, stream: stream}
}

type lateStream struct {
	*io.PipeReader

	stream io.Closer
}

func (s *lateStream) Close() error {
	return errors.Join(s.PipeReader.Close(), s.stream.Close())
}
