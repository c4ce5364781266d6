package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	upstream "sigs.k8s.io/cluster-api/test/e2e"
	"sigs.k8s.io/cluster-api/test/framework"
	"sigs.k8s.io/cluster-api/test/framework/bootstrap"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kind "sigs.k8s.io/kind/pkg/cluster"
	"sigs.k8s.io/yaml"

	stackctl "github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/suites/e2e/audit"
)

const (
	// run names what the suite starts in Docker, and its cluster in kind; bridge is
	// the device of their network.
	run, bridge = "capi-talos-e2e", "capt-e2e"
	// writerImage is the image of cmd/writer here.
	writerImage = "registry.local/writer:v1"
)

// world is what all specs share.
var world struct {
	// source is the repository, dir a folder of this run, artifacts what stays of it.
	source, dir, artifacts string
	built                  parts.Built
	nodes                  *nodes.Nodes
	// kind is the cluster, proxy what upstream's framework knows of it.
	kind   bootstrap.ClusterProvider
	proxy  framework.ClusterProxy
	client client.Client
	// tool is the real clusterctl; upstream's helpers share its configuration.
	tool   *stackctl.Tool
	config *clusterctl.E2EConfig
	rights audit.Rights
	// raised reports whether all of this was there when the first spec began.
	raised bool
	// stopLogs ends what follows the logs of the managers.
	stopLogs context.CancelFunc
	// played are the scenarios that ended well: what judges the whole needs all.
	played map[string]bool
	// results and memory are the tables at the end.
	results []demo.Result
	memory  []memoryOf
}

// raise starts kind and installs the providers.
func raise(ctx context.Context) {
	var err error
	world.played = map[string]bool{}
	world.source, err = parts.SourceDir()
	Expect(err).NotTo(HaveOccurred())
	world.dir, err = os.MkdirTemp("", "capi-talos-e2e-")
	Expect(err).NotTo(HaveOccurred())
	world.artifacts = filepath.Join(world.source, "out", "e2e")
	Expect(os.RemoveAll(world.artifacts)).To(Succeed())
	Expect(os.MkdirAll(world.artifacts, 0o755)).To(Succeed())
	world.built, err = parts.Ensure(ctx, parts.Print(GinkgoWriter),
		slices.Concat(kindstack.Parts(), kindstack.PodParts(), nodes.Parts(), []string{parts.PreviousTalosNodeImages})...)
	Expect(err).NotTo(HaveOccurred())
	world.nodes, err = nodes.Up(ctx, nodes.Options{
		Run: run, Bridge: bridge, Kind: run, Dir: filepath.Join(world.dir, "nodes"), Built: world.built, Output: GinkgoWriter, Previous: true,
	})
	Expect(err).NotTo(HaveOccurred())
	setEnvironment()
	world.config, err = readConfig()
	Expect(err).NotTo(HaveOccurred())

	step(ctx, "kind", startKind)
	step(ctx, "audit log", startAudit)
	step(ctx, "clusterctl init --wait-providers", func(ctx context.Context) string {
		repository := filepath.Join(world.dir, "repository")
		Expect(world.nodes.Pods().Repository(filepath.Join(world.source, "out", "repository"), repository)).To(Succeed())
		Expect(addRemediationFlavor(repository)).To(Succeed())
		world.tool = newTool(filepath.Join(world.dir, "clusterctl"), repository)
		initProviders(ctx, world.tool)
		return "providers installed"
	})
	step(ctx, "network policies", holdToPolicies)
	world.raised = true
}

