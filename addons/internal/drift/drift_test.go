package drift_test

import (
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
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

const namespace = "apps"

var demo = charts.Chart{"templates/a.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: demo}
data:
  greeting: hello
  chart: {{ .Chart.Version | quote }}
`}

// TestDriftIsSeenAndCorrected: of what Helm has installed, as the API server sees it.
func TestDriftIsSeenAndCorrected(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	live, err := client.New(server, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	installed := helm.New(server, live)
	request := release.Request{
		Target: release.Target{Namespace: namespace, Name: "demo"}, Owner: "us", Digest: "d1", Chart: demo.Pack("1.0.0"),
		Options: release.Options{CreateNamespace: true, Timeout: time.Minute, HistoryLimit: 3},
	}
	data := func() map[string]string {
		found := &corev1.ConfigMap{}
		err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "demo"}, found)
		g.Expect(client.IgnoreNotFound(err)).To(Succeed())
		return found.Data
	}
	_, err = installed.Install(ctx, request)
	g.Expect(err).NotTo(HaveOccurred())
	content, err := installed.Get(ctx, request.Target)
	g.Expect(err).NotTo(HaveOccurred())
	of := drift.Objects{Client: live}
	drifted := func() []addonv1.DriftedObject {
		found, err := of.Drift(ctx, content)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	g.Expect(drifted()).To(BeEmpty())
	edit := func(change func(*corev1.ConfigMap)) {
		found := &corev1.ConfigMap{}
		g.Expect(live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "demo"}, found)).To(Succeed())
		change(found)
		g.Expect(live.Update(ctx, found)).To(Succeed())
	}
	name := "ConfigMap/apps/demo"

	edit(func(c *corev1.ConfigMap) { c.Data["extra"], c.Labels["team"] = "theirs", "x" })
	g.Expect(drifted()).To(BeEmpty(), "what others have added is no drift")

	edit(func(c *corev1.ConfigMap) { c.Data["greeting"] = "changed"; delete(c.Labels, release.ManagedByLabel) })
	g.Expect(drifted()).To(Equal([]addonv1.DriftedObject{{Object: name, Change: "/data/greeting, /metadata/labels/app.kubernetes.io~1managed-by"}}))
	g.Expect(of.Correct(ctx, content, nil)).To(Succeed())
	g.Expect(drifted()).To(HaveLen(1), "only what is named is corrected")
	g.Expect(of.Correct(ctx, content, drifted())).To(Succeed())
	g.Expect(data()).To(Equal(map[string]string{"greeting": "hello", "chart": "1.0.0", "extra": "theirs"}))
	g.Expect(drifted()).To(BeEmpty())

	of.Ignore = []addonv1.DriftIgnoreRule{{Kind: "ConfigMap", Paths: []string{"/data/greeting"}}}
	edit(func(c *corev1.ConfigMap) { c.Data["greeting"], c.Data["chart"] = "changed", "changed" })
	g.Expect(drifted()).To(Equal([]addonv1.DriftedObject{{Object: name, Change: "/data/chart"}}))
	of.Ignore = []addonv1.DriftIgnoreRule{{Name: "demo", Paths: []string{""}}}
	g.Expect(drifted()).To(BeEmpty())
	of.Ignore = []addonv1.DriftIgnoreRule{{Kind: "Secret", Paths: []string{""}}, {Name: "other", Paths: []string{""}}}
	g.Expect(drifted()).To(HaveLen(1))

	of.Ignore = nil
	g.Expect(live.Delete(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "demo"}})).To(Succeed())
	g.Expect(drifted()).To(Equal([]addonv1.DriftedObject{{Object: name, Change: "Missing"}}))
	g.Expect(of.Correct(ctx, content, drifted())).To(Succeed())
	g.Expect(data()).To(Equal(map[string]string{"greeting": "hello", "chart": "1.0.0"}))

	// What was corrected is Helm's as before.
	request.Chart = demo.Pack("1.1.0")
	_, err = installed.Upgrade(ctx, request)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(data()).To(HaveKeyWithValue("chart", "1.1.0"))
	g.Expect(installed.Uninstall(ctx, request.Target, request.Options)).To(Succeed())
	g.Expect(data()).To(BeNil())
}

// TestAnAPIServerThatDoesNotAnswerIsTold, and not taken for drift.
func TestAnAPIServerThatDoesNotAnswerIsTold(t *testing.T) {
	g := NewWithT(t)
	silent, err := client.New(&rest.Config{Host: "127.0.0.1:1"}, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "demo"}}}
	of, content := drift.Objects{Client: silent}, release.Content{Objects: []*unstructured.Unstructured{object}}
	_, err = of.Drift(t.Context(), content)
	g.Expect(err).To(MatchError(release.ErrUnreachable))
	g.Expect(of.Correct(t.Context(), content, nil)).To(MatchError(release.ErrUnreachable))
}
