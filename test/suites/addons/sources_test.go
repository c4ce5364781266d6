package addons

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// interval is how often a range of versions is resolved here, in seconds.
const interval = 3

// demo is a chart with one ConfigMap.
var demo = charts.Chart{"templates/a.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: demo}
data: {chart: "{{ .Chart.Version }}"}
`}

// tellsChart reads which chart has made the ConfigMap of the demo chart.
func tellsChart(ctx context.Context, namespace string) func() (string, error) {
	return func() (string, error) {
		found := &corev1.ConfigMap{}
		err := workload.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "demo"}, found)

		return found.Data["chart"], err
	}
}

func setVersion(addon *addonv1.TalosClusterAddon, version string) {
	if source := &addon.Spec.Source; source.Registry.URL != "" {
		source.Registry.Version = version
	} else {
		source.Repository.Version = version
	}
}

func TestAReleaseFollowsItsSource(t *testing.T) {
	t.Parallel()
	onEachShelf(t, func(t *testing.T, kind string, shelf shelf) { //nolint:thelper // It is the test.
		g, ctx, namespace := withPatience(t), t.Context(), "follows-"+kind
		makeCluster(t, namespace)
		for _, version := range []string{"1.0.0", "1.1.0", "2.0.0+build.1"} {
			shelf.publish(t, demo.Pack(version))
		}
		create(t, shelf.secrets(namespace, password)...)
		addon := addonOf(namespace, "demo", shelf.source("demo", "1.0.0"))
		create(t, addon)
		g.Eventually(deployed(ctx, addon)).Should(Equal(isReady("1.0.0")))
		g.Eventually(chartOf(ctx, addon)).Should(Equal("True Available: demo 1.0.0"))

		edit(t, addon, func(a *addonv1.TalosClusterAddon) {
			setVersion(a, "1.x")
			a.Spec.Source.IntervalSeconds = ptr.To(int32(interval))
		})
		g.Eventually(deployed(ctx, addon)).Should(Equal(isReady("1.1.0")))
		shelf.publish(t, demo.Pack("2.1.0"))
		shelf.publish(t, demo.Pack("1.2.0"))
		g.Eventually(deployed(ctx, addon)).Should(Equal(isReady("1.2.0")), "it is resolved again, by itself")
		g.Expect(tellsChart(ctx, namespace)()).To(Equal("1.2.0"))

		edit(t, addon, func(a *addonv1.TalosClusterAddon) { setVersion(a, "2.0.0+build.1") })
		g.Eventually(deployed(ctx, addon)).Should(Equal(isReady("2.0.0+build.1")))
		shelf.publish(t, charts.Chart{"templates/a.yaml": strings.Replace(demo["templates/a.yaml"], `{{ .Chart.Version }}`, "another", 1)}.Pack("2.0.0+build.1"))
		g.Eventually(tellsChart(ctx, namespace)).Should(Equal("another"), "what was published anew under the same version is rolled out")
	})
}

// large is a chart whose archive is larger than 16 MiB.
func large() charts.Chart {
	chart, random := charts.Chart{}, rand.NewChaCha8([32]byte{})
	for i := range 5 {
		content := make([]byte, 4<<20)
		_, _ = random.Read(content)
		chart[fmt.Sprint("files/", i)] = string(content)
	}

	return chart
}

func TestWhyASourceHasNoChart(t *testing.T) {
	t.Parallel()
	onEachShelf(t, func(t *testing.T, kind string, shelf shelf) { //nolint:thelper // It is the test.
		shelf.publish(t, demo.Pack("1.0.0"))
		shelf.publish(t, large().Pack("3.0.0"))
		other := newServer(t, http.NotFoundHandler())
		for name, tt := range map[string]struct {
			password       string
			chart, version string
			ca             []byte
			change         func(source *addonv1.AddonSource)
			// want is how the condition begins, and wayOut what its message says as well.
			want, wayOut string
		}{
			"a-wrong-password": {password: "battery staple", want: "False SourceUnauthorized: ", wayOut: "check Secret login"},
			"nobody-logs-in": {
				change: func(s *addonv1.AddonSource) {
					s.Repository.CredentialsSecretName, s.Registry.CredentialsSecretName = "", ""
				},
				want: "False SourceUnauthorized: ", wayOut: "name a Secret in credentialsSecretName",
			},
			"no-secret": {
				change: func(s *addonv1.AddonSource) {
					if s.Registry.URL != "" {
						s.Registry.CredentialsSecretName = "nobody"
					} else {
						s.Repository.CredentialsSecretName = "nobody"
					}
				},
				want: "False SecretInvalid: ", wayOut: "there is no Secret nobody",
			},
			"no-ca": {
				change: func(s *addonv1.AddonSource) { s.Repository.CASecretName, s.Registry.CASecretName = "", "" },
				want:   "False SourceUnreachable: ", wayOut: "is not trusted: x509: certificate signed by unknown authority; name a Secret in caSecretName",
			},
			"another-ca": {ca: other.ca, want: "False SourceUnreachable: ", wayOut: "check Secret ca"},
			"no-chart":   {chart: "other", want: "False SourceNotFound: ", wayOut: "other"},
			"no-version": {version: "9.x", want: "False VersionNotFound: ", wayOut: "none of its 2 versions is 9.x"},
			"too-large":  {version: "3.x", want: "False ChartInvalid: ", wayOut: "larger than 16 MiB"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				g, ctx, namespace := withPatience(t), t.Context(), name+"-"+kind
				makeNamespace(t, namespace)
				given := shelf.secrets(namespace, orElse(tt.password, password))
				given[1].Data["ca.crt"] = []byte(orElse(string(tt.ca), string(shelf.at().ca)))
				create(t, given...)
				addon := addonOf(namespace, "demo", shelf.source(orElse(tt.chart, "demo"), orElse(tt.version, "1.x")))
				if tt.change != nil {
					tt.change(&addon.Spec.Source)
				}
				create(t, addon)
				g.Eventually(chartOf(ctx, addon)).Should(And(HavePrefix(tt.want), ContainSubstring(tt.wayOut), Not(ContainSubstring(password))))
				if tt.password != "" {
					g.Expect(chartOf(ctx, addon)()).NotTo(ContainSubstring(tt.password))
					g.Expect(management.Update(ctx, shelf.secrets(namespace, password)[0])).To(Succeed())
					g.Eventually(chartOf(ctx, addon)).Should(Equal("True Available: demo 1.0.0"), "the right password is used at once")
				}
			})
		}
	})
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}

	return text
}

func TestASourceThatIsGoneIsWaitedFor(t *testing.T) {
	t.Parallel()
	onEachShelf(t, func(t *testing.T, kind string, shelf shelf) { //nolint:thelper // It is the test.
		g, ctx, namespace := withPatience(t), t.Context(), "gone-"+kind
		makeCluster(t, namespace)
		shelf.publish(t, demo.Pack("1.0.0"))
		create(t, shelf.secrets(namespace, password)...)
		addon := addonOf(namespace, "demo", shelf.source("demo", "1.x"))
		addon.Spec.Source.IntervalSeconds = ptr.To(int32(interval))
		create(t, addon)
		g.Eventually(deployed(ctx, addon)).Should(Equal(isReady("1.0.0")))

		shelf.at().running.Close()
		g.Eventually(chartOf(ctx, addon)).Should(And(HavePrefix("False SourceUnreachable: "), ContainSubstring("connection refused")))
		g.Expect(deployed(ctx, addon)()).To(Equal(isReady("1.0.0")), "what is deployed stays")

		shelf.at().start(t)
		shelf.publish(t, demo.Pack("1.1.0"))
		g.Eventually(deployed(ctx, addon)).Should(Equal(isReady("1.1.0")))
		g.Expect(chartOf(ctx, addon)()).To(Equal("True Available: demo 1.1.0"))
	})
}

// TestThePasswordGoesToItsServerAlone: the server sends whoever wants an archive to another
// one, at the same address and another port.
func TestThePasswordGoesToItsServerAlone(t *testing.T) {
	t.Parallel()
	onEachShelf(t, func(t *testing.T, kind string, shelf shelf) { //nolint:thelper // It is the test.
		g, ctx, namespace := withPatience(t), t.Context(), "redirected-"+kind
		archive, told := demo.Pack("1.0.0"), make(chan string, 64)
		shelf.publish(t, archive)
		shelf.at().elsewhere.Store(shelf.at().beside(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			told <- r.Header.Get("Authorization")
			_, _ = w.Write(archive)
		})))
		makeNamespace(t, namespace)
		create(t, shelf.secrets(namespace, password)...)
		addon := addonOf(namespace, "demo", shelf.source("demo", "1.x"))
		create(t, addon)
		g.Eventually(chartOf(ctx, addon)).Should(Equal("True Available: demo 1.0.0"))
		g.Expect(told).To(Receive(BeEmpty()))
		g.Expect(told).NotTo(Receive(), "one request was enough")
	})
}

func TestHTTPIsRefusedUnlessItIsAllowed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for kind, shelf := range map[string]shelf{
		"registry":   &ociRegistry{newPlainServer(t, registryApp(t))},
		"repository": &repository{newPlainServer(t, withPassword(filesOf(folder))), folder},
	} {
		t.Run(kind, func(t *testing.T) {
			g, ctx, namespace := withPatience(t), t.Context(), "plain-"+kind
			shelf.publish(t, demo.Pack("1.0.0"))
			before := shelf.at().asked.Load()
			makeNamespace(t, namespace)
			addon := addonOf(namespace, "demo", shelf.source("demo", "1.x"))
			from := &addon.Spec.Source
			from.Repository.CASecretName, from.Registry.CASecretName = "", ""
			// Nothing but HTTPS has a password: admission sees to that.
			from.Repository.CredentialsSecretName, from.Registry.CredentialsSecretName = "", ""
			if from.Repository.URL != "" {
				g.Expect(management.Create(ctx, addon)).To(MatchError(ContainSubstring("set insecure: AllowHTTP")))
				from.Repository.Insecure = addonv1.AllowHTTP
				create(t, addon)
			} else {
				create(t, addon)
				g.Eventually(chartOf(ctx, addon)).Should(And(HavePrefix("False SourceRefused: "), ContainSubstring("set insecure: AllowHTTP")))
				g.Expect(shelf.at().asked.Load()).To(Equal(before), "nothing was asked")
				edit(t, addon, func(a *addonv1.TalosClusterAddon) { a.Spec.Source.Registry.Insecure = addonv1.AllowHTTP })
			}
			g.Eventually(chartOf(ctx, addon)).Should(And(HavePrefix("False SourceUnauthorized: "), ContainSubstring("credentialsSecretName")), "it was asked, and wants a password")
			g.Expect(shelf.at().asked.Load()).To(BeNumerically(">", before))
		})
	}
}
