package webhooks_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/apiserver"
)

var management client.Client

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(apiserver.Run(apiserver.Options{CRDs: []string{"config/addons/crd/bases"}}, func(started *apiserver.Server) int {
		scheme := runtime.NewScheme()
		err := addonv1.AddToScheme(scheme)
		if err == nil {
			management, err = client.New(started.Config, client.Options{Scheme: scheme})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}))
}

func addonOf(change func(*addonv1.TalosClusterAddon)) *addonv1.TalosClusterAddon {
	made := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	made.Spec.ClusterSelector.MatchLabels = map[string]string{"a": "b"}
	made.Spec.Source.Repository = addonv1.RepositorySource{URL: "https://charts.example.com/stable", Chart: "demo"}
	if change != nil {
		change(made)
	}

	return made
}

// TestWhatTheKindRefuses: with words that name the way out.
func TestWhatTheKindRefuses(t *testing.T) {
	registry := func(url string) func(*addonv1.TalosClusterAddon) {
		return func(a *addonv1.TalosClusterAddon) {
			a.Spec.Source = addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: url}}
		}
	}
	repository := func(url string) func(*addonv1.TalosClusterAddon) {
		return func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Repository.URL = url }
	}
	for name, tt := range map[string]struct {
		change  func(*addonv1.TalosClusterAddon)
		message string
	}{
		"an add-on": {},
		"a ConfigMap": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.Source = addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: "chart"}}
		}},
		"a registry": {change: registry("oci://registry.example.com:5000/charts/demo")},
		"HTTP that is allowed": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.Source.Repository.URL, a.Spec.Source.Repository.Insecure = "http://charts.example.com", addonv1.AllowHTTP
		}},
		"all clusters": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.ClusterSelector, a.Spec.MatchAll = metav1.LabelSelector{}, ptr.To(true)
		}},
		"no selector": {change: func(a *addonv1.TalosClusterAddon) { a.Spec.ClusterSelector = metav1.LabelSelector{} }, message: "set clusterSelector, or matchAll: true"},
		"an empty selector": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.ClusterSelector = metav1.LabelSelector{MatchLabels: map[string]string{}}
		}, message: "matchAll: true"},
		"both":        {change: func(a *addonv1.TalosClusterAddon) { a.Spec.MatchAll = ptr.To(true) }, message: "and not both"},
		"no source":   {change: func(a *addonv1.TalosClusterAddon) { a.Spec.Source = addonv1.AddonSource{} }, message: "spec.source"},
		"two sources": {change: func(a *addonv1.TalosClusterAddon) { a.Spec.Source.ConfigMap.Name = "chart" }, message: "exactly one of repository, registry and configMap"},
		"HTTP":        {change: repository("http://charts.example.com"), message: "set insecure: AllowHTTP"},
		"a password by HTTP": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.Source.Repository.URL, a.Spec.Source.Repository.Insecure, a.Spec.Source.Repository.CredentialsSecretName = "http://charts.example.com", addonv1.AllowHTTP, "login"
		}, message: "the password would be readable on the way"},
		"a file":                          {change: repository("file:///etc/passwd"), message: "url must be an absolute URL that begins with https://"},
		"a registry as a repository":      {change: repository("oci://registry.example.com/demo"), message: "use source.registry"},
		"a repository as a registry":      {change: registry("https://charts.example.com"), message: "use source.repository"},
		"a registry with a tag":           {change: registry("oci://registry.example.com/demo@sha256:00"), message: "without tag or digest"},
		"a registry without a repository": {change: registry("oci://registry.example.com"), message: "oci://<host>/<repository>"},
		"a registry with a port and none": {change: registry("oci://registry.example.com:5000"), message: "oci://<host>/<repository>"},
		"a registry of IPv6":              {change: registry("oci://[2001:db8::1]:5000/charts/demo")},
		"a repository of many words":      {change: registry("oci://registry.example.com/a.b/c_d/e__f/g--h/0")},
		"a tag of a registry":             {change: registry("oci://registry.example.com/charts/demo:1.2.3"), message: "the version belongs in source.registry.version"},
		"a tag of a registry with a port": {change: registry("oci://registry.example.com:5000/demo:1.2.3"), message: "without tag or digest"},
		"a registry in upper case":        {change: registry("oci://registry.example.com/charts/Demo"), message: "in lower case"},
		"a slash at the end":              {change: registry("oci://registry.example.com/charts/demo/"), message: "no slash at its end"},
		"two dots in a repository":        {change: registry("oci://registry.example.com/charts/../demo"), message: "oci://<host>/<repository>"},
		"white space in a host":           {change: registry("oci://registry .example.com/demo"), message: "oci://<host>/<repository>"},
		"a name that is no release's":     {change: func(a *addonv1.TalosClusterAddon) { a.Name = strings.Repeat("x", 54) }, message: "set spec.release.name"},
		"unless another is given":         {change: func(a *addonv1.TalosClusterAddon) { a.Name, a.Spec.Release.Name = strings.Repeat("x", 54), "short" }},
		"a name of a release":             {change: func(a *addonv1.TalosClusterAddon) { a.Spec.Release.Name = "Demo" }, message: "lower case"},
		"a network that depends on others": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.Phase, a.Spec.DependsOn = addonv1.PhaseNetwork, []addonv1.AddonReference{{Name: "base"}}
		}, message: "cannot depend on others"},
		"a path that is none": {change: func(a *addonv1.TalosClusterAddon) {
			a.Spec.Drift = addonv1.DriftSpec{Mode: addonv1.DriftWarn, Ignore: []addonv1.DriftIgnoreRule{{Paths: []string{"spec.replicas"}}}}
		}, message: "must be a JSON pointer"},
		"another policy": {change: func(a *addonv1.TalosClusterAddon) { a.Spec.DeletionPolicy = "Forget" }, message: "supported values"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			err := management.Create(t.Context(), addonOf(tt.change), client.DryRunAll)
			if tt.message == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(tt.message)))
		})
	}
}

