package vms

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// job is the main job on disks.
type job struct {
	*WithT

	machines   *Fleet
	management client.Client
	cluster    string
}

// TestTheMainJobOnDisks takes machines from the network to Nodes that run from their second
// disk, also after a power cut, and back to wiped disks.
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
	j := &job{WithT: g, machines: machines, cluster: "disks"}
	j.management, err = client.New(stack.Config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	secret := ""
	scenario := &demo.Scenario{
		Management: demo.Management{
			Config: stack.Config, Kubeconfig: stack.Kubeconfig, Clusterctl: stack.Clusterctl, Kubectl: stack.Built.Path("kubectl"), Check: stack.Check,
		},
		Fleet: machines, Cluster: j.cluster, ControlPlanes: []int{1}, Workers: []int{1}, Dir: filepath.Join(dir, "manifests"), Output: t.Output(),
		Around: func(ctx context.Context, step string, do func(context.Context) error) error {
			if err := do(ctx); err != nil || step != "nodes" {
				return err
			}
			secret = j.token(ctx)
			return errors.Join(j.onInstallDiskOnly(ctx, secret), j.cutPower(ctx), do(ctx))
		},
	}
	results, err := scenario.Run(ctx)
	demo.Table(t.Output(), results)
	if err != nil {
		_ = scenario.Collect(context.WithoutCancel(ctx), filepath.Join(dir, "objects"))
	}
	g.Expect(err).NotTo(HaveOccurred())
	for _, host := range machines.Hosts() {
		m, err := machines.Machine(host)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(m.Holds(ctx, InstallDisk, secret)).To(BeFalse(), "a secret is left on %s", m.Disk(InstallDisk))
	}
}

// token is a secret of the cluster that is in the configuration of each machine.
func (j *job) token(ctx context.Context) string {
	bundle, err := secrets.GetBundle(ctx, j.management, client.ObjectKey{Namespace: j.cluster, Name: j.cluster})
	j.Expect(err).NotTo(HaveOccurred())
	return bundle.Machinery().TrustdInfo.Token
}

// onInstallDiskOnly looks whether machines have their configuration on the disk that was
// named, and nothing on the other one.
func (j *job) onInstallDiskOnly(ctx context.Context, secret string) error {
	for _, host := range j.machines.Hosts() {
		m, err := j.machines.Machine(host)
		if err != nil {
			return err
		}
		for disk := range disks {
			held, err := m.Holds(ctx, disk, secret)
			if err != nil {
				return err
			}
			written, err := m.Written(disk)
			if err != nil {
				return err
			}
			if wanted := disk == InstallDisk; held != wanted || (written > 0) != wanted {
				return fmt.Errorf("disk %d of %s has the configuration: %t, and %d bytes written", disk, host.Name, held, written)
			}
		}
	}
	return nil
}

// cutPower takes the power from all machines, gives it back, and waits until their Nodes tell
// another boot.
func (j *job) cutPower(ctx context.Context) error {
	before, err := j.boots(ctx)
	if err != nil {
		return err
	}
	for _, host := range j.machines.Hosts() {
		if err := j.machines.Restart(ctx, host); err != nil {
			return err
		}
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		now, err := j.boots(ctx)
		for node, boot := range now {
			if boot == before[node] {
				err = errors.Join(err, fmt.Errorf("node %s has not booted again", node))
			}
		}
		if err == nil && len(now) == len(before) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

// boots are the boot IDs of the Nodes.
func (j *job) boots(ctx context.Context) (map[string]string, error) {
	secret := &corev1.Secret{}
	if err := j.management.Get(ctx, client.ObjectKey{Namespace: j.cluster, Name: j.cluster + "-kubeconfig"}, secret); err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["value"])
	if err != nil {
		return nil, err
	}
	workload, err := client.New(config, client.Options{})
	if err != nil {
		return nil, err
	}
	nodes := &corev1.NodeList{}
	if err := workload.List(ctx, nodes); err != nil {
		return nil, err
	}
	found := map[string]string{}
	for i := range nodes.Items {
		found[nodes.Items[i].Name] = nodes.Items[i].Status.NodeInfo.BootID
	}
	return found, nil
}
