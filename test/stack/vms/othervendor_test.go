package vms

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/internal/machine"
	"github.com/capi-talos/capi-talos/test/stack/internal/talosnode"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/vms/othervendor"
)

//go:embed testdata/othervendor.yaml
var vendorManifests string

// TestMachinesOfAnotherVendor: an infrastructure provider that knows nothing of us boots
// machines from an image of Talos, with the bootstrap data as their user data. Our own
// infrastructure provider does not run. Control plane and worker become Nodes, another worker
// comes, and with the Cluster all instances go.
func TestMachinesOfAnotherVendor(t *testing.T) {
	const name = "vendor"
	g := NewWithT(t)
	machines := raise(t, nil, parts.TalosNocloudImage)
	ctx, cancel := context.WithTimeout(t.Context(), StepTimeout)
	defer cancel()
	stack, admin := manage(t)
	g.Expect(stack.Managers.Get(management.Infrastructure).Stop(ctx)).To(Succeed())
	instances, err := NewInstances(ctx, machines)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(instances.Close()).To(Succeed()) })
	create(ctx, t, admin, string(othervendor.Components))
	runs, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- othervendor.Run(runs, stack.Config, instances) }()
	t.Cleanup(func() {
		stop()
		g.Expect(<-ended).To(Succeed())
	})

	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	patch, err := talosnode.PodPatch(machine.Traits{SysResource: true}, machines.registry.Address, netip.MustParsePrefix("10.244.0.0/24"))
	g.Expect(err).NotTo(HaveOccurred())
	quoted, err := json.Marshal(patch)
	g.Expect(err).NotTo(HaveOccurred())
	create(ctx, t, admin, strings.NewReplacer("NETWORK", string(quoted), "NAME", name, "VERSION", parts.KubernetesVersion).Replace(vendorManifests))

	began := time.Now()
	until(ctx, t, func(ctx context.Context) error { return expectNodes(ctx, admin, name, "example://", 2) })
	t.Logf("control plane and worker are ready after %.0f s", time.Since(began).Seconds())
	began = time.Now()
	_, err = stack.Kubectl(ctx, "--namespace", name, "scale", "machinedeployment", name+"-workers", "--replicas=2")
	g.Expect(err).NotTo(HaveOccurred())
	until(ctx, t, func(ctx context.Context) error { return expectNodes(ctx, admin, name, "example://", 3) })
	t.Logf("another worker is ready after %.0f s", time.Since(began).Seconds())

	began = time.Now()
	g.Expect(admin.Delete(ctx, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}})).To(Succeed())
	until(ctx, t, func(context.Context) error {
		if left := instances.Names(); len(left) > 0 {
			return fmt.Errorf("instances %v are there", left)
		}
		return nil
	})
	until(ctx, t, func(ctx context.Context) error { return expectNoCluster(ctx, admin, name, name) })
	t.Logf("all is gone after %.0f s", time.Since(began).Seconds())
}

// create creates objects.
func create(ctx context.Context, t *testing.T, c client.Client, manifests string) {
	t.Helper()
	g := NewWithT(t)
	objects, err := management.Objects([]byte(manifests))
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		// A kind that was just created is served soon. What is refused stays so.
		var refused error
		until(ctx, t, func(ctx context.Context) error {
			err := client.IgnoreAlreadyExists(c.Create(ctx, object))
			if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) {
				refused = err
				return nil
			}
			return err
		})
		g.Expect(refused).NotTo(HaveOccurred())
	}
}

// until waits for something.
func until(ctx context.Context, t *testing.T, done func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		last = done(ctx)
		return last == nil, nil
	})
	NewWithT(t).Expect(errors.Join(err, last)).NotTo(HaveOccurred())
}

// expectNodes wants so many Machines with ready Nodes, whose provider IDs begin so, and the Cluster
// to be available.
func expectNodes(ctx context.Context, admin client.Client, cluster, providerID string, count int) error {
	all := &clusterv1.MachineList{}
	if err := admin.List(ctx, all, client.InNamespace(cluster)); err != nil {
		return err
	}
	if len(all.Items) != count {
		return fmt.Errorf("there are %d Machines", len(all.Items))
	}
	for i := range all.Items {
		if one := &all.Items[i]; !conditions.IsTrue(one, clusterv1.MachineReadyCondition) || !strings.HasPrefix(one.Spec.ProviderID, providerID) {
			return fmt.Errorf("machine %s has provider ID %q: %s", one.Name, one.Spec.ProviderID, conditions.GetMessage(one, clusterv1.MachineReadyCondition))
		}
	}
	found := &clusterv1.Cluster{}
	if err := admin.Get(ctx, client.ObjectKey{Namespace: cluster, Name: cluster}, found); err != nil {
		return err
	}
	if !conditions.IsTrue(found, clusterv1.AvailableCondition) {
		return fmt.Errorf("cluster %s: %s", cluster, conditions.GetMessage(found, clusterv1.AvailableCondition))
	}
	return nil
}
