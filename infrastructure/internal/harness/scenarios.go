package harness

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// WithPods is a world with a TalosCluster that has its Service.
func WithPods(t *testing.T, edit func(*infrav1.TalosCluster)) (*Environment, *Manager) {
	t.Helper()
	w := NewWithPods(t)
	if edit != nil {
		Change(w, w.TalosCluster(), edit)
	}
	m := w.Manager()
	w.Settle(m)

	return w, m
}

// NewWithPods is a management cluster with one node, and a Cluster whose control
// plane runs in Pods.
func NewWithPods(t *testing.T, objects ...client.Object) *Environment {
	t.Helper()
	g := NewWithT(t)
	w := New(t, append(objects,
		NewHostingNode("node-1", "z1"),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: TestNamespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}},
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.20.0.0/16"}}},
	)...)
	g.Expect(w.Client.Delete(t.Context(), newTalosCluster())).To(Succeed())
	made := newTalosCluster()
	made.UID = "talos-cluster-uid"
	made.Spec = infrav1.TalosClusterSpec{Container: &infrav1.TalosClusterContainerSpec{}}
	g.Expect(w.Client.Create(t.Context(), made)).To(Succeed())
	w.PodRuntime.Deleted = nil

	return w
}

// InPod is a world in which TalosMachine "a" runs in a Pod.
func InPod(t *testing.T, objects []client.Object) (*Environment, *Manager) {
	t.Helper()
	w := NewWithPods(t, objects...)
	m := w.Manager()
	w.Settle(m)
	ExpectRuns(w, "a")

	return w, m
}

// Provisioned is a world in which TalosMachine "a" runs on host "h1".
func Provisioned(t *testing.T, changes ...func(*infrav1.TalosHost)) (*Environment, *Manager, *BareMetal) {
	t.Helper()
	w := New(t, append(NewMachine(t, "a"), NewHost("h1", "10.0.0.1", changes...))...)
	metal := w.AddMachine("10.0.0.1")
	m := w.Manager()
	w.Settle(m)
	NewWithT(t).Expect(w.Machine("a").Status.Initialization.Provisioned).To(HaveValue(BeTrue()))

	return w, m, metal
}

// ControlPlane makes a control plane machine out of "a", in a cluster whose API
// server has answered.
func (w *Environment) ControlPlane() {
	w.T.Helper()
	labels := map[string]string{clusterv1.ClusterNameLabel: TestCluster, clusterv1.MachineControlPlaneLabel: ""}
	Change(w, Get(w, &clusterv1.Machine{}, "a"), func(m *clusterv1.Machine) { m.Labels = labels })
	Change(w, w.Machine("a"), func(m *infrav1.TalosMachine) { m.Labels = labels })
	cluster := Get(w, &clusterv1.Cluster{}, TestCluster)
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	NewWithT(w.T).Expect(w.Client.Status().Update(w.T.Context(), cluster)).To(Succeed())
}

// Voters makes the control plane machines "b" and "c", whose members vote beside that
// of "a".
func (w *Environment) Voters() (b, c *talosfake.Machine) {
	w.T.Helper()
	members := []talosclient.EtcdMember{{ID: 1, Hostname: "a"}, {ID: 2, Hostname: "b"}, {ID: 3, Hostname: "c"}}
	add := func(name, address string, id uint64) *talosfake.Machine {
		machine := NewMachine(w.T, name, func(m *infrav1.TalosMachine) {
			m.Labels = map[string]string{clusterv1.ClusterNameLabel: TestCluster, clusterv1.MachineControlPlaneLabel: ""}
			m.Spec.ProviderID = "talos://" + name
			m.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineInternalIP, Address: address}}
		})[1]
		NewWithT(w.T).Expect(w.Client.Create(w.T.Context(), machine)).To(Succeed())

		return w.Dialer.Add(address, talosfake.NewMachine(talosfake.State{
			Members: members, EtcdStatus: talosclient.EtcdStatus{MemberID: id, Leader: 1},
		}))
	}

	return add("b", "10.0.0.8", 2), add("c", "10.0.0.9", 3)
}
