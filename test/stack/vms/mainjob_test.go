package vms

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/demo"
)

// job is the main job on disks.
type job struct {
	*testing.T

	machines   *Fleet
	management client.Client
	cluster    string
	// secret is a text of the configuration of each machine.
	secret string
	// cut is the machine that has lost its power while it was wiped.
	cut *Machine
}

// TestTheMainJobOnDisks takes machines from the network to Nodes that run from their second
// disk, also after a power cut, a reboot and a panic, and back to wiped disks. One loses its
// power when its wipe begins.
func TestTheMainJobOnDisks(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	j := &job{T: t, machines: raise(t, volumes), cluster: "disks"}
	stack, management := manage(t)
	j.management = management
	dir := t.ArtifactDir()
	scenario := &demo.Scenario{
		Management: demo.ManagementOf(stack),
		Fleet:      j.machines, Cluster: j.cluster, ControlPlanes: []int{1}, Workers: []int{1}, Dir: filepath.Join(dir, "manifests"), Output: t.Output(),
		StepTimeout: StepTimeout, Around: j.around,
	}
	results, err := scenario.Run(ctx)
	demo.Table(t.Output(), results)
	if err != nil {
		_ = scenario.Collect(context.WithoutCancel(ctx), filepath.Join(dir, "objects"))
	}
	g.Expect(err).NotTo(HaveOccurred())
	for _, m := range j.machines.Machines() {
		g.Expect(expectText(m, j.secret, noDisk)).To(Succeed())
	}
}

// around does what happens to machines besides the steps of the main job.
func (j *job) around(ctx context.Context, step string, do func(context.Context) error) error {
	switch step {
	case "nodes":
		began := time.Now()
		if err := do(ctx); err != nil {
			return err
		}
		// The row of the step has the ends of the machines in it.
		j.Logf("Nodes ready for the first time: %.1f s", time.Since(began).Seconds())
		return j.endMachines(ctx, do)
	case "delete cluster":
		cutting, stop := context.WithCancel(ctx)
		cut := make(chan error, 1)
		go func() { cut <- j.cutWipe(cutting) }()
		err := do(ctx)
		stop()
		return errors.Join(err, <-cut)
	case "wiped hosts":
		return errors.Join(j.wipeAgain(ctx), do(ctx))
	default:
		return do(ctx)
	}
}

// endMachines looks at the disks, ends all machines in different ways, and has their Nodes
// waited for.
func (j *job) endMachines(ctx context.Context, awaitNodes func(context.Context) error) error {
	bundle, err := secrets.GetBundle(ctx, j.management, client.ObjectKey{Namespace: j.cluster, Name: j.cluster})
	if err != nil {
		return err
	}
	j.secret = bundle.Machinery().TrustdInfo.Token
	if err := j.lookAtDisks(ctx); err != nil {
		return err
	}
	for _, end := range []struct {
		how string
		of  func(context.Context, *Machine) error
	}{
		{"a power cut", func(ctx context.Context, m *Machine) error { return j.machines.Restart(ctx, m.Host) }},
		{"a reboot by Talos", func(ctx context.Context, m *Machine) error {
			return call(ctx, bundle, m.Host.Address, func(node talosclient.Node) error { return node.Restart(ctx) })
		}},
		{"a kernel panic", func(ctx context.Context, m *Machine) error { return m.Panic(ctx) }},
	} {
		j.Logf("all machines end by %s", end.how)
		began, stop := time.Now(), followRunning(j.T, j.management, j.cluster)
		err := j.bootAgain(ctx, end.of)
		if err == nil {
			err = awaitNodes(ctx)
		}
		stop()
		if err != nil {
			return fmt.Errorf("after %s: %w", end.how, err)
		}
		j.Logf("Nodes ready after %s: %.0f s", end.how, time.Since(began).Seconds())
	}
	return nil
}

// lookAtDisks looks whether machines have their configuration on the disk that was named for
// it, their volumes on the one for data, and nothing on the other ones.
func (j *job) lookAtDisks(ctx context.Context) error {
	for _, m := range j.machines.Machines() {
		if err := errors.Join(expectPartitions(ctx, m, inUse()), expectText(m, j.secret, InstallDisk)); err != nil {
			return err
		}
		if written, err := m.Written(0); err != nil || written > 0 {
			return errors.Join(fmt.Errorf("disk 0 of %s has %d bytes written", m.Host.Name, written), err)
		}
	}
	return nil
}

// cutWipe takes the power from the machine that begins to wipe its disks first, tells what lies
// on them then, and gives it back.
func (j *job) cutWipe(ctx context.Context) error {
	const often = 20 * time.Millisecond
	ticker := time.NewTicker(often)
	defer ticker.Stop()
	for {
		for _, m := range j.machines.Machines() {
			console, err := os.ReadFile(m.Console())
			if err != nil {
				return err
			}
			// That is what Talos calls it.
			if bytes.Contains(console, []byte("phase resetSpec (")) {
				return j.cutPower(ctx, m)
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("no machine has begun to wipe its disks")
		case <-ticker.C:
		}
	}
}

// cutPower takes the power from a machine, logs what lies on its disks then, and gives it back.
// A table of partitions may be half written: that it cannot be read is no failure.
func (j *job) cutPower(ctx context.Context, m *Machine) error {
	j.cut = m
	if err := m.PowerOff(); err != nil {
		return err
	}
	lines, err := contents(ctx, m)
	for _, line := range lines {
		j.Logf("%s has lost its power: %s", m.Host.Name, line)
	}
	if err != nil {
		j.Logf("%s has lost its power: %v", m.Host.Name, err)
	}
	return m.PowerOn()
}

// wipeAgain waits until the host of the machine that has lost its power is in Error, and has
// it wiped again, as the page on hosts says. A machine that had lost its configuration before
// its power is in maintenance mode, where the rest is wiped without a word: then the cut came
// too late to show this.
func (j *job) wipeAgain(ctx context.Context) error {
	host := &infrav1.TalosHost{ObjectMeta: metav1.ObjectMeta{Namespace: j.cluster, Name: j.cut.Host.Name}}
	var late error
	err := j.cut.await(ctx, "to be in Error, and to be told again", func(ctx context.Context) error {
		if err := j.management.Get(ctx, client.ObjectKeyFromObject(host), host); err != nil {
			return err
		}
		if host.Status.State == infrav1.HostAvailable {
			late = fmt.Errorf("the cut came too late: host %s is %s", host.Name, host.Status.State)
			return nil
		}
		if found := conditions.GetReason(host, infrav1.AvailableCondition); host.Status.State != infrav1.HostError || found != infrav1.HostUnprovenReason {
			return fmt.Errorf("host %s is %s: %s", host.Name, host.Status.State, found)
		}
		j.Logf("host %s: %s", host.Name, conditions.GetMessage(host, infrav1.AvailableCondition))
		return retry(ctx, j.management, host)
	})
	return errors.Join(err, late)
}

// bootAgain ends all machines, and waits until their Nodes tell another boot.
func (j *job) bootAgain(ctx context.Context, end func(context.Context, *Machine) error) error {
	before, err := j.boots(ctx)
	if err != nil {
		return err
	}
	for _, m := range j.machines.Machines() {
		if err := end(ctx, m); err != nil {
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
	workload, err := workloadClient(ctx, j.management, j.cluster)
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