// setEnvironment tells kind and the libraries of clusterctl, which run in this
// process, what they otherwise take from the user's surroundings.
func setEnvironment() {
	scratch := filepath.Join(world.dir, "tmp")
	Expect(os.MkdirAll(scratch, 0o755)).To(Succeed())
	for name, value := range map[string]string{
		"KIND_EXPERIMENTAL_PROVIDER": "docker", "KIND_EXPERIMENTAL_DOCKER_NETWORK": world.nodes.Network.Name,
		"PATH":            filepath.Dir(world.nodes.Docker.Path) + string(os.PathListSeparator) + os.Getenv("PATH"),
		"XDG_CONFIG_HOME": filepath.Join(world.dir, "home"), "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
		// Upstream's framework leaves a kubeconfig there for each look at a cluster.
		"TMPDIR": scratch,
		// The gate of ClusterClasses in Cluster API's core.
		"CLUSTER_TOPOLOGY": "true",
	} {
		Expect(os.Setenv(name, value)).To(Succeed())
	}
}

// restoreEnvironment puts back what setEnvironment has changed, as the tests that run
// after the suite need it: the folder for temporary files is gone by then.
func restoreEnvironment(former []string) {
	os.Clearenv()
	for _, variable := range former {
		name, value, _ := strings.Cut(variable, "=")
		Expect(os.Setenv(name, value)).To(Succeed())
	}
}

// readConfig reads the file in upstream's format. Upstream's own validation wants
// the kubeadm providers, so it is left out.
func readConfig() (*clusterctl.E2EConfig, error) {
	text, err := os.ReadFile(filepath.Join("config", "talos.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the configuration of the framework: %w", err)
	}
	config := &clusterctl.E2EConfig{}
	if err := yaml.UnmarshalStrict(text, config); err != nil {
		return nil, fmt.Errorf("reading the configuration of the framework: %w", err)
	}
	config.Defaults()
	config.Variables[upstream.KubernetesVersion] = parts.KubernetesVersion
	return config, nil
}

// startKind has upstream's framework start kind, with all images.
func startKind(ctx context.Context) string {
	node, err := kindstack.LoadIntoDocker(ctx, world.nodes, world.built, "kind-node-image")
	Expect(err).NotTo(HaveOccurred())
	others, err := kindstack.LoadIntoDocker(ctx, world.nodes, world.built, append([]string{"capi-core-image", "cert-manager-image"}, kindstack.PodParts()...)...)
	Expect(err).NotTo(HaveOccurred())
	images := slices.Concat(others, makeImages(ctx, world.source), []string{
		makeProgram(ctx, ".", "writer", writerImage), makeProgram(ctx, filepath.Join(world.source, "test", "stack"), "reach", reachImage),
	})
	world.kind = bootstrap.CreateKindBootstrapClusterAndLoadImages(ctx, bootstrap.CreateKindBootstrapClusterAndLoadImagesInput{
		Name: run, CustomNodeImage: node[0], Images: mustLoad(images), LogFolder: filepath.Join(world.artifacts, "kind"),
	})
	newProxy()
	world.client = world.proxy.GetClient()
	Expect(kindstack.Reach(ctx, world.nodes, run)).To(Succeed())
	return fmt.Sprintf("%d images loaded", len(images))
}

// newProxy gives upstream's framework another connection to kind. What follows the
// logs of managers ends with its connection.
func newProxy() {
	world.proxy = framework.NewClusterProxy(run, world.kind.GetKubeconfigPath(), scheme(), framework.WithMachineLogCollector(collector{}))
}

func mustLoad(names []string) []clusterctl.ContainerImage {
	images := make([]clusterctl.ContainerImage, 0, len(names))
	for _, name := range names {
		images = append(images, clusterctl.ContainerImage{Name: name, LoadBehavior: clusterctl.MustLoadImage})
	}
	return images
}

// scheme knows what upstream's framework reads, and our kinds.
func scheme() *runtime.Scheme {
	all, err := demo.Scheme()
	Expect(err).NotTo(HaveOccurred())
	framework.TryAddDefaultSchemes(all)
	Expect(policyv1.AddToScheme(all)).To(Succeed())
	return all
}

