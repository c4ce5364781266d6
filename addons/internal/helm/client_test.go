package helm_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/helm"
	"github.com/capi-talos/capi-talos/addons/internal/release"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/charts"
	"github.com/capi-talos/capi-talos/test/support/tally"
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

// TestTheSchemaOfTheAPIIsNotAskedFor: that of one group has more than a megabyte, and Helm
// would read it for each action to learn that the API server validates objects itself.
func TestTheSchemaOfTheAPIIsNotAskedFor(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	var asked tally.Counter
	watched := rest.CopyConfig(server)
	watched.Wrap(func(inner http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			asked.Add(strings.Join(strings.SplitN(request.URL.Path, "/", 3)[:2], "/"))
			return inner.RoundTrip(request)
		})
	})
	helm := helm.New(watched, b.live)
	request := b.request(demo.Pack("1.0.0"), nil)
	_, err := helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	request.Chart = demo.Pack("1.1.0")
	_, err = helm.Upgrade(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(helm.Rollback(ctx, b.target, 1, request.Options)).To(Succeed())
	b.Expect(helm.Uninstall(ctx, b.target, request.Options)).To(Succeed())
	b.Expect(asked.Counts()).To(HaveKey("/api"))
	b.Expect(asked.Counts()).NotTo(HaveKey("/openapi"))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

func TestTheLifeOfARelease(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	_, err := b.helm.Get(ctx, b.target)
	b.Expect(err).To(MatchError(release.ErrNotFound))
	b.Expect(b.history()).To(BeEmpty())
	b.Expect(b.helm.HasNamespace(ctx, b.target.Namespace)).To(BeFalse())

	values := map[string]any{"greeting": "hi"}
	content, err := b.helm.Install(ctx, b.request(demo.Pack("1.0.0"), values))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(content.Objects).To(HaveLen(1))
	b.Expect(b.helm.HasNamespace(ctx, b.target.Namespace)).To(BeTrue())
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

// TestAReleaseThatCannotBeReadIsNotUninstalled: Helm can be told to pass over a release that is
// gone, and then passes over each one that it cannot read.
func TestAReleaseThatCannotBeReadIsNotUninstalled(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	request := b.request(demo.Pack("1.0.0"), nil)
	_, err := b.helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	for status, want := range map[int]types.GomegaMatcher{
		http.StatusForbidden:          Not(MatchError(release.ErrUnreachable)),
		http.StatusServiceUnavailable: MatchError(release.ErrUnreachable),
	} {
		reads := 0
		failing := rest.CopyConfig(server)
		failing.Wrap(func(inner http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				if request.Method == http.MethodGet && strings.HasSuffix(request.URL.Path, "/secrets") {
					reads++
				}
				// The first time they are read for what must not be seen of them.
				if reads < 2 {
					return inner.RoundTrip(request)
				}
				return &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{}, Request: request}, nil
			})
		})
		err := helm.New(failing, b.live).Uninstall(ctx, b.target, request.Options)
		b.Expect(err).To(And(HaveOccurred(), want))
		b.Expect(reads).To(BeNumerically(">=", 2))
		b.Expect(b.history()).To(HaveLen(1))
		b.Expect(b.data()).NotTo(BeNil())
	}
}

// TestHelmDeletesTheHistoryThoughAHookFails after it has deleted the objects: the controllers count
// on that when they tell what may be left.
func TestHelmDeletesTheHistoryThoughAHookFails(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	hook := charts.Chart{"templates/a.yaml": demo["templates/a.yaml"], "values.yaml": demo["values.yaml"], "templates/hook.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: NOT-A-NAME, annotations: {helm.sh/hook: post-delete}}
`}
	request := b.request(hook.Pack("1.0.0"), nil)
	_, err := b.helm.Install(ctx, request)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.helm.Uninstall(ctx, b.target, request.Options)).To(MatchError(ContainSubstring("NOT-A-NAME")))
	b.Expect(b.history()).To(BeEmpty())
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

// TestErrorsHaveNoValuesOfFormerRevisions: what is undone or removed was made of values
// that nobody may ask for any more.
func TestErrorsHaveNoValuesOfFormerRevisions(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	hook := charts.Chart{"templates/hook.yaml": `apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Values.token | quote }}
  annotations: {helm.sh/hook: "pre-delete,pre-rollback"}
`}
	_, err := b.helm.Install(ctx, b.request(hook.Pack("1.0.0"), map[string]any{"token": "Hunter2_x"}))
	b.Expect(err).NotTo(HaveOccurred())
	_, err = b.helm.Upgrade(ctx, b.request(demo.Pack("1.1.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	err = b.helm.Rollback(ctx, b.target, 1, release.Options{Timeout: time.Minute})
	b.Expect(err).To(MatchError(And(ContainSubstring(`Invalid value: "***"`), Not(ContainSubstring("Hunter2_x")))))
	err = b.helm.Uninstall(ctx, b.target, release.Options{Timeout: time.Minute})
	b.Expect(err).To(MatchError(And(ContainSubstring(`Invalid value: "***"`), Not(ContainSubstring("Hunter2_x")))))
}

// TestAKeptHistoryIsNoObstacle: somebody may have uninstalled the release by hand, and
// kept its history.
func TestAKeptHistoryIsNoObstacle(t *testing.T) {
	b, ctx := newBed(t), t.Context()
	_, err := b.helm.Install(ctx, b.request(demo.Pack("1.0.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.helm.UninstallKeepingHistory(b.target)).To(Succeed())
	b.Expect(b.history()[0].Status).To(Equal(release.Uninstalled))
	_, err = b.helm.Install(ctx, b.request(demo.Pack("1.1.0"), nil))
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.history()[0].Status).To(Equal(release.Deployed))
	b.Expect(b.data()).To(HaveKeyWithValue("chart", "1.1.0"))
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
