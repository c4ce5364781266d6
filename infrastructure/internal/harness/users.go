package harness

import (
	"context"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Swap lets the machines of two addresses change places.
func (w *Environment) Swap(a, b string, first, second *BareMetal) {
	w.Dialer.Add(a, second.Machine)
	w.Dialer.Add(b, first.Machine)
	first.Address, second.Address = b, a
	for _, metal := range []*BareMetal{first, second} {
		metal.Machine.SetSilent(true)
		metal.Machine.SetSilent(false)
	}
	for _, metal := range []*BareMetal{first, second} {
		metal.BreakWatches()
	}
}

// AsControlPlane gives TalosMachine "a" the configuration of a control plane.
func (w *Environment) AsControlPlane(contract string) {
	w.T.Helper()
	configuration, err := configgen.Render(configgen.Input{
		Role: configgen.RoleControlPlane, Contract: contract, ClusterName: TestCluster, Endpoint: "https://10.0.0.100:6443",
		KubernetesVersion: "v1.36.3", Secrets: Bundle(w.T).Machinery(), Hostname: "one-a",
	})
	NewWithT(w.T).Expect(err).NotTo(HaveOccurred())
	Change(w, Get(w, &corev1.Secret{}, "a"), func(s *corev1.Secret) { s.Data["value"] = configuration })
}

// Wishes makes the Machine of TalosMachine "a" wish for a failure domain.
func (w *Environment) Wishes(name string) {
	w.T.Helper()
	Change(w, Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Spec.FailureDomain = name })
}

// LoseStatus empties every status, as a move does.
func (w *Environment) LoseStatus() {
	w.T.Helper()
	g := NewWithT(w.T)
	for _, host := range w.Hosts() {
		host.Status = infrav1.TalosHostStatus{}
		g.Expect(w.Client.Status().Update(w.T.Context(), &host)).To(Succeed())
	}
	for _, machine := range w.Machines() {
		machine.Status = infrav1.TalosMachineStatus{}
		g.Expect(w.Client.Status().Update(w.T.Context(), &machine)).To(Succeed())
	}
}

// Terminate deletes everything in the namespace, in the order of the kinds given,
// and lets nothing be created any more.
func (w *Environment) Terminate(lists ...client.ObjectList) {
	w.T.Helper()
	g := NewWithT(w.T)
	w.Terminating = true
	for _, list := range lists {
		g.Expect(w.Client.List(w.T.Context(), list, client.InNamespace(TestNamespace))).To(Succeed())
		objects, err := meta.ExtractList(list)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range objects {
			g.Expect(client.IgnoreNotFound(w.Client.Delete(w.T.Context(), object.(client.Object)))).To(Succeed()) //nolint:forcetypeassert // Lists of the client have its objects.
		}
	}
}

// Change edits an object as a user would, who does not die.
func Change[T client.Object](w *Environment, object T, edit func(T)) {
	w.T.Helper()
	before, _ := object.DeepCopyObject().(T)
	edit(object)
	NewWithT(w.T).Expect(w.Client.Patch(w.T.Context(), object, client.MergeFrom(before))).To(Succeed())
}

// Remove deletes an object as a user, or core Cluster API, would.
func (w *Environment) Remove(object client.Object) {
	w.T.Helper()
	NewWithT(w.T).Expect(w.Client.Delete(w.T.Context(), object)).To(Succeed())
}

// Vanish strips a Pod of all finalizers, and deletes it: nobody sees it go.
func (w *Environment) Vanish(name string) {
	w.T.Helper()
	pod := Get(w, &corev1.Pod{}, name)
	w.PodRuntime.end(pod)
	before := pod.DeepCopy()
	pod.Finalizers = nil
	NewWithT(w.T).Expect(w.Client.Patch(w.T.Context(), pod, client.MergeFrom(before))).To(Succeed())
	NewWithT(w.T).Expect(client.IgnoreNotFound(w.Client.Delete(w.T.Context(), pod))).To(Succeed())
}

// SetReady sets condition Ready of a node.
func (w *Environment) SetReady(name string, status corev1.ConditionStatus) {
	w.T.Helper()
	node := &corev1.Node{}
	g := NewWithT(w.T)
	g.Expect(w.Client.Get(w.T.Context(), client.ObjectKey{Name: name}, node)).To(Succeed())
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	g.Expect(w.Client.Status().Update(w.T.Context(), node)).To(Succeed())
}

// Enforce sets the level of Pod Security that the namespace asks for, as an administrator would;
// none takes the label away.
func (w *Environment) Enforce(level string) {
	w.T.Helper()
	namespace := &corev1.Namespace{}
	NewWithT(w.T).Expect(w.Client.Get(w.T.Context(), client.ObjectKey{Name: TestNamespace}, namespace)).To(Succeed())
	Change(w, namespace, func(n *corev1.Namespace) {
		n.Labels = map[string]string{infrav1.PodSecurityLabel: level}
		if level == "" {
			n.Labels = nil
		}
	})
}

// HideNamespaces has no Namespace be read, with an error, until the function that it returns is
// called.
func (w *Environment) HideNamespaces(with error) (end func()) {
	w.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
			if _, isNamespace := into.(*corev1.Namespace); isNamespace && with != nil {
				return with
			}
			return c.Get(ctx, key, into, opts...)
		},
	})

	return func() { with = nil }
}

// Balance is what the controller of a load balancer does.
func (w *Environment) Balance(address string) {
	w.T.Helper()
	service := w.Service()
	service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: address}}
	NewWithT(w.T).Expect(w.Client.Status().Update(w.T.Context(), service)).To(Succeed())
}

// Wish asks for a machine to be re-provisioned, as a person would.
func (w *Environment) Wish(name, value string) {
	w.T.Helper()
	Change(w, w.Machine(name), func(m *infrav1.TalosMachine) {
		metav1.SetMetaDataAnnotation(&m.ObjectMeta, infrav1.ReprovisionAnnotation, value)
	})
}

// Remake puts another object in the place of a host, without finalizers, as somebody
// does who has got rid of the first one.
func (w *Environment) Remake(name, address string, changes ...func(*infrav1.TalosHost)) {
	w.T.Helper()
	old := w.Host(name)
	Change(w, old, func(h *infrav1.TalosHost) { h.Finalizers = nil })
	w.Remove(old)
	host := NewHost(name, address, changes...)
	host.Spec.ConsumerRef = old.Spec.ConsumerRef
	NewWithT(w.T).Expect(w.Client.Create(w.T.Context(), host)).To(Succeed())
}

// AddTalosconfig makes a Secret with a talosconfig that may wipe machines.
func (w *Environment) AddTalosconfig(name string, changes ...func(*corev1.Secret)) {
	w.T.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: TestNamespace, Name: name}, Data: map[string][]byte{"talosconfig": adminTalosconfig(w.T)},
	}
	for _, change := range changes {
		change(secret)
	}
	NewWithT(w.T).Expect(w.Client.Create(w.T.Context(), secret)).To(Succeed())
}
