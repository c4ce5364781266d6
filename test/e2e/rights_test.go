package e2e

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"

	"github.com/capi-talos/capi-talos/test/e2e/audit"
	"github.com/capi-talos/capi-talos/test/stack/kindstack"
)

// rightsSpecs judge by the audit log of all that was done before.
func rightsSpecs() {
	It("are enough for all of it, and none is there for nothing", Label("rights"), func(ctx SpecContext) {
		verdict := judge(ctx)
		file, err := os.Create(filepath.Join(world.artifacts, "rights.md"))
		Expect(err).NotTo(HaveOccurred())
		Expect(verdict.Table(file)).To(Succeed())
		Expect(file.Close()).To(Succeed())
		Expect(verdict.Rows).To(ContainElement(HaveField("Used", BeNumerically(">", 0))), "the log has nothing of our managers")
		Expect(verdict.Refusals()).To(Succeed())
		if left := missing(); len(left) > 0 {
			Skip("what is used can be told only after all scenarios, and these were not played: " + strings.Join(left, ", "))
		}
		Expect(verdict.Needless()).To(Succeed())
	}, SpecTimeout(timeout))
}

// judge reads the audit log of kind.
func judge(ctx context.Context) audit.Verdict {
	GinkgoHelper()
	folder := filepath.Join(world.dir, "audit")
	Expect(os.RemoveAll(folder)).To(Succeed())
	_, err := world.nodes.Docker.Docker(ctx, "cp", kindstack.NodeContainer(run)+":"+audit.LogFolder, folder)
	Expect(err).NotTo(HaveOccurred())
	files, err := filepath.Glob(filepath.Join(folder, "*.log"))
	Expect(err).NotTo(HaveOccurred())
	Expect(files).NotTo(BeEmpty())
	var logs []io.Reader
	for _, name := range files {
		file, err := os.Open(name)
		Expect(err).NotTo(HaveOccurred())
		defer func() { _ = file.Close() }()
		logs = append(logs, file)
	}
	requests, err := audit.ReadLogs(world.rights.Managers, logs...)
	Expect(err).NotTo(HaveOccurred())
	return audit.Judge(world.rights, requests, audit.Explained())
}

// removalSpecs take the providers away.
func removalSpecs() {
	It("leaves no manager behind", Label("removal"), func(ctx SpecContext) {
		step(ctx, "clusterctl delete --all", func(ctx context.Context) string {
			world.stopLogs()
			clusterctl.Delete(ctx, clusterctl.DeleteInput{
				LogFolder: world.artifacts, ClusterctlConfigPath: world.tool.Config, KubeconfigPath: world.kind.GetKubeconfigPath(),
			})
			expectNoManagers(ctx)
			return "no manager, role or webhook left"
		})
	}, SpecTimeout(timeout))
}

// expectNoManagers wants nothing of the providers but their kinds and namespaces,
// which clusterctl leaves.
func expectNoManagers(ctx context.Context) {
	GinkgoHelper()
	kinds := []string{
		"pods", "deployments", "services", "serviceaccounts", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "certificates.cert-manager.io",
		"issuers.cert-manager.io", "validatingwebhookconfigurations", "mutatingwebhookconfigurations",
	}
	Eventually(ctx, func() string {
		return kubectl(ctx, "default", "get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found", "--output", "name",
			"--selector", "cluster.x-k8s.io/provider in (bootstrap-talos,control-plane-talos,infrastructure-talos)")
	}).WithTimeout(timeout).WithPolling(interval).Should(Or(BeEmpty(), Equal("No resources found\n")))
}
