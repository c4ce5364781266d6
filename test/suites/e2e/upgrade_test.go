package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/test/framework/bootstrap"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	stackctl "github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

const (
	// newRelease is what this revision is called when the older one is
	// stackctl.ReleaseVersion.
	newRelease = "v0.2.0"
	// contract is Cluster API's, of both.
	contract = "v1beta2"
	// calm is for how long nothing may happen after an upgrade.
	calm = 2 * time.Minute
)

// lived is a cluster that lives through the upgrade.
type lived struct {
	// name is that of the cluster and of its namespace.
	name, flavor string
	// before are the Machines and what they ran in before the upgrade.
	before []string
}

// upgradeSpecs install an older release, and bring it to this one while a cluster of
// each flavor lives that the older one has.
func upgradeSpecs() {
	const pods, metal = "upgraded", "upgraded-metal"
	describeFailure(pods, metal)
	leaveNothing(pods, metal)
	It("rolls nothing", Label("upgrade"), func(ctx SpecContext) {
		if *upgradeFrom == "" {
			Skip("no older release was named: -upgrade-from=<git revision>")
		}
		var tool *stackctl.Tool
		clusters := []*lived{{name: metal, flavor: "metal"}}
		step(ctx, "upgrade: both releases", func(ctx context.Context) string {
			repository, hasPods := buildReleases(ctx)
			if hasPods {
				clusters = append(clusters, &lived{name: pods, flavor: "container"})
			}
			tool = newTool(filepath.Join(world.dir, "upgrade"), repository)
			return stackctl.ReleaseVersion + " of " + *upgradeFrom + ", " + newRelease + " of this revision"
		})
		step(ctx, "upgrade: clusterctl init", func(ctx context.Context) string {
			purge(ctx)
			world.tool = tool
			initProviders(ctx, tool)
			return stackctl.ReleaseVersion + " installed"
		})
		for _, cluster := range clusters {
			step(ctx, "upgrade: create, flavor "+cluster.flavor, func(ctx context.Context) string {
				cluster.createForUpgrade(ctx)
				return "1 control plane and 1 worker Ready"
			})
		}
		var upgraded time.Time
		step(ctx, "upgrade: clusterctl upgrade apply", func(ctx context.Context) string {
			for _, cluster := range clusters {
				cluster.before = livesOf(ctx, cluster.name)
			}
			world.stopLogs()
			clusterctl.UpgradeManagementClusterAndWait(ctx, clusterctl.UpgradeManagementClusterAndWaitInput{
				ClusterProxy: world.proxy, ClusterctlConfigPath: tool.Config, Contract: contract,
				LogFolder: filepath.Join(world.artifacts, "managers-upgraded"),
			}, world.config.GetIntervals("default", "wait-controllers")...)
			awaitRelease(ctx, newRelease)
			upgraded = time.Now()
			return newRelease + " runs"
		})
		step(ctx, "upgrade: nothing rolls", func(ctx context.Context) string {
			for _, cluster := range clusters {
				awaitWhole(ctx, cluster.name, 1, 1)
			}
			Consistently(ctx, func(g Gomega) {
				for _, cluster := range clusters {
					g.Expect(livesOf(ctx, cluster.name)).To(Equal(cluster.before), cluster.name)
				}
			}).WithTimeout(calm).WithPolling(interval).Should(Succeed())
			for _, cluster := range clusters {
				awaitWhole(ctx, cluster.name, 1, 1)
				expectConditionsOfThisRelease(ctx, cluster.name)
			}
			return "the same Machines, not started again, and no condition of the older release"
		})
		step(ctx, "upgrade: the new release works", func(ctx context.Context) string {
			for _, cluster := range clusters {
				cluster.growAndEnd(ctx)
			}
			// Managers that go are refused what they ask for without their roles.
			Expect(judge(ctx, upgraded).Refusals()).To(Succeed())
			return "2 workers Ready, then all gone"
		})
	}, SpecTimeout(longTimeout*6))
}

// purge takes all providers away with their kinds and namespaces, also those that an
// earlier "clusterctl delete --all" has left. clusterctl deletes no kinds here: it fails
// when it lists the objects of all kinds for the next provider while some of them go.
func purge(ctx context.Context) {
	GinkgoHelper()
	world.stopLogs()
	_, err := world.tool.Run(ctx, nil, "delete", "--all", "--include-namespace")
	Expect(err).NotTo(HaveOccurred())
	kubectl(ctx, "default", "delete", "customresourcedefinitions,namespaces,clusterroles,clusterrolebindings", "--selector", "cluster.x-k8s.io/provider",
		"--ignore-not-found", "--wait", "--timeout="+longTimeout.String())
}

