package setup

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// addonUser is a client of a user that has the role of docs/addons.md in a namespace, which
// is made.
func addonUser(t *testing.T, namespace string) client.Client {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "addons.md"))
	g.Expect(err).NotTo(HaveOccurred())
	block := regexp.MustCompile("(?s)```yaml\n([^`]*kind: ClusterRole\n.*?)```").FindStringSubmatch(string(page))
	g.Expect(block).NotTo(BeNil())
	role := rbacv1.ClusterRole{}
	g.Expect(yaml.UnmarshalStrict([]byte(block[1]), &role)).To(Succeed())
	g.Expect(client.IgnoreAlreadyExists(management.Create(ctx, &role))).To(Succeed())
	user := "user-of-" + namespace
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role.Name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		},
	} {
		g.Expect(management.Create(ctx, object)).To(Succeed())
	}
	config := rest.CopyConfig(managementConfig)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	found, err := client.New(config, client.Options{Scheme: management.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error {
		return found.List(ctx, &addonv1.TalosClusterAddonList{}, client.InNamespace(namespace))
	}).WithTimeout(patience).Should(Succeed(), "the rights are there")

	return found
}

// fromConfigMap is an add-on of a chart in a ConfigMap, for the Clusters of a label.
func fromConfigMap(namespace, name string, change func(*addonv1.TalosClusterAddon)) *addonv1.TalosClusterAddon {
	addon := &addonv1.TalosClusterAddon{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: addonv1.TalosClusterAddonSpec{
		MatchAll: ptr.To(true),
		Source:   addonv1.AddonSource{ConfigMap: addonv1.ConfigMapSource{Name: name}},
		Release:  addonv1.ReleaseSpec{Namespace: namespace, Wait: addonv1.WaitNone},
	}}
	if change != nil {
		change(addon)
	}

	return addon
}

func packedIn(namespace, name string, chart charts.Chart) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, BinaryData: map[string][]byte{"chart.tgz": chart.Pack("1.0.0")}}
}

// said is the reason and the message of a condition of the release of an add-on.
func said(ctx context.Context, g Gomega, reader client.Client, addon *addonv1.TalosClusterAddon, conditionType string) string {
	releases := &addonv1.TalosClusterAddonReleaseList{}
	g.Expect(reader.List(ctx, releases, client.InNamespace(addon.Namespace))).To(Succeed())
	for i := range releases.Items {
		if found := conditions.Get(&releases.Items[i], conditionType); found != nil && releases.Items[i].Spec.AddonName == addon.Name {
			return found.Reason + ": " + found.Message
		}
	}

	return ""
}

// TestWhatAnAddonUserCannotDo, with the role that the docs have.
func TestWhatAnAddonUserCannotDo(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	user := addonUser(t, "may-little")
	objectsIn := func(namespace string) []client.Object {
		return []client.Object{
			fromConfigMap(namespace, "other", func(a *addonv1.TalosClusterAddon) {
				a.Spec.MatchAll, a.Spec.ClusterSelector.MatchLabels = nil, map[string]string{"no": "cluster"}
			}),
			&addonv1.TalosClusterAddonRelease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}, Spec: addonv1.TalosClusterAddonReleaseSpec{
				ClusterName: "none", AddonName: "none", ReleaseName: "other", ReleaseNamespace: "kube-system", DeletionPolicy: addonv1.DeletionOrphan, TimeoutSeconds: ptr.To(int32(60)),
			}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}},
		}
	}
	forbidden := Satisfy(apierrors.IsForbidden)
	others := objectsIn(namespace)
	for _, object := range others {
		g.Expect(user.Create(ctx, object.DeepCopyObject().(client.Object))).To(forbidden) //nolint:forcetypeassert // They are.
		g.Eventually(func() error { return management.Create(ctx, object) }).WithTimeout(patience).Should(Succeed())
		g.Expect(user.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object))).To(forbidden) //nolint:forcetypeassert // They are.
		changed := object.DeepCopyObject().(client.Object)                                                                 //nolint:forcetypeassert // They are.
		changed.SetLabels(map[string]string{"a": "b"})
		g.Expect(user.Update(ctx, changed)).To(forbidden)
		g.Expect(user.Patch(ctx, changed, client.MergeFrom(object))).To(forbidden)
		g.Expect(user.Status().Patch(ctx, changed, client.MergeFrom(object))).To(forbidden)
		g.Expect(user.Delete(ctx, changed)).To(forbidden)
		g.Expect(user.DeleteAllOf(ctx, changed, client.InNamespace(namespace))).To(forbidden)
	}
	for _, list := range []client.ObjectList{&addonv1.TalosClusterAddonList{}, &addonv1.TalosClusterAddonReleaseList{}, &corev1.ConfigMapList{}, &corev1.SecretList{}, &clusterv1.ClusterList{}} {
		g.Expect(user.List(ctx, list)).To(forbidden, "in all namespaces")
		g.Expect(user.List(ctx, list, client.InNamespace(namespace))).To(forbidden)
	}
	for _, object := range others {
		g.Expect(management.Delete(ctx, object)).To(Succeed())
	}
	own := objectsIn("may-little")
	addon, release, secret := own[0], own[1], own[3]
	g.Expect(user.Create(ctx, release)).To(forbidden, "the provider makes releases, and nobody else")
	g.Expect(user.Create(ctx, addon)).To(Succeed())
	before := addon.DeepCopyObject().(*addonv1.TalosClusterAddon) //nolint:forcetypeassert // It is.
	after := before.DeepCopy()
	after.Status.Chart.Digest = "sha256:forged"
	g.Expect(user.Status().Patch(ctx, after, client.MergeFrom(before))).To(forbidden)
	g.Expect(user.Create(ctx, secret)).To(Succeed())
	g.Expect(user.Get(ctx, client.ObjectKeyFromObject(secret), &corev1.Secret{})).To(forbidden)
	g.Expect(user.List(ctx, &corev1.SecretList{}, client.InNamespace("may-little"))).To(forbidden)
}