// makeImages builds the managers' images as a release does, and returns the names of
// those that the source has. overrides are variables of make.
func makeImages(ctx context.Context, source string, overrides ...string) []string {
	GinkgoHelper()
	output := command(ctx, source, "make", append([]string{"--no-print-directory", "images"}, overrides...)...)
	registry, version := "ghcr.io/capi-talos", stackctl.ReleaseVersion
	for _, override := range overrides {
		if value, found := strings.CutPrefix(override, "REGISTRY="); found {
			registry = value
		}
		if value, found := strings.CutPrefix(override, "VERSION="); found {
			version = value
		}
	}
	var names []string
	ours, err := parts.Providers()
	Expect(err).NotTo(HaveOccurred())
	for _, provider := range ours {
		if _, err := os.Stat(filepath.Join(source, "cmd", provider.Folder)); err != nil {
			Expect(source).NotTo(Equal(world.source), provider.Folder)
			continue // An older release has fewer.
		}
		name := registry + "/" + path.Base(provider.Image()) + ":" + version
		Expect(output).To(ContainSubstring(name), "make images names what it builds")
		names = append(names, name)
	}
	return names
}

// makeProgram builds the image of one of our programs, which lies below cmd of a module.
func makeProgram(ctx context.Context, module, program, image string) string {
	GinkgoHelper()
	binary := filepath.Join(world.dir, program)
	command(ctx, module, "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-o", binary, "./cmd/"+program)
	name, err := kindstack.LoadProgram(ctx, world.nodes, binary, filepath.Join(world.dir, program+"-image"), image)
	Expect(err).NotTo(HaveOccurred())
	return name
}

// command runs a program and returns what it says.
func command(ctx context.Context, dir, name string, args ...string) string {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // The callers name programs.
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s %s: %s", name, strings.Join(args, " "), output)
	return string(output)
}

// newTool configures clusterctl for a repository.
func newTool(dir, repository string) *stackctl.Tool {
	GinkgoHelper()
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	tool, err := kindstack.NewClusterctl(dir, world.built, world.kind.GetKubeconfigPath(), repository)
	Expect(err).NotTo(HaveOccurred())
	tool.Env = append(tool.Env, "CLUSTER_TOPOLOGY=true")
	return tool
}

// initProviders has upstream's framework run clusterctl init and follow the logs of
// the managers.
func initProviders(ctx context.Context, tool *stackctl.Tool) {
	GinkgoHelper()
	newProxy()
	// Logs are followed for longer than the spec that installs.
	var logs context.Context
	logs, world.stopLogs = context.WithCancel(context.WithoutCancel(ctx))
	clusterctl.InitManagementClusterAndWatchControllerLogs(logs, clusterctl.InitManagementClusterAndWatchControllerLogsInput{
		ClusterProxy: world.proxy, ClusterctlConfigPath: tool.Config, LogFolder: filepath.Join(world.artifacts, "managers"),
		CoreProvider:       "cluster-api:" + parts.ClusterAPIVersion,
		BootstrapProviders: tool.Arguments("bootstrap"), ControlPlaneProviders: tool.Arguments("control-plane"),
		InfrastructureProviders: tool.Arguments("infrastructure"), AddonProviders: tool.Arguments("addon"),
		// It knows managers that serve metrics without authentication only.
		DisableMetricsCollection: true,
	}, world.config.GetIntervals("default", "wait-controllers")...)
	Expect(kindstack.RereadWebhooks(ctx, world.proxy.GetRESTConfig())).To(Succeed())
}

// kindNode runs a program in the node of kind.
func kindNode(ctx context.Context, args ...string) (string, error) {
	out, err := world.nodes.Docker.Docker(ctx, append([]string{"exec", kindstack.NodeContainer(run)}, args...)...)
	return string(out), err
}

