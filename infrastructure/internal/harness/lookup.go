package harness

import (
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Hosts are all TalosHosts.
func (w *Environment) Hosts() []infrav1.TalosHost {
	w.T.Helper()
	list := &infrav1.TalosHostList{}
	NewWithT(w.T).Expect(w.Client.List(w.T.Context(), list)).To(Succeed())

	return list.Items
}

// Machines are all TalosMachines.
func (w *Environment) Machines() []infrav1.TalosMachine {
	w.T.Helper()
	list := &infrav1.TalosMachineList{}
	NewWithT(w.T).Expect(w.Client.List(w.T.Context(), list)).To(Succeed())

	return list.Items
}

// TalosClusters are all of them.
func (w *Environment) TalosClusters() []infrav1.TalosCluster {
	w.T.Helper()
	list := &infrav1.TalosClusterList{}
	NewWithT(w.T).Expect(w.Client.List(w.T.Context(), list)).To(Succeed())

	return list.Items
}

// Get reads an object of the namespace, which has to be there.
func Get[T client.Object](w *Environment, object T, name string) T {
	w.T.Helper()
	NewWithT(w.T).Expect(w.Client.Get(w.T.Context(), client.ObjectKey{Namespace: TestNamespace, Name: name}, object)).To(Succeed())

	return object
}

// Host is a TalosHost.
func (w *Environment) Host(name string) *infrav1.TalosHost {
	w.T.Helper()

	return Get(w, &infrav1.TalosHost{}, name)
}

// Machine is a TalosMachine.
func (w *Environment) Machine(name string) *infrav1.TalosMachine {
	w.T.Helper()

	return Get(w, &infrav1.TalosMachine{}, name)
}

// Exists reports whether there is an object of a name.
func (w *Environment) Exists(object client.Object, name string) bool {
	w.T.Helper()
	err := w.Client.Get(w.T.Context(), client.ObjectKey{Namespace: TestNamespace, Name: name}, object)
	if !apierrors.IsNotFound(err) {
		NewWithT(w.T).Expect(err).NotTo(HaveOccurred())
	}

	return err == nil
}

// TalosCluster is the only TalosCluster.
func (w *Environment) TalosCluster() *infrav1.TalosCluster {
	w.T.Helper()

	return Get(w, &infrav1.TalosCluster{}, TestCluster)
}

// Service is that of the control plane in Pods.
func (w *Environment) Service() *corev1.Service {
	w.T.Helper()

	return Get(w, &corev1.Service{}, MadeService)
}
