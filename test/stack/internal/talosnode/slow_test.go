package talosnode

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// ask tells what a registry answers, or why not.
func ask(ctx context.Context, address, path string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestDelay(t *testing.T) {
	g := NewWithT(t)
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	t.Cleanup(registry.Close)
	address, err := Delay(t.Context(), strings.TrimPrefix(registry.URL, "http://"), "127.0.0.1", "etcd", 500*time.Millisecond)
	g.Expect(err).NotTo(HaveOccurred())

	for _, path := range []string{"/v2/", "/v2/kubelet/manifests/v1", "/v2/etcd-extra/manifests/v1"} {
		g.Expect(ask(t.Context(), address, path)).To(Equal(http.StatusTeapot), path)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = ask(impatient, address, "/v2/etcd/manifests/v1")
	g.Expect(err).To(MatchError(context.DeadlineExceeded))
	g.Expect(ask(t.Context(), address, "/v2/etcd/manifests/v1")).To(Equal(http.StatusTeapot))
}
