package talosnode

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Delay serves the registry at an address of that host a second time, until ctx
// ends, and returns where. The first pull of one image, such as "etcd", gets its
// manifest only after the delay; whoever gives up and asks again waits for the rest
// of it.
func Delay(ctx context.Context, registry, host, image string, delay time.Duration) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", fmt.Errorf("starting a slow registry: %w", err)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	slow := &slowImage{image: image, delay: delay}
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if slow.await(req) == nil {
				proxy.ServeHTTP(w, req)
			}
		}),
		ReadHeaderTimeout: registryStart,
	}
	go func() { _ = server.Serve(listener) }() // It ends with an error, always.
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return listener.Addr().String(), nil
}

// slowImage makes those wait who ask for an image.
type slowImage struct {
	image string
	delay time.Duration

	mu    sync.Mutex
	ready time.Time
}

// await returns an error when the request has ended before.
func (s *slowImage) await(req *http.Request) error {
	if !strings.Contains(req.URL.Path, "/"+s.image+"/manifests/") {
		return nil
	}
	s.mu.Lock()
	if s.ready.IsZero() {
		s.ready = time.Now().Add(s.delay)
	}
	ready := s.ready
	s.mu.Unlock()
	select {
	case <-req.Context().Done():
		return req.Context().Err()
	case <-time.After(time.Until(ready)):
		return nil
	}
}
