package demo

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// readyzInterval is how often a Readyz asks.
	readyzInterval = 500 * time.Millisecond
	// readyzTimeout bounds one question.
	readyzTimeout = 2 * time.Second
)

// Readyz asks an API server through its control plane endpoint, each time by a
// connection of its own, whether it is ready, and measures for how long it was
// not.
type Readyz struct {
	client *http.Client
	url    string
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	asked   int
	failed  int
}

// WatchReadyz begins to ask the API server of a kubeconfig. The caller stops it.
func WatchReadyz(ctx context.Context, kubeconfig []byte) (*Readyz, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("reading the certificates of the kubeconfig: %w", err)
	}
	tlsConfig.MinVersion = tls.VersionTLS12
	ctx, cancel := context.WithCancel(ctx)
	r := &Readyz{
		client: &http.Client{Transport: &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}, Timeout: readyzTimeout},
		url:    config.Host + "/readyz", cancel: cancel, last: time.Now(),
	}
	r.done.Go(func() { r.run(ctx) })
	return r, nil
}

func (r *Readyz) run(ctx context.Context) {
	ticker := time.NewTicker(readyzInterval)
	defer ticker.Stop()
	for {
		ready := r.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		r.note(ready)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (r *Readyz) ask(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := r.client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

func (r *Readyz) note(ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.asked++
	r.longest = max(r.longest, now.Sub(r.last))
	if ready {
		r.last = now
	} else {
		r.failed++
	}
}

// Stop ends the questions, and returns the longest time between two answers that
// said ready, how often was asked, and how often the answer was another.
func (r *Readyz) Stop() (longest time.Duration, asked, failed int) {
	r.cancel()
	r.done.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.longest, r.asked, r.failed
}
