package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	clusterctlv1 "sigs.k8s.io/cluster-api/cmd/clusterctl/api/v1alpha3"
	"sigs.k8s.io/cluster-api/test/framework/bootstrap"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

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

// upgradeSpecs install an older release, and bring it to this one while a cluster
// lives.
func upgradeSpecs() {
	const name = "upgraded"
	describeFailure(name)
	It("rolls nothing", Label("upgrade"), func(ctx SpecContext) {
		if *upgradeFrom == "" {
			Skip("no older release was named: -upgrade-from=<git revision>")
		}
		var tool *stackctl.Tool
		var flavor string
		step(ctx, "upgrade: both releases", func(ctx context.Context) string {
			var repository string
			repository, flavor = buildReleases(ctx)
			tool = newTool(filepath.Join(world.dir, "upgrade"), repository)
			return stackctl.ReleaseVersion + " of " + *upgradeFrom + ", " + newRelease + " of this revision"
		})
		step(ctx, "upgrade: clusterctl init", func(ctx context.Context) string {
			purge(ctx)
			world.tool = tool
			initProviders(ctx, tool)
			return stackctl.ReleaseVersion + " installed"
		})
		step(ctx, "upgrade: create", func(ctx context.Context) string {
			createForUpgrade(ctx, name, flavor)
			return "1 control plane and 1 worker Ready, flavor " + flavor
		})
		before := uids(machinesOf(ctx, name))
		step(ctx, "upgrade: clusterctl upgrade apply", func(ctx context.Context) string {
			world.stopLogs()
			clusterctl.UpgradeManagementClusterAndWait(ctx, clusterctl.UpgradeManagementClusterAndWaitInput{
				ClusterProxy: world.proxy, ClusterctlConfigPath: tool.Config, Contract: contract,
				LogFolder: filepath.Join(world.artifacts, "managers-upgraded"),
			}, world.config.GetIntervals("default", "wait-controllers")...)
			expectRelease(ctx, newRelease)
			return newRelease + " runs"
		})
		step(ctx, "upgrade: nothing rolls", func(ctx context.Context) string {
			awaitWhole(ctx, name, 1, 1)
			Consistently(ctx, func() []string { return uids(machinesOf(ctx, name)) }).WithTimeout(calm).WithPolling(interval).Should(Equal(before))
			awaitWhole(ctx, name, 1, 1)
			return "the same Machines"
		})
		step(ctx, "upgrade: the new release works", func(ctx context.Context) string {
			scale(ctx, name, "machinedeployment", name+"-workers", 2)
			awaitWhole(ctx, name, 1, 2)
			deleteCluster(ctx, name)
			if flavor == "metal" {
				awaitFreeHosts(ctx, name)
			} else {
				awaitNothingLeft(ctx, name)
			}
			Expect(judge(ctx).Refusals()).To(Succeed())
			return "2 workers Ready, then all gone"
		})
	}, SpecTimeout(longTimeout*4))
}

// purge takes all providers away with their kinds and namespaces, also those that
// an earlier "clusterctl delete --all" has left.
func purge(ctx context.Context) {
	GinkgoHelper()
	world.stopLogs()
	_, err := world.tool.Run(ctx, nil, "delete", "--all", "--include-crd", "--include-namespace")
	Expect(err).NotTo(HaveOccurred())
	kubectl(ctx, "default", "delete", "customresourcedefinitions,namespaces", "--selector", "cluster.x-k8s.io/provider", "--ignore-not-found", "--wait")
}

// buildReleases builds the older release and this one, their images in kind, and
// lays both out in one local repository. The flavor is the best that both have.
func buildReleases(ctx context.Context) (repository, flavor string) {
	GinkgoHelper()
	older := filepath.Join(world.dir, "older")
	command(ctx, world.dir, "git", "clone", "--quiet", "--no-checkout", world.source, older)
	command(ctx, older, "git", "checkout", "--quiet", "--detach", *upgradeFrom)
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
	flavor = "container"
	if _, err := os.Stat(filepath.Join(repository, "infrastructure-talos", stackctl.ReleaseVersion, "cluster-template-container.yaml")); err != nil {
		flavor = "metal"
	}
	return repository, flavor
}

// declareSeries adds the series of the pretended new release where its metadata
// does not have it.
func declareSeries(repository string) {
	GinkgoHelper()
	files, err := filepath.Glob(filepath.Join(repository, "*", newRelease, "metadata.yaml"))
	Expect(err).NotTo(HaveOccurred())
	Expect(files).To(HaveLen(3))
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

// createForUpgrade makes a cluster with the older release.
func createForUpgrade(ctx context.Context, name, flavor string) {
	GinkgoHelper()
	if flavor == "metal" {
		addHosts(ctx, name, 3)
		generateMetal(ctx, name, parts.KubernetesVersion, 1, 1)
	} else {
		generate(ctx, name, flavor, parts.KubernetesVersion, 1, 1, nil)
	}
	awaitWhole(ctx, name, 1, 1)
}

// expectRelease wants the managers to be of a release.
func expectRelease(ctx context.Context, version string) {
	GinkgoHelper()
	for _, namespace := range namespaces() {
		deployments := &appsv1.DeploymentList{}
		Expect(world.client.List(ctx, deployments, client.InNamespace(namespace))).To(Succeed())
		Expect(deployments.Items).To(HaveLen(1))
		image := deployments.Items[0].Spec.Template.Spec.Containers[0].Image
		Expect(strings.HasSuffix(image, ":"+version)).To(BeTrue(), image)
	}
}