// buildReleases builds the older release and this one, their images in kind, and
// lays both out in one local repository. It reports whether the older one has machines
// in Pods, too.
func buildReleases(ctx context.Context) (repository string, hasPods bool) {
	GinkgoHelper()
	older := filepath.Join(world.dir, "older")
	Expect(os.MkdirAll(older, 0o755)).To(Succeed())
	// No clone: the revision may be on no branch that a clone would take.
	command(ctx, world.source, "git", "archive", "--output", older+".tar", *upgradeFrom)
	command(ctx, older, "tar", "-xf", older+".tar")
	const olderRegistry, newRegistry, out = "REGISTRY=registry.local/older", "REGISTRY=registry.local/newer", "OUT=out/e2e-newer"
	images := makeImages(ctx, older, olderRegistry, "VERSION="+stackctl.ReleaseVersion)
	images = append(images, makeImages(ctx, world.source, newRegistry, "VERSION="+newRelease, out)...)
	command(ctx, older, "make", "local-repository", olderRegistry, "VERSION="+stackctl.ReleaseVersion)
	command(ctx, world.source, "make", "local-repository", newRegistry, "VERSION="+newRelease, out)
	Expect(bootstrap.LoadImagesToKindCluster(ctx, bootstrap.LoadImagesToKindClusterInput{Name: run, Images: mustLoad(images)})).To(Succeed())

	both := filepath.Join(world.dir, "both-releases")
	for _, from := range []string{filepath.Join(older, "out", "repository"), filepath.Join(world.source, "out", "e2e-newer", "repository")} {
		Expect(os.CopyFS(both, os.DirFS(from))).To(Succeed())
	}
	declareSeries(both)
	repository = filepath.Join(world.dir, "upgrade-repository")
	Expect(world.nodes.Pods().Repository(both, repository)).To(Succeed())
	_, err := os.Stat(filepath.Join(repository, "infrastructure-talos", stackctl.ReleaseVersion, "cluster-template-container.yaml"))

	return repository, err == nil
}

// declareSeries adds the series of the pretended new release where its metadata
// does not have it.
func declareSeries(repository string) {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(repository, "*", newRelease, "metadata.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		text, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		metadata := &clusterctlv1.Metadata{}
		Expect(yaml.UnmarshalStrict(text, metadata)).To(Succeed())
		const minor = 2
		declared := false
		for _, series := range metadata.ReleaseSeries {
			declared = declared || series.Major == 0 && series.Minor == minor
		}
		if !declared {
			metadata.ReleaseSeries = append(metadata.ReleaseSeries, clusterctlv1.ReleaseSeries{Minor: minor, Contract: contract})
		}
		text, err = yaml.Marshal(metadata)
		Expect(err).NotTo(HaveOccurred())
		Expect(os.WriteFile(file, text, 0o600)).To(Succeed())
	}
}

// createForUpgrade makes the cluster with the older release.
func (l *lived) createForUpgrade(ctx context.Context) {
	GinkgoHelper()
	if l.flavor == "metal" {
		addHosts(ctx, l.name, 3)
		generateMetal(ctx, l.name, parts.KubernetesVersion, 1, 1)
	} else {
		generate(ctx, l.name, l.flavor, parts.KubernetesVersion, 1, 1, nil)
	}
	awaitWhole(ctx, l.name, 1, 1)
}

// growAndEnd has the new release scale and delete the cluster.
func (l *lived) growAndEnd(ctx context.Context) {
	GinkgoHelper()
	scale(ctx, l.name, "machinedeployment", l.name+"-workers", 2)
	awaitWhole(ctx, l.name, 1, 2)
	deleteCluster(ctx, l.name)
	if l.flavor == "metal" {
		awaitFreeHosts(ctx, l.name)
	} else {
		awaitNothingLeft(ctx, l.name)
	}
}

