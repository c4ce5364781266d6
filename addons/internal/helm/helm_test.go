package helm_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/drift"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// server is the API server of a workload cluster.
var server *rest.Config

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiserver.Run(apiserver.Options{}, func(started *apiserver.Server) int {
		server = started.Config
		return m.Run()
	}))
}

// demo is a chart with an object that says what it was given.
var demo = charts.Chart{
	"values.yaml": "greeting: hello\n",
	"templates/a.yaml": `apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}
data:
  greeting: {{ .Values.greeting | quote }}
  chart: {{ .Chart.Version | quote }}
`,
}

// bed is a namespace of the workload cluster.
type bed struct {
	*WithT

	t      *testing.T
	live   client.Client
	helm   *helm.Client
	target release.Target
}

func newBed(t *testing.T) *bed {
	t.Helper()
	g := NewWithT(t)
	live, err := client.New(server, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))

	return &bed{WithT: g, t: t, live: live, helm: helm.New(server, live), target: release.Target{Namespace: name[:min(len(name), 60)], Name: "demo"}}
}

func (b *bed) request(chart []byte, values map[string]any) release.Request {
	return release.Request{
		Target: b.target, Owner: "us", Digest: "d1", Chart: chart, Values: values,
		Options: release.Options{CreateNamespace: true, CRDs: addonv1.CRDCreate, Wait: addonv1.WaitResources, Timeout: time.Minute, HistoryLimit: 3},
	}
}

// data is that of the object of the demo chart; nil when it is not there.
func (b *bed) data() map[string]string {
	b.t.Helper()
	found := &corev1.ConfigMap{}
	err := b.live.Get(b.t.Context(), client.ObjectKey{Namespace: b.target.Namespace, Name: b.target.Name}, found)
	if apierrors.IsNotFound(err) {
		return nil
	}
	b.Expect(err).NotTo(HaveOccurred())

	return found.Data
}

func (b *bed) history() []release.Revision {
	b.t.Helper()
	history, err := b.helm.History(b.t.Context(), b.target)
	b.Expect(err).NotTo(HaveOccurred())

	return history
}

func statuses(history []release.Revision) []string {
	var texts []string
	for _, revision := range history {
		texts = append(texts, fmt.Sprintf("%d %s %s", revision.Number, revision.Status, revision.Digest))
	}

	return texts
}

func TestTheLifeOfARelease(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	_, err := b.helm.Get(ctx, b.target)
	b.Expect(err).To(MatchError(release.ErrNotFound))
	b.Expect(b.history()).To(BeEmpty())

	values := map[string]any{"greeting": "hi"}
	content, err := b.helm.Install(ctx, b.request(demo.Pack("1.0.0"), values))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(content.Objects).To(HaveLen(1))
	b.Expect(b.data()).To(Equal(map[string]string{"greeting": "hi", "chart": "1.0.0"}))
	b.Expect(values).To(Equal(map[string]any{"greeting": "hi"}))
	found, err := b.helm.Get(ctx, b.target)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(found.At).To(BeTemporally("~", time.Now(), time.Minute))
	found.At = time.Time{}
	b.Expect(found.Revision).To(Equal(release.Revision{
		Number: 1, Status: release.Deployed, Owner: "us", Digest: "d1", Chart: "demo", Version: "1.0.0", Timeout: time.Minute, Tests: release.TestsPassed,
	}))

	request := b.request(demo.Pack("1.1.0"), nil)
	request.Digest = "d2"
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.data()).To(Equal(map[string]string{"greeting": "hello", "chart": "1.1.0"}), "former values are not reused")
	b.Expect(statuses(b.history())).To(Equal([]string{"2 Deployed d2", "1 Superseded d1"}))

	b.Expect(b.helm.Rollback(ctx, b.target, 1, request.Options)).To(Succeed())
	b.Expect(b.data()).To(HaveKeyWithValue("greeting", "hi"))
	b.Expect(statuses(b.history())).To(Equal([]string{"3 Deployed d1", "2 Superseded d2", "1 Superseded d1"}))

	for range 2 {
		_, err = b.helm.Upgrade(ctx, request)
		b.Expect(err).NotTo(HaveOccurred())
	}
	b.Expect(b.history()).To(HaveLen(3), "the history is bounded")
	b.Expect(b.helm.Uninstall(ctx, b.target, request.Options)).To(Succeed())
	b.Expect(b.data()).To(BeNil())
	b.Expect(b.history()).To(BeEmpty())
	b.Expect(b.helm.Uninstall(ctx, b.target, request.Options)).To(Succeed(), "it is gone already")
}

