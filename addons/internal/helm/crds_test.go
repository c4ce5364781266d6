package helm_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// TestCustomResourceDefinitionsFollowTheirPolicy, at upgrades as well, and none is lost.
func TestCustomResourceDefinitionsFollowTheirPolicy(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	crd := func(kind, description string) string {
		return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.policy.example.com}
spec:
  group: policy.example.com
  names: {kind: %[1]s, plural: %[1]ss}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, description: %[2]s}}}]
`, kind, description)
	}
	described := func(kind string) string {
		found := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}
		err := b.live.Get(ctx, client.ObjectKey{Name: kind + "s.policy.example.com"}, found)
		if apierrors.IsNotFound(err) {
			return "missing"
		}
		b.Expect(err).NotTo(HaveOccurred())
		return fmt.Sprint("generation ", found.Generation)
	}
	custom := "apiVersion: policy.example.com/v1\nkind: one\nmetadata: {name: demo}\n"
	request := b.request(charts.Chart{"crds/one.yaml": crd("one", "first"), "templates/one.yaml": custom}.Pack("1.0.0"), nil)
	_, err := b.helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("one")).To(Equal("generation 1"))

	request.Chart = charts.Chart{"crds/one.yaml": crd("one", "second"), "crds/two.yaml": crd("two", "first"), "templates/one.yaml": custom}.Pack("2.0.0")
	request.Options.CRDs = addonv1.CRDSkip
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("two")).To(Equal("missing"))

	request.Options.CRDs = addonv1.CRDCreate
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("two")).To(Equal("generation 1"))
	b.Expect(described("one")).To(Equal("generation 1"))

	request.Options.CRDs = addonv1.CRDCreateReplace
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(described("one")).To(Equal("generation 2"))

	b.Expect(b.helm.Uninstall(ctx, b.target, request.Options)).To(Succeed())
	b.Expect(described("one")).To(Equal("generation 2"))
}

// TestAKindThatDiscoveryTellsOfLate: it is established a moment before that.
func TestAKindThatDiscoveryTellsOfLate(t *testing.T) {
	b := newBed(t)
	config := rest.CopyConfig(server)
	late := &lateDiscovery{}
	config.Wrap(late.wrap)
	before, err := discovery.NewDiscoveryClientForConfig(config)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(before.ServerGroupsAndResources()).Error().NotTo(HaveOccurred())
	late.told.Store(0)
	definition := `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lates.late.example.com}
spec:
  group: late.example.com
  names: {kind: late, plural: lates}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`
	chart := charts.Chart{"crds/late.yaml": definition, "templates/late.yaml": "apiVersion: late.example.com/v1\nkind: late\nmetadata: {name: demo}\n"}
	_, err = helm.New(config, b.live).Install(t.Context(), b.request(chart.Pack("1.0.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(late.told.Load()).To(BeNumerically(">", lateFor))
}

// lateFor is how often discovery answers as it did at first.
const lateFor = 3

// lateDiscovery has discovery answer as it did at first, for a while.
type lateDiscovery struct {
	next  http.RoundTripper
	mu    sync.Mutex
	first map[string][]byte
	told  atomic.Int64
}

func (l *lateDiscovery) wrap(next http.RoundTripper) http.RoundTripper {
	l.next = next

	return l
}

// RoundTrip implements http.RoundTripper.
func (l *lateDiscovery) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(request)
	if err != nil || request.URL.Path != "/apis" {
		return response, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if l.first == nil {
		l.first = map[string][]byte{}
	}
	// Discovery is asked for in more than one form.
	form := request.Header.Get("Accept")
	if l.first[form] == nil {
		l.first[form] = body
	}
	if l.told.Add(1) <= lateFor {
		body = l.first[form]
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))

	return response, nil
}