// startAudit has the API server of kind write down what our managers ask for.
// Upstream's framework cannot give kind such a configuration, so it is changed
// afterwards, before there is any manager.
func startAudit(ctx context.Context) string {
	components, err := filepath.Glob(filepath.Join(world.source, "out", "repository", "*", stackctl.ReleaseVersion, "*-components.yaml"))
	Expect(err).NotTo(HaveOccurred())
	var manifests [][]byte
	for _, file := range components {
		text, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		manifests = append(manifests, text)
	}
	world.rights, err = audit.ReadRights(manifests...)
	Expect(err).NotTo(HaveOccurred())
	Expect(world.rights.Managers).To(HaveLen(len(namespaces())))

	const apiServer = "/etc/kubernetes/manifests/kube-apiserver.yaml"
	manifest, err := kindNode(ctx, "cat", apiServer)
	Expect(err).NotTo(HaveOccurred())
	changed, err := audit.Enable([]byte(manifest))
	Expect(err).NotTo(HaveOccurred())
	_, err = kindNode(ctx, "mkdir", "-p", filepath.Dir(audit.PolicyFile), audit.LogFolder)
	Expect(err).NotTo(HaveOccurred())
	copyIntoKind(ctx, audit.PolicyFile, []byte(audit.Policy(world.rights.Users())))
	// The kubelet must not see half of it.
	copyIntoKind(ctx, "/etc/kubernetes/kube-apiserver.new", changed)
	_, err = kindNode(ctx, "mv", "/etc/kubernetes/kube-apiserver.new", apiServer)
	Expect(err).NotTo(HaveOccurred())
	Eventually(ctx, func(g Gomega) {
		pod := &corev1.Pod{}
		key := client.ObjectKey{Namespace: "kube-system", Name: "kube-apiserver-" + kindstack.NodeContainer(run)}
		g.Expect(world.client.Get(ctx, key, pod)).To(Succeed())
		g.Expect(pod.Spec.Containers[0].Command).To(ContainElement(ContainSubstring("--audit-policy-file")))
		g.Expect(pod.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))))
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
	return fmt.Sprintf("%d rights of %d managers", len(world.rights.Grants), len(world.rights.Managers))
}

// copyIntoKind writes a file in the node of kind.
func copyIntoKind(ctx context.Context, path string, content []byte) {
	GinkgoHelper()
	file := filepath.Join(world.dir, filepath.Base(path))
	Expect(os.WriteFile(file, content, 0o600)).To(Succeed())
	_, err := world.nodes.Docker.Docker(ctx, "cp", file, kindstack.NodeContainer(run)+":"+path)
	Expect(err).NotTo(HaveOccurred())
}

// takeDown ends everything. Logs stay in out/e2e.
func takeDown(ctx SpecContext) {
	printTables()
	failed := failedBefore || !world.raised
	var failures []error
	if world.stopLogs != nil {
		world.stopLogs()
	}
	if world.kind != nil && failed {
		failures = append(failures, kind.NewProvider().CollectLogs(run, filepath.Join(world.artifacts, "kind")))
	}
	if world.nodes != nil && world.nodes.Fleet != nil && failed {
		failures = append(failures, world.nodes.Fleet.CollectLogs(ctx, filepath.Join(world.artifacts, "machines")))
	}
	if world.proxy != nil {
		world.proxy.Dispose(ctx)
	}
	if world.kind != nil {
		world.kind.Dispose(ctx)
	}
	if world.nodes != nil {
		failures = append(failures, world.nodes.Down(ctx))
	}
	failures = append(failures, os.RemoveAll(world.dir))
	Expect(errors.Join(failures...)).To(Succeed())
}

// play notes that a scenario has ended well.
func play(scenario string) { world.played[scenario] = true }

// scenarios are those that the judgement of the whole needs.
func scenarios() []string { return []string{"machines", "pods", "both"} }

// missing are the scenarios that were not played.
func missing() []string {
	all := map[string]bool{}
	for _, name := range scenarios() {
		all[name] = true
	}
	maps.DeleteFunc(all, func(name string, _ bool) bool { return world.played[name] })
	return slices.Sorted(maps.Keys(all))
}
