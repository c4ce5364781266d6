package docs

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// TestTheBalancerOfThePageFindsAnAPIServerOfTalos: Talos starts the API server with
// anonymous-auth=false, so each check without credentials is answered with 401.
func TestTheBalancerOfThePageFindsAnAPIServerOfTalos(t *testing.T) {
	g := NewWithT(t)
	page, err := os.ReadFile("endpoint.md")
	g.Expect(err).NotTo(HaveOccurred())
	example := regexp.MustCompile("(?s)```haproxy\n(.*?)```").FindStringSubmatch(string(page))
	g.Expect(example).NotTo(BeNil(), "the page shows a balancer")
	check := regexp.MustCompile(`(?m)^ *http-check send meth (\S+) uri (\S+)`).FindStringSubmatch(example[1])
	g.Expect(check).NotTo(BeNil())
	accepted := regexp.MustCompile(`(?m)^ *http-check expect status (\S+)`).FindStringSubmatch(example[1])
	g.Expect(accepted).NotTo(BeNil())
	g.Expect(example[1]).To(And(MatchRegexp(`(?m)^ *server .*:6443$`), ContainSubstring(" check-ssl ")))
	g.Expect(example[1]).To(ContainSubstring("mode tcp"), "a balancer must not end TLS")

	alive := func(answer int) bool {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			g.Expect(r.URL.Path).To(BeElementOf("/readyz", "/livez", "/healthz"))
			g.Expect(r.Header).NotTo(HaveKey("Authorization"))
			w.WriteHeader(answer)
		}))
		defer server.Close()
		request, err := http.NewRequestWithContext(t.Context(), check[1], server.URL+check[2], http.NoBody)
		g.Expect(err).NotTo(HaveOccurred())
		response, err := server.Client().Do(request)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(response.Body.Close()).To(Succeed())

		return slices.Contains(strings.Split(accepted[1], ","), strconv.Itoa(response.StatusCode))
	}
	g.Expect(alive(http.StatusUnauthorized)).To(BeTrue(), "as Talos has it")
	g.Expect(alive(http.StatusOK)).To(BeTrue(), "where a patch lets anonymous requests in")
	g.Expect(alive(http.StatusInternalServerError)).To(BeFalse())
	g.Expect(alive(http.StatusServiceUnavailable)).To(BeFalse())
}