// TestAChartReachesTheWorkloadClusterAlone: what it looks up, what it makes, its hooks, and
// what its add-on refers to.
func TestAChartReachesTheWorkloadClusterAlone(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	g.SetDefaultEventuallyTimeout(patience)
	user := addonUser(t, "chart-author")
	server, administrator := asAdministrator(workloadConfig)
	g.Expect(makeCluster(ctx, "chart-author", "own", server, administrator)).To(Succeed())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "victims-values"}, StringData: map[string]string{"values.yaml": "token: hunter2"}}
	g.Expect(management.Create(ctx, secret)).To(Succeed())

	object := func(name, more string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n  namespace: kube-system\n" + more
	}
	addon := fromConfigMap("chart-author", "reaching", nil)
	g.Expect(user.Create(ctx, packedIn("chart-author", "reaching", charts.Chart{
		"templates/a.yaml": object("reaching", `data:
  namespaces: {{ range (lookup "v1" "Namespace" "" "").items }}{{ .metadata.name }} {{ end }}
  secret: {{ lookup "v1" "Secret" "`+namespace+`" "victims-values" | toJson | quote }}
`),
		"templates/hook.yaml": object("hook", "  annotations: {helm.sh/hook: pre-install}\n"),
	}))).To(Succeed())
	g.Eventually(func() error { return user.Create(ctx, addon) }).Should(Succeed())
	made := &corev1.ConfigMap{}
	g.Eventually(func() error {
		return workload.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "reaching"}, made)
	}).Should(Succeed())
	g.Expect(made.Data["secret"]).To(Equal("{}"))
	g.Expect(strings.Fields(made.Data["namespaces"])).To(And(ContainElement("kube-system"), Not(ContainElement(namespace))))
	g.Expect(workload.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "hook"}, made)).To(Succeed())
	for _, name := range []string{"reaching", "hook"} {
		g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: name}, made)).To(Satisfy(apierrors.IsNotFound))
	}

	borrowed := fromConfigMap("chart-author", "borrowing", func(a *addonv1.TalosClusterAddon) {
		a.Spec.Source.ConfigMap.Name = "reaching"
		a.Spec.ValuesFrom = []addonv1.ValuesReference{{Kind: addonv1.SecretValues, Name: secret.Name}}
	})
	g.Expect(user.Create(ctx, borrowed)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(said(ctx, g, user, borrowed, addonv1.ReleasedCondition)).To(Equal("ValuesInvalid: valuesFrom[0]: Secret victims-values, key values.yaml: it is missing"))
	}).Should(Succeed())
	g.Expect(user.Delete(ctx, addon)).To(Succeed())
	g.Expect(user.Delete(ctx, borrowed)).To(Succeed())
}

