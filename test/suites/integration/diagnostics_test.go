package integration

import (
	"crypto/tls"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestDiagnosticsAreForThoseWhoMaySeeThem: each of our managers serves metrics,
// profiles and its log level to those whom the API server knows and lets, and to
// nobody else.
func TestDiagnosticsAreForThoseWhoMaySeeThem(t *testing.T) {
	t.Parallel()
	const namespace = "diagnostics"
	createNamespace(t, namespace)
	nobody := newUser(t, namespace, "nobody")
	scraper := newUser(t, namespace, "scraper", may("get", "/metrics"))
	developer := newUser(t, namespace, "developer", may("get", "/debug/pprof/*"), may("put", "/debug/flags/v"))

	for _, name := range world.Stack.Managers.Ours() {
		t.Run(name, func(t *testing.T) {
			g, at := NewWithT(t), world.Stack.Managers.Get(name).Diagnostics
			for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/flags/v"} {
				code, _ := ask(t, http.MethodGet, at+path, "", "")
				g.Expect(code).To(Equal(http.StatusUnauthorized), path)
				// controller-runtime calls a token that nobody has issued an error.
				code, refusal := ask(t, http.MethodGet, at+path, "made-up", "")
				g.Expect(code).To(BeElementOf(http.StatusUnauthorized, http.StatusInternalServerError), path)
				g.Expect(strings.TrimSpace(refusal)).To(BeElementOf("Unauthorized", "Authentication failed"), path)
				code, _ = ask(t, http.MethodGet, at+path, nobody, "")
				g.Expect(code).To(Equal(http.StatusForbidden), path)
			}
			code, metrics := ask(t, http.MethodGet, at+"/metrics", scraper, "")
			g.Expect(code).To(Equal(http.StatusOK))
			g.Expect(metrics).To(ContainSubstring("rest_client_requests_total"))
			code, _ = ask(t, http.MethodGet, at+"/debug/pprof/", scraper, "")
			g.Expect(code).To(Equal(http.StatusForbidden), "metrics are no profiles")

			code, profile := ask(t, http.MethodGet, at+"/debug/pprof/goroutine?debug=1", developer, "")
			g.Expect(code).To(Equal(http.StatusOK))
			g.Expect(profile).To(HavePrefix("goroutine profile:"))
			code, _ = ask(t, http.MethodPut, at+"/debug/flags/v", scraper, "2")
			g.Expect(code).To(Equal(http.StatusForbidden))
			// What it is set to already, for the sake of the tests beside this one.
			code, answer := ask(t, http.MethodPut, at+"/debug/flags/v", developer, "2")
			g.Expect(code).To(Equal(http.StatusOK))
			g.Expect(answer).To(ContainSubstring("successfully set"))
		})
	}
}

// TestOptionalManifestsAreTaken: what users may apply beside the providers is
// accepted by the API server.
func TestOptionalManifestsAreTaken(t *testing.T) {
	t.Parallel()
	createNamespace(t, "observability")
	for _, folder := range []string{"metrics", "network-policy"} {
		g := NewWithT(t)
		built, err := world.Stack.Kubectl(t.Context(), "kustomize", filepath.Join(world.Source, "config", folder))
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects(g, []byte(built)) {
			g.Expect(world.Client.Create(t.Context(), object, client.DryRunAll)).To(Succeed(), nameOf(object))
		}
	}
}

// may is a right to a path of a manager.
func may(verb, path string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{verb}, NonResourceURLs: []string{path}}
}

// newUser makes a service account with rights, waits until the API server grants
// them, and returns a token of it.
func newUser(t *testing.T, namespace, name string, rules ...rbacv1.PolicyRule) string {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: namespace + "-" + name}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	for _, object := range []client.Object{account, role, binding} {
		g.Expect(world.Client.Create(ctx, object)).To(Succeed())
		t.Cleanup(func() { g.Expect(world.Client.Delete(contextAfter(t), object)).To(Succeed()) })
	}
	for _, rule := range rules {
		path := strings.TrimSuffix(rule.NonResourceURLs[0], "*")
		g.Eventually(func(g Gomega) {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:                  "system:serviceaccount:" + namespace + ":" + name,
				NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: rule.Verbs[0]},
			}}
			g.Expect(world.Client.Create(ctx, review)).To(Succeed())
			g.Expect(review.Status.Allowed).To(BeTrue())
		}).WithTimeout(timeout).Should(Succeed())
	}
	request := &authenticationv1.TokenRequest{}
	g.Expect(world.Client.SubResource("token").Create(ctx, account, request)).To(Succeed())

	return request.Status.Token
}

// ask calls a manager with a token, and returns the status and the text of its answer.
func ask(t *testing.T, method, url, token, body string) (int, string) {
	t.Helper()
	g := NewWithT(t)
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	g.Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // G402: managers make the certificate of this endpoint themselves.
	}}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: timeout}).Do(request)
	g.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	g.Expect(err).NotTo(HaveOccurred())

	return response.StatusCode, string(text)
}