// TestAnObjectThatAFailedRevisionHasLostIsNoObstacle: Helm compares with the revision that
// has failed, and neither finds what that has not, nor deletes what only that has made
// (https://github.com/helm/helm/issues/5595).
func TestAnObjectThatAFailedRevisionHasLostIsNoObstacle(t *testing.T) {
	broken := charts.Chart{"templates/b.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: extra}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, annotations: {helm.sh/resource-policy: keep}}
---
apiVersion: v1
kind: Secret
metadata: {name: NOT-A-NAME}
`}
	for name, next := range map[string]func(b *bed) error{
		"rollback": func(b *bed) error {
			return b.helm.Rollback(b.t.Context(), b.target, 1, release.Options{Timeout: time.Minute})
		},
		"upgrade": func(b *bed) error {
			_, err := b.helm.Upgrade(b.t.Context(), b.request(demo.Pack("1.2.0"), nil))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			_, err := b.helm.Install(t.Context(), b.request(demo.Pack("1.0.0"), nil))
			b.Expect(err).NotTo(HaveOccurred())
			exists := func(name string) bool {
				err := b.live.Get(t.Context(), client.ObjectKey{Namespace: b.target.Namespace, Name: name}, &corev1.ConfigMap{})
				b.Expect(client.IgnoreNotFound(err)).To(Succeed())
				return err == nil
			}
			for range 2 {
				_, err = b.helm.Upgrade(t.Context(), b.request(broken.Pack("1.1.0"), nil))
				b.Expect(err).To(HaveOccurred())
			}
			// Helm creates what it can only up to the first that it cannot.
			for _, name := range []string{"extra", "kept"} {
				b.Expect(client.IgnoreAlreadyExists(b.live.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: b.target.Namespace, Name: name, Annotations: map[string]string{
					release.NameAnnotation: b.target.Name, release.NamespaceAnnotation: b.target.Namespace,
				}}}))).To(Succeed())
			}
			b.Expect(next(b)).To(Succeed())
			b.Expect(b.history()[0].Status).To(Equal(release.Deployed))
			b.Expect(b.data()).To(HaveKeyWithValue("greeting", "hello"))
			b.Expect(exists("extra")).To(BeFalse(), "what only the failed revision has is deleted")
			b.Expect(exists("kept")).To(BeTrue(), "unless the chart has it kept")
		})
	}
}

func TestADryRunWritesNothing(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	b.Expect(b.live.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.target.Namespace}})).To(Succeed())
	request := b.request(demo.Pack("1.0.0"), nil)
	request.DryRun = true
	content, err := b.helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(content.Objects).To(HaveLen(1))
	b.Expect(b.history()).To(BeEmpty())
	b.Expect(b.data()).To(BeNil())
	request.DryRun = false
	_, err = b.helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	request.DryRun, request.Values = true, map[string]any{"greeting": "hi"}
	_, err = b.helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.history()).To(HaveLen(1))
	b.Expect(b.data()).To(HaveKeyWithValue("greeting", "hello"))
}

func TestWhatIsRefusedIsToldApart(t *testing.T) {
	crd := func(name string) string {
		return fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.example.com}
spec:
  group: example.com
  names: {kind: %[1]s, plural: %[1]ss, listKind: %[1]slist, singular: %[1]s}
  scope: Namespaced
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`, name)
	}
	b, ctx := newBed(t), t.Context()
	other := b.request(charts.Chart{"templates/crd.yaml": crd("theirs"), "templates/a.yaml": demo["templates/a.yaml"], "crds/own.yaml": crd("replaced")}.Pack("1.0.0"), map[string]any{"greeting": "x"})
	other.Owner, other.Options.CRDs = "them", addonv1.CRDCreateReplace
	_, err := b.helm.Install(ctx, other)
	b.Expect(err).NotTo(HaveOccurred())
	for name, tt := range map[string]struct {
		chart           charts.Chart
		values          map[string]any
		crds            addonv1.CRDPolicy
		reason, message string
	}{
		"values that the schema refuses": {
			chart:  charts.Chart{"values.schema.json": `{"properties":{"greeting":{"type":"integer"}}}`, "values.yaml": "greeting: 1", "templates/a.yaml": demo["templates/a.yaml"]},
			values: map[string]any{"greeting": "hi"}, reason: addonv1.ValuesInvalidReason, message: "greeting",
		},
		"a template that fails": {
			chart: charts.Chart{"templates/b.yaml": `{{ fail "give a greeting" }}`}, reason: addonv1.ValuesInvalidReason, message: "give a greeting",
		},
		"a template that cannot be read": {
			chart: charts.Chart{"templates/b.yaml": `{{ nonsense }}`}, reason: addonv1.ValuesInvalidReason, message: "nonsense",
		},
		"another Kubernetes version": {
			chart: charts.Chart{"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\nkubeVersion: <1.20\n"}, reason: addonv1.ChartInvalidReason, message: "kubeVersion",
		},
		"a library": {
			chart: charts.Chart{"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\ntype: library\n"}, reason: addonv1.ChartInvalidReason, message: "library",
		},
		"a chart that lacks another": {
			chart: charts.Chart{"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\ndependencies: [{name: base, version: 1.0.0, repository: https://example.com}]\n"}, reason: addonv1.ChartInvalidReason, message: "lacks the chart base",
		},
		"an object of another release": {
			chart: charts.Chart{"templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: demo}\n"}, reason: addonv1.ReleaseConflictReason, message: "ConfigMap demo",
		},
		"a CustomResourceDefinition of another release": {
			chart: charts.Chart{"templates/crd.yaml": crd("theirs")}, reason: addonv1.CRDConflictReason, message: "theirss.example.com",
		},
		"one that another release would lose": {
			chart: charts.Chart{"crds/crd.yaml": crd("theirs")}, crds: addonv1.CRDCreateReplace, reason: addonv1.CRDConflictReason, message: "the release " + b.target.Namespace + "/demo",
		},
		"one that another add-on has brought": {
			chart: charts.Chart{"crds/crd.yaml": crd("replaced")}, crds: addonv1.CRDCreateReplace, reason: addonv1.CRDConflictReason, message: "another TalosClusterAddon",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			request := b.request(tt.chart.Pack("1.0.0"), tt.values)
			request.Name = "second"
			if tt.crds != "" {
				request.Options.CRDs = tt.crds
			}
			_, err := b.helm.Install(ctx, request)
			refused := (*release.RefusedError)(nil)
			g.Expect(errors.As(err, &refused)).To(BeTrue(), fmt.Sprint(err))
			g.Expect(refused.Reason).To(Equal(tt.reason), refused.Message)
			g.Expect(refused.Message).To(ContainSubstring(tt.message))
			history, err := b.helm.History(ctx, request.Target)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(history).To(BeEmpty(), "nothing was begun")
		})
	}
	_, err = helm.Inspect([]byte("no archive"))
	b.Expect(err).To(HaveField("Reason", addonv1.ChartInvalidReason))
	_, err = helm.Inspect(charts.Chart{"files/bomb": strings.Repeat("0", 6<<20)}.Pack("1.0.0"))
	b.Expect(err).To(MatchError(ContainSubstring("larger than the maximum file size")))
}

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