// TestAReleaseKeepsItsName: Helm cannot move one.
func TestAReleaseKeepsItsName(t *testing.T) {
	g, made := NewWithT(t), addonOf(func(a *addonv1.TalosClusterAddon) { a.Name = "kept" })
	g.Expect(management.Create(t.Context(), made)).To(Succeed())
	for _, change := range []func(*addonv1.TalosClusterAddon){
		func(a *addonv1.TalosClusterAddon) { a.Spec.Release.Name = "other" }, func(a *addonv1.TalosClusterAddon) { a.Spec.Release.Namespace = "other" },
	} {
		changed := made.DeepCopy()
		change(changed)
		g.Expect(management.Update(t.Context(), changed)).To(MatchError(ContainSubstring("release.name and release.namespace cannot be changed")))
	}
	changed := made.DeepCopy()
	changed.Spec.Source = addonv1.AddonSource{Registry: addonv1.RegistrySource{URL: "oci://registry.example.com/other"}}
	g.Expect(management.Update(t.Context(), changed)).To(Succeed())

	release := &addonv1.TalosClusterAddonRelease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kept-blue"}, Spec: addonv1.TalosClusterAddonReleaseSpec{
		ClusterName: "blue", AddonName: "kept", ReleaseName: "kept", ReleaseNamespace: "default", DeletionPolicy: addonv1.DeletionUninstall, TimeoutSeconds: ptr.To(int32(600)),
	}}
	g.Expect(management.Create(t.Context(), release)).To(Succeed())
	for _, change := range []func(*addonv1.TalosClusterAddonReleaseSpec){
		func(s *addonv1.TalosClusterAddonReleaseSpec) { s.ClusterName = "red" }, func(s *addonv1.TalosClusterAddonReleaseSpec) { s.AddonName = "other" },
		func(s *addonv1.TalosClusterAddonReleaseSpec) { s.ReleaseName = "other" }, func(s *addonv1.TalosClusterAddonReleaseSpec) { s.ReleaseNamespace = "other" },
	} {
		changed := release.DeepCopy()
		change(&changed.Spec)
		g.Expect(management.Update(t.Context(), changed)).To(MatchError(ContainSubstring("is immutable")))
	}
}
