package helm_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/drift"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// objects are those of a release; nobody waits for them.
type objects struct{ drift.Objects }

func (objects) HasNamespace(context.Context, string) (bool, error) { return true, nil }

func (objects) Waiting(context.Context, release.Content) (string, error) { return "", nil }

// dying is a connection of a manager that dies before it writes so many times to Helm's
// storage: nothing reaches the API server from then on.
type dying struct {
	http.RoundTripper

	left *atomic.Int32
}

func (d dying) RoundTrip(request *http.Request) (*http.Response, error) {
	if isStorage(request) {
		d.left.Add(-1)
	}
	if d.left.Load() < 0 {
		return nil, errors.New("the manager is dead")
	}

	return d.RoundTripper.RoundTrip(request)
}

// isStorage reports whether a request writes a Secret of Helm's.
func isStorage(request *http.Request) bool {
	return request.Method != http.MethodGet && strings.Contains(request.URL.Path, "/secrets")
}

// TestAManagerThatDiesAtAnyWriteLeavesNothingStuck: whichever write to Helm's storage is
// its last, the next manager ends with one release as it is asked for, or with none.
func TestAManagerThatDiesAtAnyWriteLeavesNothingStuck(t *testing.T) {
	hook := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: hook\n  annotations: {helm.sh/hook: \"pre-install,post-upgrade,pre-rollback,post-delete\"}\n"
	withHook := charts.Chart{"values.yaml": demo["values.yaml"], "templates/a.yaml": demo["templates/a.yaml"], "templates/hook.yaml": hook}
	broken := charts.Chart{"values.yaml": demo["values.yaml"], "templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NOT-A-NAME}\n"}
	for name, tt := range map[string]struct {
		before  []charts.Chart // Installed and upgraded to before.
		act     func(ctx context.Context, h *helm.Client, b *bed) error
		present bool
	}{
		"install": {act: func(ctx context.Context, h *helm.Client, b *bed) error {
			_, err := h.Install(ctx, b.request(withHook.Pack("1.0.0"), nil))
			return err
		}, present: true},
		"upgrade": {before: []charts.Chart{demo}, act: func(ctx context.Context, h *helm.Client, b *bed) error {
			_, err := h.Upgrade(ctx, b.request(withHook.Pack("1.0.0"), nil))
			return err
		}, present: true},
		"an upgrade that fails": {before: []charts.Chart{demo}, act: func(ctx context.Context, h *helm.Client, b *bed) error {
			_, err := h.Upgrade(ctx, b.request(broken.Pack("1.0.0"), nil))
			return err
		}, present: true},
		"rollback": {before: []charts.Chart{demo, withHook}, act: func(ctx context.Context, h *helm.Client, b *bed) error {
			return h.Rollback(ctx, b.target, 1, release.Options{Timeout: time.Minute})
		}, present: true},
		"uninstall": {before: []charts.Chart{demo, withHook}, act: func(ctx context.Context, h *helm.Client, b *bed) error {
			return h.Uninstall(ctx, b.target, release.Options{Timeout: time.Minute})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for writes := int32(0); ; writes++ {
				b := newBed(t)
				b.target.Namespace += fmt.Sprint("-", writes)
				for i, chart := range tt.before {
					request, act := b.request(chart.Pack("0.9.0"), nil), b.helm.Upgrade
					request.Digest = "before"
					if i == 0 {
						act = b.helm.Install
					}
					_, err := act(t.Context(), request)
					b.Expect(err).NotTo(HaveOccurred())
				}
				left := &atomic.Int32{}
				left.Store(writes)
				config := rest.CopyConfig(server)
				config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return dying{inner, left} })
				live, err := client.New(config, client.Options{})
				b.Expect(err).NotTo(HaveOccurred())
				_ = tt.act(t.Context(), helm.New(config, live), b)

				b.recover(withHook.Pack("1.0.0"), tt.present)
				if left.Load() >= 0 {
					t.Logf("%s writes %d times", name, writes-left.Load())
					return
				}
			}
		})
	}
}

// recover is what the next manager does, after the time of what may be at work is over.
func (b *bed) recover(chart []byte, present bool) {
	b.t.Helper()
	runner := release.Runner{Helm: b.helm, Objects: objects{Objects: drift.Objects{Client: b.live}}, Clock: clocktesting.NewFakePassiveClock(time.Now().Add(time.Hour))}
	if !present {
		b.Expect(b.helm.Uninstall(b.t.Context(), b.target, release.Options{Timeout: time.Minute})).To(Succeed())
		b.Expect(b.history()).To(BeEmpty())
		b.Expect(b.data()).To(BeNil())
		return
	}
	request := b.request(nil, nil)
	result := runner.Run(b.t.Context(), release.Task{
		Facts:   release.Facts{Owner: request.Owner, Digest: request.Digest, Timeout: time.Minute, Retries: 3},
		Request: request, Fetch: func(context.Context) ([]byte, error) { return chart, nil },
	}, func(addonv1.ReleaseAction) {})
	b.Expect(result.Err).NotTo(HaveOccurred())
	b.Expect(result.Failure).To(BeNil())
	b.Expect(result.State).To(Equal(addonv1.StateInSync))
	history := b.history()
	b.Expect(history[0]).To(And(HaveField("Status", release.Deployed), HaveField("Digest", "d1"), HaveField("Version", "1.0.0")))
	b.Expect(slices.ContainsFunc(history, func(r release.Revision) bool { return r.Status == release.Pending })).To(BeFalse(), fmt.Sprint(statuses(history)))
	b.Expect(b.data()).To(HaveKeyWithValue("chart", "1.0.0"))
}
