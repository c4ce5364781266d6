package controllers

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// terminate deletes everything in the namespace, in the order of the kinds given,
// and lets nothing be created any more.
func (w *world) terminate(lists ...client.ObjectList) {
	w.t.Helper()
	g := NewWithT(w.t)
	w.terminating = true
	for _, list := range lists {
		g.Expect(w.client.List(w.t.Context(), list, client.InNamespace(testNamespace))).To(Succeed())
		var objects []client.Object
		switch typed := list.(type) {
		case *corev1.SecretList:
			for i := range typed.Items {
				objects = append(objects, &typed.Items[i])
			}
		case *infrav1.TalosHostList:
			for i := range typed.Items {
				objects = append(objects, &typed.Items[i])
			}
		case *infrav1.TalosMachineList:
			for i := range typed.Items {
				objects = append(objects, &typed.Items[i])
			}
		case *infrav1.TalosClusterList:
			for i := range typed.Items {
				objects = append(objects, &typed.Items[i])
			}
		case *clusterv1.MachineList:
			for i := range typed.Items {
				objects = append(objects, &typed.Items[i])
			}
		case *clusterv1.ClusterList:
			for i := range typed.Items {
				objects = append(objects, &typed.Items[i])
			}
		}
		for _, object := range objects {
			g.Expect(client.IgnoreNotFound(w.client.Delete(w.t.Context(), object))).To(Succeed())
		}
	}
}

// refuseCreation is what the API server answers in a namespace that terminates.
func (w *world) refuseCreation(_ context.Context, object client.Object) error {
	if !w.terminating {
		return nil
	}

	return apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, object.GetName(), errTerminating)
}

// left names what of ours is left in the namespace.
func (w *world) left() []string {
	w.t.Helper()
	var names []string
	for _, host := range w.hosts() {
		names = append(names, "TalosHost "+host.Name)
	}
	for _, machine := range w.machines() {
		names = append(names, "TalosMachine "+machine.Name)
	}
	for _, cluster := range w.talosClusters() {
		names = append(names, "TalosCluster "+cluster.Name)
	}
	secrets := &corev1.SecretList{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), secrets)).To(Succeed())
	for _, secret := range secrets.Items {
		names = append(names, "Secret "+secret.Name)
	}

	return names
}

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
			w, m, running := provisioned(t)
			for _, objects := range [][]client.Object{
				newMachine(t, "b"), newMachine(t, "c"),
				{newHost("h2", "10.0.0.2"), newHost("h3", "10.0.0.3")},
			} {
				for _, object := range objects {
					g.Expect(w.client.Create(t.Context(), object)).To(Succeed())
				}
			}
			taking, silent := w.addMachine("10.0.0.2"), w.addMachine("10.0.0.3")
			w.settle(m)
			g.Expect(taking.Applied()).To(HaveLen(1))
			g.Expect(silent.Applied()).To(HaveLen(1))
			silent.SetSilent(true)
			for _, host := range []*infrav1.TalosHost{
				newHost("h4", "10.0.0.4"), newHost("h5", "10.0.0.5"), newHost("h6", "10.0.0.6"),
				newHost("h7", "10.0.0.7", func(h *infrav1.TalosHost) { h.Spec.Quarantine.Since = metav1.NewTime(testTime) }),
			} {
				g.Expect(w.client.Create(t.Context(), host)).To(Succeed())
			}
			w.addMachine("10.0.0.4")
			w.addMachine("10.0.0.5").boot(false, []byte("theirs"))
			w.addMachine("10.0.0.7")
			w.settle(m)

			w.terminate(order...)
			w.settle(m)
			g.Expect(running.Resets()).To(HaveLen(1))
			g.Expect(running.Snapshot().Maintenance).To(BeTrue())
			g.Expect(taking.Snapshot().Maintenance).To(BeTrue())
			g.Expect(w.left()).To(ConsistOf(HavePrefix("TalosHost h"), HavePrefix("TalosMachine "), HaveSuffix("-talos-admin"), HavePrefix("TalosCluster ")),
				"only the silent one is waited for")

			w.wait(time.Duration(infrav1.DefaultReleaseTimeoutSeconds) * time.Second)
			w.settle(m)
			g.Expect(w.left()).To(BeEmpty())
			g.Expect(silent.Resets()).To(BeEmpty())
			g.Expect(w.recorded()).To(ContainElement(HavePrefix("Warning DeletedUnwiped ")))
		})
	}
}

func TestAMachineThatIsHandedOverInATerminatingNamespaceGetsNothing(t *testing.T) {
	g := NewWithT(t)
	w := newWorld(t, append(newMachine(t, "a"), newHost("h1", "10.0.0.1"))...)
	metal := w.addMachine("10.0.0.1")
	m := w.manager()
	w.terminating = true
	for range rounds {
		w.roundWith(m, apierrors.IsForbidden)
	}
	g.Expect(w.machine("a").Spec.HostRef.Claim).To(Equal(infrav1.HostClaimBound))
	g.Expect(metal.Applied()).To(BeEmpty(), "without the certificate that wipes it, nothing is handed over")
	g.Expect(w.host("h1").Spec.Handover).To(BeZero())

	w.terminate(&infrav1.TalosMachineList{}, &infrav1.TalosHostList{}, &corev1.SecretList{}, &clusterv1.MachineList{}, &clusterv1.ClusterList{}, &infrav1.TalosClusterList{})
	w.settle(m)
	g.Expect(w.left()).To(BeEmpty())
}
