package restore

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/secret"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// newWorkload asks the API server of Cluster prod.
func newWorkload(g Gomega) (*Workload, client.ObjectKey, client.Client) {
	kubeconfig, err := workload.Kubeconfig()
	g.Expect(err).NotTo(HaveOccurred())
	cluster := client.ObjectKey{Namespace: "team", Name: "prod"}
	live := fakeclient.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: secret.Name(cluster.Name, secret.Kubeconfig)}, Data: map[string][]byte{secret.KubeconfigDataName: kubeconfig},
	}).Build()
	admin, err := client.New(workload.Config, client.Options{})
	g.Expect(err).NotTo(HaveOccurred())

	return &Workload{Live: live}, cluster, admin
}

func TestTheRevisionOfACluster(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	of, cluster, admin := newWorkload(g)
	before, err := of.Revision(ctx, cluster)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(before).To(BeNumerically(">", 0))
	g.Expect(admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "one-more"}})).To(Succeed())
	g.Expect(of.Revision(ctx, cluster)).To(BeNumerically(">", before))
	_, err = of.Revision(ctx, client.ObjectKey{Namespace: "team", Name: "other"})
	g.Expect(err).To(MatchError(ContainSubstring("kubeconfig")))
}

// TestNodesOfNobodyAreDeleted, once it is known that nobody runs there.
func TestNodesOfNobodyAreDeleted(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	of, cluster, admin := newWorkload(g)
	since := time.Now().Truncate(time.Second)
	make := func(name, providerID string, ready corev1.ConditionStatus, told time.Time) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
		g.Expect(admin.Create(ctx, node)).To(Succeed())
		if ready == "" {
			return
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(told)}}
		g.Expect(admin.Status().Update(ctx, node)).To(Succeed())
	}
	before, after := since.Add(-time.Hour), since.Add(time.Minute)
	make("gone", "talos://gone", corev1.ConditionUnknown, before)
	make("never-told", "", "", before)
	make("down", "", corev1.ConditionFalse, after)
	make("seems-alive", "talos://seems", corev1.ConditionTrue, before)
	make("somebodys", "", corev1.ConditionTrue, after)
	make("machine-a", "talos://a", corev1.ConditionUnknown, before)
	make("renamed", "talos://b", corev1.ConditionUnknown, before)
	make("machine-c", "", corev1.ConditionUnknown, before)
	make("by-reference", "", corev1.ConditionUnknown, before)
	machines := []*clusterv1.Machine{
		{ObjectMeta: metav1.ObjectMeta{Name: "machine-a"}, Spec: clusterv1.MachineSpec{ProviderID: "talos://a"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "gone"}, Spec: clusterv1.MachineSpec{ProviderID: "talos://b"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "machine-c"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "machine-d"}, Status: clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "by-reference"}}},
	}
	names := func() (names []string) {
		nodes := &corev1.NodeList{}
		g.Expect(admin.List(ctx, nodes)).To(Succeed())
		for _, node := range nodes.Items {
			names = append(names, node.Name)
		}
		return names
	}
	g.Expect(of.DeleteNodesWithout(ctx, cluster, machines, since)).To(ConsistOf("seems-alive"))
	g.Expect(names()).To(ConsistOf("seems-alive", "somebodys", "machine-a", "renamed", "machine-c", "by-reference"))
	g.Expect(of.DeleteNodesWithout(ctx, cluster, machines, before)).To(BeEmpty())
	g.Expect(names()).To(HaveLen(6))

	// Machines whose Nodes the cluster does not know.
	had := clusterv1.MachineStatus{NodeRef: clusterv1.MachineNodeReference{Name: "lost"}}
	younger := []*clusterv1.Machine{
		{ObjectMeta: metav1.ObjectMeta{Name: "worker-b"}, Status: had},
		{ObjectMeta: metav1.ObjectMeta{Name: "worker-a"}, Spec: clusterv1.MachineSpec{ProviderID: "talos://lost"}, Status: had},
		{ObjectMeta: metav1.ObjectMeta{Name: "never-had-one"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "restarts-anyway", Labels: map[string]string{clusterv1.MachineControlPlaneLabel: ""}}, Status: had},
	}
	g.Expect(of.WorkersWithout(ctx, cluster, append(machines, younger...))).To(Equal([]string{"worker-a", "worker-b"}))
}
