package drift_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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

// busy is a chart whose objects have lists: those of containers are merged by their names, those of
// arguments and rules are taken as a whole.
var busy = charts.Chart{"templates/a.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: demo}
data: {greeting: hello, chart: "1"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: demo}
spec:
  replicas: 2
  selector: {matchLabels: {app: demo}}
  template:
    metadata: {labels: {app: demo}}
    spec:
      containers:
      - {name: app, image: app, args: [--level=1, --size=1]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: demo}
spec:
  rules:
  - {host: a.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: demo, port: {number: 80}}}}]}}
`}

// TestWhatIsIgnoredStays: it is neither changed back, nor reset, nor deleted.
func TestWhatIsIgnoredStays(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	live, err := client.NewWithWatch(server, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	installed, target := helm.New(server, live), release.Target{Namespace: "busy", Name: "demo"}
	_, err = installed.Install(ctx, release.Request{Target: target, Chart: busy.Pack("1.0.0"), Options: release.Options{CreateNamespace: true, Wait: addonv1.WaitNone, Timeout: time.Minute}})
	g.Expect(err).NotTo(HaveOccurred())
	content, err := installed.Get(ctx, target)
	g.Expect(err).NotTo(HaveOccurred())
	key := client.ObjectKey{Namespace: target.Namespace, Name: target.Name}
	configMap, deployment, ingress := &corev1.ConfigMap{}, &appsv1.Deployment{}, &networkingv1.Ingress{}
	read := func() {
		*configMap, *deployment, *ingress = corev1.ConfigMap{}, appsv1.Deployment{}, networkingv1.Ingress{}
		for _, object := range []client.Object{configMap, deployment, ingress} {
			g.Expect(live.Get(ctx, key, object)).To(Succeed())
		}
	}
	app := func() *corev1.Container {
		containers := deployment.Spec.Template.Spec.Containers
		return &containers[slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "app" })]
	}
	edit := func(change func()) {
		read()
		change()
		for _, object := range []client.Object{configMap, deployment, ingress} {
			g.Expect(live.Update(ctx, object)).To(Succeed())
		}
	}
	of := drift.Objects{Client: live}
	drifted := func() []addonv1.DriftedObject {
		found, err := of.Drift(ctx, content)
		g.Expect(err).NotTo(HaveOccurred())
		return found
	}
	correct := func() {
		g.Expect(of.Correct(ctx, content, drifted())).To(Succeed())
		g.Expect(drifted()).To(BeEmpty())
		read()
	}
	ignore := func(kind string, paths ...string) {
		of.Ignore = append(of.Ignore, addonv1.DriftIgnoreRule{Kind: kind, Paths: paths})
	}

	// What was corrected belongs to the manager alone, which does not state what it ignores by now.
	edit(func() { configMap.Data["greeting"], deployment.Spec.Replicas = "changed", ptr.To(int32(5)) })
	correct()
	ignore("ConfigMap", "/data/greeting")
	ignore("Deployment", "/spec/replicas")
	g.Expect(drifted()).To(BeEmpty())
	edit(func() { configMap.Data["chart"], app().Image = "changed", "changed" })
	correct()
	g.Expect(configMap.Data).To(Equal(map[string]string{"greeting": "hello", "chart": "1"}))
	g.Expect(deployment.Spec.Replicas).To(HaveValue(Equal(int32(2))))

	// Others change it meanwhile, take it away, or have a container of their own before it.
	ignore("Deployment", "/spec/template/spec/containers/0/args/1", "/spec/template/spec/containers/0/image")
	ignore("Ingress", "/spec/rules/0/host", "/spec/rules/0/http/paths/0/pathType")
	edit(func() {
		delete(configMap.Data, "greeting")
		deployment.Spec.Replicas, app().Args[1], app().Image = ptr.To(int32(7)), "--size=9", "theirs"
		deployment.Spec.Template.Spec.Containers = append([]corev1.Container{{Name: "sidecar", Image: "sidecar"}}, deployment.Spec.Template.Spec.Containers...)
		ingress.Spec.Rules[0].Host, ingress.Spec.Rules[0].HTTP.Paths[0].PathType = "b.example.com", ptr.To(networkingv1.PathTypeExact)
	})
	g.Expect(drifted()).To(BeEmpty())
	edit(func() {
		configMap.Data["chart"], app().Args[0] = "changed", "--level=9"
		ingress.Spec.Rules[0].HTTP.Paths[0].Path = "/changed"
	})
	g.Expect(drifted()).To(Equal([]addonv1.DriftedObject{
		{Object: "ConfigMap/busy/demo", Change: "/data/chart"},
		{Object: "Deployment/busy/demo", Change: "/spec/template/spec/containers/1/args/0"},
		{Object: "Ingress/busy/demo", Change: "/spec/rules/0/http/paths/0/path"},
	}))
	correct()
	g.Expect(configMap.Data).To(Equal(map[string]string{"chart": "1"}))
	g.Expect(deployment.Spec.Replicas).To(HaveValue(Equal(int32(7))))
	g.Expect(deployment.Spec.Template.Spec.Containers).To(HaveLen(2))
	g.Expect(*app()).To(And(HaveField("Args", []string{"--level=1", "--size=9"}), HaveField("Image", "theirs")))
	g.Expect(ingress.Spec.Rules[0].Host).To(Equal("b.example.com"))
	g.Expect(ingress.Spec.Rules[0].HTTP.Paths[0]).To(And(HaveField("Path", "/"), HaveField("PathType", HaveValue(Equal(networkingv1.PathTypeExact)))))

	// They change it between the look at it and the correction.
	edit(func() { app().Args[0] = "--level=9" })
	found := drifted()
	late := false
	of.Client = interceptor.NewClient(live, interceptor.Funcs{Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, options ...client.ApplyOption) error {
		if !late {
			late = true
			edit(func() { deployment.Spec.Replicas = ptr.To(int32(8)) })
		}
		return c.Apply(ctx, object, options...)
	}})
	g.Expect(of.Correct(ctx, content, found)).To(Succeed())
	read()
	g.Expect(late).To(BeTrue())
	g.Expect(deployment.Spec.Replicas).To(HaveValue(Equal(int32(8))))
	g.Expect(app().Args).To(Equal([]string{"--level=1", "--size=9"}))

	// What is gone is made as the chart has it.
	g.Expect(live.Delete(ctx, deployment)).To(Succeed())
	correct()
	g.Expect(deployment.Spec.Replicas).To(HaveValue(Equal(int32(2))))
	g.Expect(app().Args).To(Equal([]string{"--level=1", "--size=1"}))
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
