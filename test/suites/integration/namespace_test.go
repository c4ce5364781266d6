package integration

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// shortRelease is how long the release of a silent host is waited for here; no
// shorter time is accepted.
const shortRelease = 30 * time.Second

// TestNamespaceIsDeletedWithEverythingInIt: a user deletes the namespace of a
// running cluster. Nothing can be created there any more, all is deleted at once,
// and yet the hosts are wiped, and the namespace ends.
func TestNamespaceIsDeletedWithEverythingInIt(t *testing.T) {
	t.Parallel()
	const name = "doomed"
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 2)
	hosts = append(hosts, addHosts(t, machines, name, 1)...)
	expectNamespaceEnds(t, name, timeout)
	expectWiped(t, machines, hosts...)
}

// TestNamespaceIsDeletedWhileAHostIsSilent: the silent host is let go unwiped
// when its time is over, and holds up nobody else.
func TestNamespaceIsDeletedWhileAHostIsSilent(t *testing.T) {
	t.Parallel()
	const name = "doomed-silent"
	g := NewWithT(t)
	machines := newFleet(t, simfleet.Options{})
	hosts := runCluster(t, machines, name, 1, 2,
		setField("TalosMachineTemplate", int64(shortRelease.Seconds()), "spec", "template", "spec", "metal", "releaseTimeoutSeconds"))
	claims := map[string]string{}
	for _, machine := range talosMachines(g, t.Context(), name) {
		claims[machine.Name] = machine.Spec.HostRef.Name
	}
	worker := machinesOf(t.Context(), g, name, false)[0]
	silent := slices.IndexFunc(hosts, func(host fleet.Host) bool { return host.Name == claims[worker.Spec.InfrastructureRef.Name] })
	g.Expect(silent).NotTo(Equal(-1))
	machines.Machine(hosts[silent]).Break(talossim.Faults{Silent: true})

	expectNamespaceEnds(t, name, shortRelease+timeout)
	for i, host := range hosts {
		if i != silent {
			expectWiped(t, machines, host)
		}
	}
	g.Expect(machines.Wiped(t.Context(), hosts[silent])).NotTo(Succeed(), "it never heard of it")
}

// expectNamespaceEnds deletes a namespace as users do, and waits until it is
// gone.
func expectNamespaceEnds(t *testing.T, name string, within time.Duration) {
	t.Helper()
	expectNoOffence(t)
	g := NewWithT(t)
	start := time.Now()
	_, err := world.Stack.Kubectl(t.Context(), "delete", "namespace", name, "--wait=false")
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func(g Gomega) {
		namespace := &corev1.Namespace{}
		err := world.Client.Get(t.Context(), client.ObjectKey{Name: name}, namespace)
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v: %v", err, namespace.Status.Conditions)
	}).WithTimeout(within).Should(Succeed())
	t.Logf("namespace %s was gone after %.1f s", name, time.Since(start).Seconds())
}