func TestAnAPIServerThatDoesNotAnswerIsToldApart(t *testing.T) {
	b := newBed(t)
	gone := rest.CopyConfig(server)
	gone.Host = "https://127.0.0.1:1"
	live, err := client.New(server, client.Options{})
	b.Expect(err).NotTo(HaveOccurred())
	lost := helm.New(gone, live)
	_, err = lost.History(t.Context(), b.target)
	b.Expect(err).To(MatchError(release.ErrUnreachable))
	_, err = lost.Get(t.Context(), b.target)
	b.Expect(err).To(MatchError(release.ErrUnreachable))
	request := b.request(demo.Pack("1.0.0"), nil)
	_, err = lost.Install(t.Context(), request)
	b.Expect(err).To(MatchError(release.ErrUnreachable))
	_, err = lost.Upgrade(t.Context(), request)
	b.Expect(err).To(MatchError(release.ErrUnreachable))
	b.Expect(lost.Rollback(t.Context(), b.target, 1, request.Options)).To(MatchError(release.ErrUnreachable))
	b.Expect(lost.Uninstall(t.Context(), b.target, request.Options)).To(MatchError(release.ErrUnreachable))
	b.Expect(lost.Unlock(t.Context(), b.target, 1)).To(MatchError(release.ErrUnreachable))
	b.Expect(lost.Test(t.Context(), b.target, request.Options)).To(MatchError(release.ErrUnreachable))
}

