package simfleet_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// life is the way of machines through a cluster, without any manager.
type life struct {
	*WithT
	machines *simfleet.Fleet
	pool     *talosclient.Pool
	bundle   *secrets.Bundle
	endpoint fleet.Endpoint
	creds    talosclient.Credentials
	client   *kubernetes.Clientset
}

func newLife(t *testing.T, personality talossim.Personality) *life {
	t.Helper()
	g := NewWithT(t)
	machines, err := simfleet.New(t.Context(), simfleet.Options{Personality: personality})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed())
		g.Expect(machines.Close(context.WithoutCancel(t.Context()))).To(Succeed())
	})
	l := &life{WithT: g, machines: machines, pool: talosclient.New()}
	t.Cleanup(l.pool.Close)
	l.endpoint, err = machines.Endpoint(t.Context(), "life")
	g.Expect(err).NotTo(HaveOccurred())
	l.bundle, err = secrets.NewBundle(time.Now(), "v1.13", nil)
	g.Expect(err).NotTo(HaveOccurred())
	l.creds, err = l.bundle.ClientCredentials(secrets.RoleAdmin, time.Now(), time.Hour)
	g.Expect(err).NotTo(HaveOccurred())
	l.client = kubernetes.NewForConfigOrDie(kubeconfig(g, l.bundle, l.endpoint))
	return l
}

func (l *life) configure(t *testing.T, host fleet.Host, role configgen.Role) {
	t.Helper()
	rendered, err := configgen.Render(configgen.Input{
		Role: role, Contract: "v1.13", ClusterName: "life", KubernetesVersion: l.machines.KubernetesVersion(),
		Endpoint: "https://" + l.endpoint.Host + ":6443", Secrets: l.bundle.Machinery(), Hostname: host.Name,
	})
	l.Expect(err).NotTo(HaveOccurred())
	configuration, err := configgen.Overlay(rendered, configgen.HostOverlay{
		StrategicPatches: host.StrategicPatches, ProviderID: "talos://" + host.Name, InstallDisk: host.InstallDisk, Container: host.InstallDisk == "",
	})
	l.Expect(err).NotTo(HaveOccurred())
	node, err := l.pool.Maintenance(t.Context(), host.Address, "")
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(node.ApplyConfiguration(t.Context(), configuration)).To(Succeed())
}

// do calls the Talos API of a configured machine once it answers.
func (l *life) do(t *testing.T, host fleet.Host, call func(talosclient.Node) error) {
	t.Helper()
	l.Eventually(func() error {
		node, err := l.pool.Secure(t.Context(), host.Address, l.creds)
		if err != nil {
			return err
		}
		defer func() { _ = node.Close() }()
		return call(node)
	}).WithTimeout(timeout).Should(Succeed())
}

func (l *life) expectNode(t *testing.T, name string, ready corev1.ConditionStatus) {
	t.Helper()
	l.Eventually(func(g Gomega) {
		node, err := l.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Spec.ProviderID).To(Equal("talos://" + name))
		g.Expect(node.Status.Conditions).To(ContainElement(And(
			HaveField("Type", corev1.NodeReady), HaveField("Status", ready))))
	}).WithTimeout(timeout).Should(Succeed())
}

func (l *life) expectWiped(t *testing.T, host fleet.Host) {
	t.Helper()
	l.Eventually(func() error { return l.machines.Wiped(t.Context(), host) }).WithTimeout(timeout).Should(Succeed())
}

func TestLifeOfMachines(t *testing.T) {
	for name, personality := range map[string]talossim.Personality{"containers": talossim.Container, "metal": talossim.Metal} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t, personality)
			hosts, err := l.machines.Add(t.Context(), 2)
			l.Expect(err).NotTo(HaveOccurred())
			l.Expect(l.machines.Hosts()).To(Equal(hosts))
			l.Expect(hosts[0].UUID != "").To(Equal(personality == talossim.Metal))
			controlPlane, worker := hosts[0], hosts[1]
			l.expectWiped(t, worker)

			l.configure(t, controlPlane, configgen.RoleControlPlane)
			l.do(t, controlPlane, func(node talosclient.Node) error { return node.Bootstrap(t.Context()) })
			l.expectNode(t, controlPlane.Name, corev1.ConditionTrue)
			l.configure(t, worker, configgen.RoleWorker)
			l.expectNode(t, worker.Name, corev1.ConditionTrue)
			l.Expect(l.machines.Wiped(t.Context(), worker)).NotTo(Succeed())

			reset := talosclient.ResetOptions{}
			if personality == talossim.Metal {
				reset.SystemLabels = []string{"STATE", "EPHEMERAL"}
			}
			l.do(t, worker, func(node talosclient.Node) error { return node.Reset(t.Context(), reset) })
			l.expectWiped(t, worker)
			l.expectNode(t, worker.Name, corev1.ConditionUnknown)
			l.do(t, controlPlane, func(node talosclient.Node) error { return node.Reset(t.Context(), reset) })
			l.expectWiped(t, controlPlane)
			_, err = l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			l.Expect(err).To(HaveOccurred())

			// A new cluster on the same machine, of the same secrets, starts empty.
			l.configure(t, controlPlane, configgen.RoleControlPlane)
			l.do(t, controlPlane, func(node talosclient.Node) error { return node.Bootstrap(t.Context()) })
			l.expectNode(t, controlPlane.Name, corev1.ConditionTrue)
			nodes, err := l.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			l.Expect(err).NotTo(HaveOccurred())
			l.Expect(nodes.Items).To(HaveLen(1))
			l.Expect(l.machines.Bootstraps()).To(Equal(2))
		})
	}
}

func TestMachinesThatKeepTheirData(t *testing.T) {
	l := newLife(t, talossim.Container)
	hosts, err := l.machines.Add(t.Context(), 1)
	l.Expect(err).NotTo(HaveOccurred())
	l.configure(t, hosts[0], configgen.RoleControlPlane)
	l.do(t, hosts[0], func(node talosclient.Node) error { return node.Bootstrap(t.Context()) })
	l.expectNode(t, hosts[0].Name, corev1.ConditionTrue)

	l.Expect(l.machines.KeepDataOnReset(t.Context(), true)).To(Succeed())
	boots := l.machines.Machine(hosts[0]).Boots()
	l.do(t, hosts[0], func(node talosclient.Node) error { return node.Reset(t.Context(), talosclient.ResetOptions{}) })
	l.Eventually(l.machines.Machine(hosts[0]).Boots).WithTimeout(timeout).Should(BeNumerically(">", boots))
	l.expectNode(t, hosts[0].Name, corev1.ConditionTrue)
	l.Expect(l.machines.Wiped(t.Context(), hosts[0])).NotTo(Succeed())

	dir := t.TempDir()
	l.Expect(l.machines.CollectLogs(t.Context(), dir)).To(Succeed())
	logged, err := os.ReadFile(filepath.Join(dir, "machines.txt"))
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(string(logged)).To(ContainSubstring("host-1 " + hosts[0].Address))
}
