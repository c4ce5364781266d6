package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestANamespaceIsDeletedWithEverythingInIt deletes a namespace in which hosts
// are running, being handed over, free, silent, strangers and in quarantine.
// Those that answer are wiped, and every finalizer goes in bounded time.
func TestANamespaceIsDeletedWithEverythingInIt(t *testing.T) {
	secrets, hosts, machines := &corev1.SecretList{}, &infrav1.TalosHostList{}, &infrav1.TalosMachineList{}
	owners := []client.ObjectList{&clusterv1.MachineList{}, &clusterv1.ClusterList{}, &infrav1.TalosClusterList{}}
	for name, order := range map[string][]client.ObjectList{
		"Secrets first":       append([]client.ObjectList{secrets, hosts, machines}, owners...),
		"TalosMachines first": append([]client.ObjectList{machines, hosts, secrets}, owners...),
		"hosts first":         append(append([]client.ObjectList{hosts}, owners...), machines, secrets),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, m, running := harness.Provisioned(t)
			for _, objects := range [][]client.Object{
				harness.NewMachine(t, "b"), harness.NewMachine(t, "c"),
				{harness.NewHost("h2", "10.0.0.2"), harness.NewHost("h3", "10.0.0.3")},
			} {
				for _, object := range objects {
					g.Expect(w.Client.Create(t.Context(), object)).To(Succeed())
				}
			}
			taking, silent := w.AddMachine("10.0.0.2"), w.AddMachine("10.0.0.3")
			w.Settle(m)
			g.Expect(taking.Applied()).To(HaveLen(1))
			g.Expect(silent.Applied()).To(HaveLen(1))
			silent.SetSilent(true)
			for _, host := range []*infrav1.TalosHost{
				harness.NewHost("h4", "10.0.0.4"), harness.NewHost("h5", "10.0.0.5"), harness.NewHost("h6", "10.0.0.6"),
				harness.NewHost("h7", "10.0.0.7", func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(harness.TestTime) }),
			} {
				g.Expect(w.Client.Create(t.Context(), host)).To(Succeed())
			}
			w.AddMachine("10.0.0.4")
			w.AddMachine("10.0.0.5").Boot(false, []byte("theirs"))
			w.AddMachine("10.0.0.7")
			w.Settle(m)

			w.Terminate(order...)
			w.Settle(m)
			g.Expect(running.Resets()).To(HaveLen(1))
			g.Expect(running.Snapshot().Maintenance).To(BeTrue())
			g.Expect(taking.Snapshot().Maintenance).To(BeTrue())
			g.Expect(w.Left()).To(ConsistOf(HavePrefix("TalosHost h"), HavePrefix("TalosMachine "), HaveSuffix("-talos-admin"), HavePrefix("TalosCluster ")),
				"only the silent one is waited for")

			w.Wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
			w.Settle(m)
			g.Expect(w.Left()).To(BeEmpty())
			g.Expect(silent.Resets()).To(BeEmpty())
			g.Expect(w.Recorded()).To(ContainElement(HavePrefix("Warning DeletedUnwiped ")))
		})
	}
}

func TestAMachineThatIsHandedOverInATerminatingNamespaceGetsNothing(t *testing.T) {
	g := NewWithT(t)
	w := harness.New(t, append(harness.NewMachine(t, "a"), harness.NewHost("h1", "10.0.0.1"))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Terminating = true
	for range harness.Rounds {
		w.RoundWith(m, apierrors.IsForbidden)
	}
	g.Expect(w.Machine("a").Spec.HostRef.Claim).To(Equal(infrav1.HostClaimBound))
	g.Expect(metal.Applied()).To(BeEmpty(), "without the certificate that wipes it, nothing is handed over")
	g.Expect(w.Host("h1").Spec.Handover).To(BeZero())

	w.Terminate(&infrav1.TalosMachineList{}, &infrav1.TalosHostList{}, &corev1.SecretList{}, &clusterv1.MachineList{}, &clusterv1.ClusterList{}, &infrav1.TalosClusterList{})
	w.Settle(m)
	g.Expect(w.Left()).To(BeEmpty())
}
