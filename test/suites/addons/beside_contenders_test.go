package addons

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/support/apiserver"
	"github.com/capi-talos/capi-talos/test/support/charts"
)

// ours and caaph are the providers that are measured.
const ours, caaph = "ours", "caaph"

// greeter is a chart of a value, and of something that runs, for which nobody waits: an API
// server alone runs nothing.
var greeter = charts.Chart{"templates/greeting.yaml": `apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}"}
data: {greeting: "{{ .Values.greeting }}"}
`, "templates/greeter.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ .Release.Name }}"}
spec:
  selector: {matchLabels: {app: "{{ .Release.Name }}"}}
  template:
    metadata: {labels: {app: "{{ .Release.Name }}"}}
    spec:
      containers:
      - {name: greeter, image: "registry.invalid/greeter:v1", env: [{name: GREETING, value: "{{ .Values.greeting }}"}]}
`}

// contender is a provider that is measured. It runs with the flags that it has by default,
// but for where it listens.
type contender struct {
	name string
	// program is its manager, and arguments what it needs beside those of all managers.
	program   string
	arguments []string
	// addon is the kind that a user makes, and release the one that the provider makes of it
	// for each Cluster. Both are of API group addons.cluster.x-k8s.io.
	addon, release string
	// manifest is an add-on for all Clusters, with REGISTRY and NAMESPACE in place of the
	// registry of the chart and the namespace of its releases. It greets with "hello", and
	// "hi" after the merge patch.
	manifest, patch string
}

// contenders are both, with their managers.
func contenders(ourManager, theirManager string) []contender {
	return []contender{
		{
			name: ours, program: ourManager, arguments: []string{"--allow-local-sources"},
			addon: "TalosClusterAddon", release: "TalosClusterAddonRelease",
			// Not to wait is what CAAPH does by default.
			manifest: `apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: TalosClusterAddon
metadata: {namespace: fleet, name: demo}
spec:
  matchAll: true
  source:
    registry: {url: "oci://REGISTRY/charts/demo", version: 1.0.0, credentialsSecretName: login, caSecretName: ca}
  release: {namespace: NAMESPACE, wait: None}
  values: {greeting: hello}
`,
			patch: `{"spec": {"values": {"greeting": "hi"}}}`,
		},
		{
			name: caaph, program: theirManager,
			addon: "HelmChartProxy", release: "HelmReleaseProxy",
			// The timeout is what its webhook sets.
			manifest: `apiVersion: addons.cluster.x-k8s.io/v1alpha1
kind: HelmChartProxy
metadata: {namespace: fleet, name: demo}
spec:
  clusterSelector: {}
  repoURL: oci://REGISTRY/charts
  chartName: demo
  version: 1.0.0
  releaseName: demo
  namespace: NAMESPACE
  credentials: {secret: {namespace: fleet, name: login}, key: .dockerconfigjson}
  tlsConfig: {caSecret: {namespace: fleet, name: ca}}
  options: {timeout: 10m0s}
  valuesTemplate: "greeting: hello"
`,
			patch: `{"spec": {"valuesTemplate": "greeting: hi"}}`,
		},
	}
}

// buildOurs builds our manager into a folder, with the flags of make build. Those of CAAPH
// are the same.
func buildOurs(t *testing.T, folder string) string {
	t.Helper()
	program := filepath.Join(folder, "addons")
	command := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "./cmd/addons") //nolint:gosec // Into a folder of the test.
	command.Dir, command.Env = apiserver.Repository(), append(os.Environ(), "CGO_ENABLED=0")
	said, err := command.CombinedOutput()
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), string(said))

	return program
}
