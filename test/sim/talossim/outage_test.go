package talossim_test

import (
	"context"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/etcdmodel"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

func (w *world) nodeReady(through *talossim.Machine, name string, status corev1.ConditionStatus) {
	w.t.Helper()
	w.Eventually(func(g Gomega) {
		node, err := w.node(through, name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.NodeReady), HaveField("Status", status))))
	}).Should(Succeed())
}

func (w *world) staticPods(m *talossim.Machine, ready bool) {
	w.t.Helper()
	w.Eventually(func() ([]talosclient.StaticPod, error) { return w.admin(m).StaticPods(w.t.Context()) }).
		Should(And(HaveLen(3), HaveEach(HaveField("Ready", ready))))
}

func TestADeadAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second := w.joins()
	w.ready(second)
	w.staticPods(second, true)
	second.Break(talossim.Faults{DeadAPIServer: true})
	w.Eventually(second.ServesAPI).Should(BeFalse())
	w.staticPods(second, false)
	w.Expect(w.sim.Voters(first)).To(Equal(etcdmodel.Count{Voters: 2, Answering: 2}), "etcd runs on")
	w.Expect(w.asksAPI(first, "/readyz")).To(Equal(http.StatusUnauthorized))
	second.Break(talossim.Faults{})
	w.staticPods(second, true)
	w.Eventually(func() (int, error) { return w.asksAPI(second, "/readyz") }).Should(Equal(http.StatusUnauthorized))
}

// TestADeadKubelet: what runs goes on, and what Talos has heard last it still
// tells.
func TestADeadKubelet(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second := w.joins()
	w.ready(second)
	w.staticPods(second, true)
	second.Break(talossim.Faults{DeadKubelet: true})
	w.nodeReady(first, second.Hostname(), corev1.ConditionUnknown)
	w.status(second, talosclient.StageRunning, ContainElement("services: kubelet not healthy"))
	w.Expect(w.asksAPI(second, "/readyz")).To(Equal(http.StatusUnauthorized))
	second.Break(talossim.Faults{DeadKubelet: true, DeadEtcd: true})
	w.Eventually(second.ServesAPI).Should(BeFalse())
	w.Consistently(func() ([]talosclient.StaticPod, error) { return w.admin(second).StaticPods(t.Context()) }).
		Should(HaveEach(HaveField("Ready", true)), "it is stale")
	second.Break(talossim.Faults{DeadKubelet: true})
	w.Eventually(second.ServesAPI).Should(BeTrue(), "the process has never ended")

	second.PowerCycle()
	w.Eventually(second.Boots).Should(Equal(2))
	w.Eventually(func() etcdmodel.Count { return w.sim.Voters(first) }).Should(Equal(etcdmodel.Count{Voters: 2, Answering: 2}))
	w.Consistently(second.ServesAPI).Should(BeFalse(), "nobody starts it")
	second.Break(talossim.Faults{})
	w.ready(second)
	w.staticPods(second, true)
	w.nodeReady(first, second.Hostname(), corev1.ConditionTrue)
}

func TestAMachineWithoutPower(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Container, talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: personality})
			first, _, third := w.ofThree()
			boots := third.Boots()
			third.Break(talossim.Faults{Gone: true})
			w.nodeReady(first, third.Hostname(), corev1.ConditionUnknown)
			w.Eventually(func() etcdmodel.Count { return w.sim.Voters(first) }).Should(Equal(etcdmodel.Count{Voters: 3, Answering: 2}))
			w.Eventually(func() error {
				ctx, cancel := context.WithTimeout(t.Context(), quiet)
				defer cancel()
				_, err := w.pool.Maintenance(ctx, third.Spec().Address, "")
				return err
			}).Should(MatchError(ContainSubstring("DeadlineExceeded")), "once its boot has ended, nobody is there to refuse")
			third.PowerCycle()
			w.Consistently(third.Boots).Should(Equal(boots))

			third.Break(talossim.Faults{})
			w.ready(third)
			w.nodeReady(first, third.Hostname(), corev1.ConditionTrue)
			w.Expect(w.sim.Voters(first)).To(Equal(etcdmodel.Count{Voters: 3, Answering: 3}))
		})
	}
}

func TestALostDisk(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Container, talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: personality})
			first, _, third := w.ofThree()
			name := third.Hostname()
			third.LoseDisk()
			w.Eventually(third.Wiped).Should(Succeed())
			w.maintenance(third)
			w.Expect(w.sim.Voters(first)).To(Equal(etcdmodel.Count{Voters: 3, Answering: 2}), "its member stays")
			w.nodeReady(first, name, corev1.ConditionUnknown)
			w.Expect(w.sim.Offences()).To(BeEmpty(), "nobody has called for it")
		})
	}
}

// TestAFullDatabase refuses writes of the whole cluster, and takes changes of the
// membership.
func TestAFullDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first, second, third := w.ofThree()
	third.Break(talossim.Faults{Alarm: "NOSPACE"})
	for _, m := range []*talossim.Machine{first, second, third} {
		w.Expect(w.admin(m).EtcdAlarms(t.Context())).To(ConsistOf(HaveField("Alarm", "NOSPACE")))
		status, err := w.admin(m).EtcdStatus(t.Context())
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(status.Errors).To(ContainElement(ContainSubstring("alarm:NOSPACE")))
	}
	_, err := w.node(first, third.Hostname())
	w.Expect(err).NotTo(HaveOccurred(), "reads are answered")
	_, err = w.kubernetes(first).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	w.Expect(err).To(MatchError(ContainSubstring("database space exceeded")))

	fourth := w.joins()
	w.voters(first, 4)
	w.Consistently(func() error { _, err := w.node(first, fourth.Hostname()); return err }).ShouldNot(Succeed(), "a node cannot register")
	w.leave(third)
	w.voters(first, 3)
	w.Expect(w.admin(first).EtcdAlarms(t.Context())).To(HaveLen(1), "the alarm outlives its member")
	third.Break(talossim.Faults{})
	w.Expect(w.admin(first).EtcdAlarms(t.Context())).To(BeEmpty())
	_, err = w.kubernetes(first).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	w.Expect(err).NotTo(HaveOccurred())
	w.ready(fourth)
	w.Expect(w.sim.Offences()).To(BeEmpty())
}