// TestATemplateSeesNothingOutOfTheNamespace: a Cluster may refer to an object of no
// namespace, which the manager may read, and the user may not.
func TestATemplateSeesNothingOutOfTheNamespace(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	g.SetDefaultEventuallyTimeout(patience)
	user := addonUser(t, "template-author")
	kind := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "sharedidentities.infrastructure.cluster.x-k8s.io", Labels: map[string]string{"cluster.x-k8s.io/v1beta2": "v1"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "infrastructure.cluster.x-k8s.io", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "SharedIdentity", ListKind: "SharedIdentityList", Plural: "sharedidentities", Singular: "sharedidentity"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)},
			}}},
		},
	}
	g.Expect(management.Create(ctx, kind)).To(Succeed())
	shared := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"secret": "hunter2"}}}
	shared.SetGroupVersionKind(schema.GroupVersionKind{Group: kind.Spec.Group, Version: "v1", Kind: "SharedIdentity"})
	shared.SetName("shared")
	g.Eventually(func() error { return management.Create(ctx, shared.DeepCopy()) }).Should(Succeed())
	server, administrator := asAdministrator(workloadConfig)
	g.Expect(makeCluster(ctx, "template-author", "own", server, administrator)).To(Succeed())
	cluster := &clusterv1.Cluster{}
	g.Expect(management.Get(ctx, client.ObjectKey{Namespace: "template-author", Name: "own"}, cluster)).To(Succeed())
	cluster.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: kind.Spec.Group, Kind: "SharedIdentity", Name: "shared"}
	g.Expect(management.Update(ctx, cluster)).To(Succeed())
	addon := fromConfigMap("template-author", "curious", func(a *addonv1.TalosClusterAddon) { a.Spec.ValuesTemplate = "a: {{ .InfraCluster.spec.secret }}" })
	g.Expect(user.Create(ctx, packedIn("template-author", "curious", charts.Chart{}))).To(Succeed())
	g.Eventually(func() error { return user.Create(ctx, addon) }).Should(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(said(ctx, g, user, addon, addonv1.ReleasedCondition)).To(Equal("ValuesInvalid: valuesTemplate: SharedIdentity shared, to which the Cluster refers, is in no namespace"))
	}).Should(Succeed())
	g.Expect(user.Delete(ctx, addon)).To(Succeed())
}

// TestLongTextsAreTold: of a template, and of a chart. A status in which they do not fit the
// API server refuses.
func TestLongTextsAreTold(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	g.SetDefaultEventuallyTimeout(patience)
	user := addonUser(t, "long-winded")
	server, administrator := asAdministrator(workloadConfig)
	g.Expect(makeCluster(ctx, "long-winded", "own", server, administrator)).To(Succeed())
	failing := fromConfigMap("long-winded", "failing", func(a *addonv1.TalosClusterAddon) { a.Spec.ValuesTemplate = `{{ fail (repeat 9000 "so long ") }}` })
	bragging := fromConfigMap("long-winded", "bragging", nil)
	g.Expect(user.Create(ctx, packedIn("long-winded", "failing", charts.Chart{}))).To(Succeed())
	g.Expect(user.Create(ctx, packedIn("long-winded", "bragging", charts.Chart{
		"Chart.yaml": "apiVersion: v2\nname: demo\nversion: 1.0.0\nappVersion: " + strings.Repeat("x", 1000) + "\n",
	}))).To(Succeed())
	for _, addon := range []*addonv1.TalosClusterAddon{failing, bragging} {
		g.Eventually(func() error { return user.Create(ctx, addon) }).Should(Succeed())
	}
	g.Eventually(func(g Gomega) {
		g.Expect(said(ctx, g, user, failing, addonv1.ReleasedCondition)).To(And(HavePrefix("ValuesInvalid: "), ContainSubstring("so long so long"), HaveSuffix("...")))
		g.Expect(user.Get(ctx, client.ObjectKeyFromObject(bragging), bragging)).To(Succeed())
		g.Expect(conditions.GetReason(bragging, addonv1.ChartAvailableCondition)).To(Equal(addonv1.ChartInvalidReason))
	}).Should(Succeed())
	for _, addon := range []*addonv1.TalosClusterAddon{failing, bragging} {
		g.Expect(user.Delete(ctx, addon)).To(Succeed())
	}
}

// TestTheTokenOfTheManagerIsSentToNobody: whoever may write Secrets may write the kubeconfig
// of a Cluster, and a kubeconfig can name a file of the manager as its token.
func TestTheTokenOfTheManagerIsSentToNobody(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	user := addonUser(t, "thief")
	var mu sync.Mutex
	var told []string
	own := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		told = append(told, r.Header.Get("Authorization"))
		mu.Unlock()
		w.WriteHeader(http.StatusInternalServerError)
	}))
	t.Cleanup(own.Close)
	token := filepath.Join(t.TempDir(), "token")
	g.Expect(os.WriteFile(token, []byte("the-managers"), 0o600)).To(Succeed())
	server := clientcmdapi.Cluster{Server: own.URL, CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate().Raw})}
	g.Expect(makeCluster(ctx, "thief", "trap", server, clientcmdapi.AuthInfo{TokenFile: token})).To(Succeed())
	secret := client.ObjectKey{Namespace: "thief", Name: "trap-kubeconfig"}
	g.Eventually(func() bool { _, read := secretsRead.Load(secret); return read }).WithTimeout(patience).Should(BeTrue(), "the manager has looked at it")

	mended, err := kubeconfigOf("thief", "trap", server, clientcmdapi.AuthInfo{Token: "their-own"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(user.Update(ctx, mended)).To(Succeed(), "the user may write it")
	heard := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(told)
	}
	g.Eventually(heard).WithTimeout(patience).Should(ContainElement("Bearer their-own"))
	g.Expect(heard()).To(HaveEach("Bearer their-own"))
}