// expectConditionsOfThisRelease: what a condition was called in an older release is gone
// from status, and what it is called now is there.
func expectConditionsOfThisRelease(ctx context.Context, name string) {
	GinkgoHelper()
	list := &infrav1.TalosMachineList{}
	Expect(world.client.List(ctx, list, client.InNamespace(name))).To(Succeed())
	Expect(list.Items).NotTo(BeEmpty())
	for _, machine := range list.Items {
		types := map[string]bool{}
		for _, condition := range machine.Status.Conditions {
			types[condition.Type] = true
		}
		for _, former := range []string{"HostClaimed", "HostRunning", "IdentityUnverified"} {
			Expect(types).NotTo(HaveKey(former), "TalosMachine %s/%s", name, machine.Name)
		}
		for _, now := range []string{infrav1.AllocatedCondition, infrav1.RunningCondition} {
			Expect(types).To(HaveKey(now), "TalosMachine %s/%s", name, machine.Name)
		}
	}
}

// awaitRelease waits until the managers are of a release, and those of another are
// gone.
func awaitRelease(ctx context.Context, version string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		for _, namespace := range namespacesOfOlderReleases() {
			pods := &corev1.PodList{}
			g.Expect(world.client.List(ctx, pods, client.InNamespace(namespace))).To(Succeed())
			g.Expect(pods.Items).To(HaveLen(1), namespace)
			g.Expect(pods.Items[0].Spec.Containers[0].Image).To(HaveSuffix(":" + version))
			g.Expect(pods.Items[0].Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))))
		}
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
}

// livesOf are the Machines of a cluster with the lives of what they run in: a Pod and
// the starts of its container, or when a machine in Docker was switched on.
func livesOf(ctx context.Context, name string) []string {
	GinkgoHelper()
	var lives []string
	for _, machine := range machinesOf(ctx, name) {
		life := ""
		infraMachine := &infrav1.TalosMachine{}
		Expect(world.client.Get(ctx, client.ObjectKey{Namespace: name, Name: machine.Spec.InfrastructureRef.Name}, infraMachine)).To(Succeed())
		if infraMachine.Spec.Container != nil {
			pod := podOf(ctx, machine)
			life = fmt.Sprintf("Pod %s, %d restarts", pod.UID, pod.Status.ContainerStatuses[0].RestartCount)
		} else {
			started, err := world.nodes.Fleet.Started(ctx, fleet.Host{Name: hostOf(ctx, name, infraMachine.Name)})
			Expect(err).NotTo(HaveOccurred())
			life = started
		}
		lives = append(lives, fmt.Sprintf("Machine %s, %s", machine.UID, life))
	}
	slices.Sort(lives)
	return lives
}

// hostOf is the host that a TalosMachine has claimed.
func hostOf(ctx context.Context, namespace, infraMachine string) string {
	GinkgoHelper()
	hosts := &infrav1.TalosHostList{}
	Expect(world.client.List(ctx, hosts, client.InNamespace(namespace))).To(Succeed())
	index := slices.IndexFunc(hosts.Items, func(host infrav1.TalosHost) bool { return host.Spec.ConsumerRef.Name == infraMachine })
	Expect(index).NotTo(BeNumerically("<", 0), "the host of TalosMachine %s", infraMachine)
	return hosts.Items[index].Name
}

func TestTheNewReleaseHasASeriesBesideThatOfTheOlderOne(t *testing.T) {
	RegisterTestingT(t)
	metadata, err := os.ReadFile(filepath.Join("..", "..", "..", "metadata.yaml"))
	Expect(err).NotTo(HaveOccurred())
	repository := t.TempDir()
	for _, provider := range []string{"bootstrap-talos", "control-plane-talos", "infrastructure-talos"} {
		folder := filepath.Join(repository, provider, newRelease)
		Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
		Expect(os.WriteFile(filepath.Join(folder, "metadata.yaml"), metadata, 0o600)).To(Succeed())
	}
	declareSeries(repository)
	// Twice is as good as once.
	declareSeries(repository)
	declared := &clusterctlv1.Metadata{}
	text, err := os.ReadFile(filepath.Join(repository, "infrastructure-talos", newRelease, "metadata.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(yaml.UnmarshalStrict(text, declared)).To(Succeed())
	for _, release := range []string{stackctl.ReleaseVersion, newRelease} {
		parsed, err := version.ParseSemantic(release)
		Expect(err).NotTo(HaveOccurred())
		Expect(declared.GetReleaseSeriesForVersion(parsed)).To(HaveField("Contract", contract), release)
	}
	Expect(declared.ReleaseSeries).To(HaveLen(2))
}
