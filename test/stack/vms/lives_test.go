package vms

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// lives is what a test needs of a machine that is claimed and given back, once or more: its
// clusters have a control plane of this one machine.
type lives struct {
	fleet     *Fleet
	machine   *Machine
	stack     *management.Stack
	client    client.Client
	namespace string
	// began is when the machine got its power.
	began time.Time
}

// newLives boots a machine over the network, and makes its host, which may be changed before.
func newLives(t *testing.T, machines *Fleet, namespace string, change func(*Machine, *infrav1.TalosHost)) *lives {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	l := &lives{fleet: machines, namespace: namespace}
	l.stack, l.client = manage(t)
	g.Expect(l.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	l.began = time.Now()
	l.machine = l.add(t, change)
	return l
}

// add boots one more machine over the network, and makes its host, which may be changed before.
func (l *lives) add(t *testing.T, change func(*Machine, *infrav1.TalosHost)) *Machine {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	hosts, err := l.fleet.Add(ctx, 1)
	g.Expect(err).NotTo(HaveOccurred())
	machine, err := l.fleet.machine(hosts[0])
	g.Expect(err).NotTo(HaveOccurred())
	host := hosts[0].Manifest(l.namespace, nil)
	if change != nil {
		change(machine, host)
	}
	g.Expect(l.client.Create(ctx, host)).To(Succeed())
	return machine
}

// createCluster makes a Cluster of the machine.
func (l *lives) createCluster(ctx context.Context, t *testing.T, policy infrav1.ReleasePolicy, shape management.Shape) {
	t.Helper()
	g := NewWithT(t)
	shape.Namespace, shape.ControlPlanes = l.namespace, 1
	manifests, err := l.stack.Generate(ctx, l.fleet, shape)
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(manifests)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if object.GetKind() == "TalosMachineTemplate" {
			g.Expect(unstructured.SetNestedField(object.Object, string(policy), "spec", "template", "spec", "metal", "releasePolicy")).To(Succeed())
		}
		g.Expect(l.client.Create(ctx, object)).To(Succeed())
	}
}

// deleteCluster begins to.
func (l *lives) deleteCluster(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	NewWithT(t).Expect(l.client.Delete(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}})).To(Succeed())
}

// expectNoCluster wants a Cluster to be gone.
func expectNoCluster(ctx context.Context, management client.Client, namespace, name string) error {
	err := management.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &clusterv1.Cluster{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(errors.New("the Cluster is there"), err)
}

// host is that of the machine.
func (l *lives) host(ctx context.Context) (*infrav1.TalosHost, error) {
	return l.hostOf(ctx, l.machine)
}

// hostOf is the host of a machine.
func (l *lives) hostOf(ctx context.Context, machine *Machine) (*infrav1.TalosHost, error) {
	host := &infrav1.TalosHost{}
	return host, l.client.Get(ctx, client.ObjectKey{Namespace: l.namespace, Name: machine.Host.Name}, host)
}

func (l *lives) expectState(ctx context.Context, wanted infrav1.HostState) error {
	return l.expectStateOf(ctx, l.machine, wanted)
}

func (l *lives) expectStateOf(ctx context.Context, machine *Machine, wanted infrav1.HostState) error {
	host, err := l.hostOf(ctx, machine)
	if err == nil && host.Status.State != wanted {
		err = fmt.Errorf("host %s is %s: %s", host.Name, host.Status.State, conditions.GetMessage(host, infrav1.AvailableCondition))
	}
	return err
}

// talosMachine is the only one that is not going.
func (l *lives) talosMachine(ctx context.Context) (*infrav1.TalosMachine, error) {
	list := &infrav1.TalosMachineList{}
	if err := l.client.List(ctx, list, client.InNamespace(l.namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			return &list.Items[i], nil
		}
	}
	return nil, errors.New("there is no TalosMachine")
}

// expectDisks compares the partitions of all disks, and what lies on the one without any.
func (l *lives) expectDisks(ctx context.Context, partitions [disks][]string, whole string) error {
	if err := expectPartitions(ctx, l.machine, partitions); err != nil {
		return err
	}
	found, err := l.machine.Signature(ctx, WholeDisk)
	if err == nil && found != whole {
		err = fmt.Errorf("disk %d has %q instead of %q", WholeDisk, found, whole)
	}
	return err
}

// tell logs what lies on the disks.
func (l *lives) tell(ctx context.Context, t *testing.T, when string) {
	t.Helper()
	lines, err := contents(ctx, l.machine)
	for _, line := range lines {
		t.Logf("the machine %s: %s", when, line)
	}
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
}

// step waits for something, and logs how long it took.
func (l *lives) step(ctx context.Context, t *testing.T, what string, done func(context.Context) error) {
	t.Helper()
	began := time.Now()
	NewWithT(t).Expect(l.machine.await(ctx, what, done)).To(Succeed())
	t.Logf("%s: %.0f s", what, time.Since(began).Seconds())
}
