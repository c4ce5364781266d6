package e2e

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/cluster-api/test/framework/clusterctl"

	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/suites/e2e/audit"
)

// rightsSpecs judge by the audit log of all that was done before.
func rightsSpecs() {
	It("are enough for all of it, and none is there for nothing", Label("rights"), func(ctx SpecContext) {
		verdict := judge(ctx, time.Time{})
		note(demo.Result{Step: "rights", Outcome: verdict.Summary()})
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

// judge reads the audit log of kind from a moment on.
func judge(ctx context.Context, since time.Time) audit.Verdict {
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
	requests, err := audit.ReadLogs(world.rights.Managers, since, logs...)
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
			return "no manager or webhook left"
		})
	}, SpecTimeout(longTimeout))
}

// expectNoManagers wants nothing of the providers but what clusterctl leaves: their
// kinds and namespaces, and cluster roles and their bindings. It takes only those
// whose names begin with the provider's namespace, and since it no longer renames
// them itself, those of Cluster API stay, too.
func expectNoManagers(ctx context.Context) {
	GinkgoHelper()
	kinds := []string{
		"pods", "deployments", "services", "serviceaccounts", "roles", "rolebindings", "certificates.cert-manager.io",
		"issuers.cert-manager.io", "validatingwebhookconfigurations", "mutatingwebhookconfigurations",
	}
	Eventually(ctx, func() string {
		return kubectl(ctx, "default", "get", strings.Join(kinds, ","), "--all-namespaces", "--ignore-not-found", "--output", "name",
			"--selector", "cluster.x-k8s.io/provider in (cluster-api,addon-talos,addon-talos-backup,bootstrap-talos,control-plane-talos,infrastructure-talos)")
	}).WithTimeout(timeout).WithPolling(interval).Should(Or(BeEmpty(), Equal("No resources found\n")))
}