func TestDriftIsSeenAndCorrected(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	_, err := b.helm.Install(ctx, b.request(demo.Pack("1.0.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	content, err := b.helm.Get(ctx, b.target)
	b.Expect(err).NotTo(HaveOccurred())
	of := drift.Objects{Client: b.live}
	drifted := func() []addonv1.DriftedObject {
		found, err := of.Drift(ctx, content)
		b.Expect(err).NotTo(HaveOccurred())
		return found
	}
	b.Expect(drifted()).To(BeEmpty())
	edit := func(change func(*corev1.ConfigMap)) {
		found := &corev1.ConfigMap{}
		b.Expect(b.live.Get(ctx, client.ObjectKey{Namespace: b.target.Namespace, Name: "demo"}, found)).To(Succeed())
		change(found)
		b.Expect(b.live.Update(ctx, found)).To(Succeed())
	}
	name := "ConfigMap/" + b.target.Namespace + "/demo"

	edit(func(c *corev1.ConfigMap) { c.Data["extra"], c.Labels["team"] = "theirs", "x" })
	b.Expect(drifted()).To(BeEmpty(), "what others have added is no drift")

	edit(func(c *corev1.ConfigMap) { c.Data["greeting"] = "changed"; delete(c.Labels, release.ManagedByLabel) })
	b.Expect(drifted()).To(Equal([]addonv1.DriftedObject{{Object: name, Change: "/data/greeting, /metadata/labels/app.kubernetes.io~1managed-by"}}))
	b.Expect(of.Correct(ctx, content, nil)).To(Succeed())
	b.Expect(drifted()).To(HaveLen(1), "only what is named is corrected")
	b.Expect(of.Correct(ctx, content, drifted())).To(Succeed())
	b.Expect(b.data()).To(Equal(map[string]string{"greeting": "hello", "chart": "1.0.0", "extra": "theirs"}))
	b.Expect(drifted()).To(BeEmpty())

	of.Ignore = []addonv1.DriftIgnoreRule{{Kind: "ConfigMap", Paths: []string{"/data/greeting"}}}
	edit(func(c *corev1.ConfigMap) { c.Data["greeting"], c.Data["chart"] = "changed", "changed" })
	b.Expect(drifted()).To(Equal([]addonv1.DriftedObject{{Object: name, Change: "/data/chart"}}))
	of.Ignore = []addonv1.DriftIgnoreRule{{Name: "demo", Paths: []string{""}}}
	b.Expect(drifted()).To(BeEmpty())
	of.Ignore = []addonv1.DriftIgnoreRule{{Kind: "Secret", Paths: []string{""}}, {Name: "other", Paths: []string{""}}}
	b.Expect(drifted()).To(HaveLen(1))

	of.Ignore = nil
	b.Expect(b.live.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: b.target.Namespace, Name: "demo"}})).To(Succeed())
	b.Expect(drifted()).To(Equal([]addonv1.DriftedObject{{Object: name, Change: "Missing"}}))
	b.Expect(of.Correct(ctx, content, drifted())).To(Succeed())
	b.Expect(b.data()).To(Equal(map[string]string{"greeting": "hello", "chart": "1.0.0"}))

	// What was corrected is Helm's as before.
	_, err = b.helm.Upgrade(ctx, b.request(demo.Pack("1.1.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.data()).To(HaveKeyWithValue("chart", "1.1.0"))
	b.Expect(b.helm.Uninstall(ctx, b.target, release.Options{Timeout: time.Minute})).To(Succeed())
	b.Expect(b.data()).To(BeNil())
}

// objects are those of a release; nobody waits for them.
type objects struct{ drift.Objects }

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
