package vms

import (
	"context"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// TestTheMainJobOnDisks takes machines from the network to Nodes that run from their disks,
// and back to wiped disks.
func TestTheMainJobOnDisks(t *testing.T) {
	machines := raise(t)
	g, ctx := NewWithT(t), t.Context()
	source, err := parts.SourceDir()
	g.Expect(err).NotTo(HaveOccurred())
	dir := t.ArtifactDir()
	stack, err := management.Up(ctx, management.StackOptions{
		Dir: filepath.Join(dir, "management"), Repository: filepath.Join(source, "out", "repository"), Output: t.Output(),
	})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(stack.Stop(context.WithoutCancel(ctx))).To(Succeed()) })
	scenario := &demo.Scenario{
		Management: demo.Management{
			Config: stack.Config, Kubeconfig: stack.Kubeconfig, Clusterctl: stack.Clusterctl, Kubectl: stack.Built.Path("kubectl"), Check: stack.Check,
		},
		Fleet: machines, Cluster: "disks", ControlPlanes: []int{1}, Workers: []int{1}, Dir: filepath.Join(dir, "manifests"), Output: t.Output(),
	}
	results, err := scenario.Run(ctx)
	demo.Table(t.Output(), results)
	if err != nil {
		_ = scenario.Collect(context.WithoutCancel(ctx), filepath.Join(dir, "objects"))
	}
	g.Expect(err).NotTo(HaveOccurred())
}
