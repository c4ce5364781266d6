package talossim_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	corev1 "k8s.io/api/core/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

func TestASilentMachineIsParted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.bootstrapped()
	node := w.admin(m)
	m.Break(talossim.Faults{Silent: true})
	ctx, cancel := context.WithTimeout(t.Context(), quiet)
	defer cancel()
	_, err := node.Version(ctx)
	w.Expect(err).To(MatchError(ContainSubstring("DeadlineExceeded")), "an open connection is dead too")
	w.Expect(w.asksAPI(m, "/readyz")).To(Equal(http.StatusUnauthorized), "only its managers are parted from it")
	m.Break(talossim.Faults{})
	w.ready(m)

	m.Break(talossim.Faults{Silent: true})
	boots := m.Boots()
	m.PowerCycle()
	w.Eventually(m.Boots).Should(Equal(boots + 1))
	w.Eventually(m.ServesAPI).Should(BeTrue())
	m.Break(talossim.Faults{})
	w.ready(m)
}

func TestAMachineThatRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	w.maintenance(m)
	m.Break(talossim.Faults{Refusing: true})
	_, err := w.pool.Maintenance(t.Context(), m.Spec().Address, "")
	w.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	m.Break(talossim.Faults{})
	w.maintenance(m)
}

func TestASlowMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	node := w.maintenance(m)
	m.Break(talossim.Faults{Slow: quiet})
	began := time.Now()
	w.Expect(node.Version(t.Context())).To(Equal(talossim.DefaultTalosVersion))
	w.Expect(time.Since(began)).To(BeNumerically(">=", quiet))
}

func TestABrokenDisk(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Container, talossim.Metal} {
		t.Run(string(personality), func(t *testing.T) {
			w := newWorld(t, talossim.Options{Personality: personality})
			m := w.add()
			m.Break(talossim.Faults{BrokenDisk: true})
			before := w.maintenance(m).Fingerprint()
			w.configure(m, configgen.RoleControlPlane)
			w.Eventually(func() string { return w.maintenance(m).Fingerprint() }).ShouldNot(Equal(before))
			w.Expect(m.Configuration()).To(BeNil())
			w.Eventually(m.Wiped).Should(Succeed())
			m.Break(talossim.Faults{})
			w.configure(m, configgen.RoleControlPlane)
			w.status(m, talosclient.StageBooting, Not(BeEmpty()))
		})
	}
}

func TestADiskThatIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.add()
	before := w.maintenance(m).Fingerprint()
	selected := w.configuration(m, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) {
		overlay.InstallDisk, overlay.InstallDiskSelector = "", &configgen.DiskSelector{Model: "none"}
	})
	w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), selected)).To(MatchError(talosclient.ErrInvalidConfiguration))
	named := w.configuration(m, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) { overlay.InstallDisk = "/dev/sdz" })
	w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), named)).To(Succeed())
	w.Eventually(func() string { return w.maintenance(m).Fingerprint() }).ShouldNot(Equal(before))
	w.Expect(m.Wiped()).To(Succeed())
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.add()
	node := w.maintenance(m)
	w.Expect(node.ApplyConfiguration(t.Context(), []byte("machine: {}"))).To(MatchError(talosclient.ErrInvalidConfiguration))
	w.Expect(node.ApplyConfiguration(t.Context(), []byte("not: [yaml"))).To(MatchError(talosclient.ErrInvalidConfiguration))
	m.Break(talossim.Faults{RefusesConfiguration: "no room"})
	valid := w.configuration(m, configgen.RoleWorker)
	w.Expect(node.ApplyConfiguration(t.Context(), valid)).To(And(MatchError(talosclient.ErrInvalidConfiguration), MatchError(ContainSubstring("no room"))))
	w.Expect(m.Configuration()).To(BeNil())
}

func TestAnotherMachineAtTheAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.add()
	w.maintenance(m)
	m.Break(talossim.Faults{OtherMachine: true})
	m.PowerCycle()
	w.Eventually(func(g Gomega) {
		node, err := w.pool.Maintenance(t.Context(), m.Spec().Address, "")
		g.Expect(err).NotTo(HaveOccurred())
		hardware, err := node.Hardware(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(hardware.SystemUUID).NotTo(Equal(m.Spec().UUID))
		g.Expect(hardware.Links).NotTo(ContainElement(HaveField("HardwareAddress", m.Spec().MAC)))
	}).Should(Succeed())
}

func TestAMachineThatIsStuck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	m.Break(talossim.Faults{StuckBooting: true})
	w.configure(m, configgen.RoleControlPlane)
	w.status(m, talosclient.StageBooting, ConsistOf(ContainSubstring("kubelet not running")))
	w.Expect(w.admin(m).Bootstrap(t.Context())).NotTo(Succeed())
	m.Break(talossim.Faults{})
	w.Eventually(func() error { return w.admin(m).Bootstrap(t.Context()) }).Should(Succeed())
	w.ready(m)
}

func TestAMachineThatKeepsItsData(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.bootstrapped()
	m.Break(talossim.Faults{KeepsData: true})
	boots := m.Boots()
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{SystemLabels: []string{"STATE", "EPHEMERAL"}})).To(Succeed())
	w.Eventually(m.Boots).Should(Equal(boots + 1))
	w.ready(m)
	m.Break(talossim.Faults{})
	w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(m.Wiped).Should(Succeed())
}

func TestAWatchHearsEveryStage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	w.configure(m, configgen.RoleControlPlane)
	stages := make(chan talosclient.MachineStatus, 100)
	node := w.admin(m)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- node.WatchMachineStatus(ctx, func(status talosclient.MachineStatus) { stages <- status })
	}()
	w.Eventually(stages).Should(Receive(HaveField("Stage", talosclient.StageBooting)))
	w.Eventually(func() error { return node.Bootstrap(t.Context()) }).Should(Succeed())
	w.Eventually(stages).Should(Receive(And(HaveField("Stage", talosclient.StageRunning), HaveField("Ready", true))))
	w.Expect(node.Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(stages).Should(Receive(HaveField("Stage", talosclient.StageResetting)))
	cancel()
	w.Eventually(done).Should(Receive())
}

// TestAPartedControlPlaneNode loses its cluster, not who manages it. Etcd counts
// it as connected all the same: two of three that answer may still become one.
func TestAPartedControlPlaneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second, third := w.joins(), w.joins()
	w.ready(second)
	w.ready(third)
	before := w.voters(first, 3)

	third.Break(talossim.Faults{Parted: true})
	w.Eventually(third.ServesAPI).Should(BeFalse())
	own, err := w.admin(third).EtcdStatus(t.Context())
	w.Expect(err).NotTo(HaveOccurred(), "its etcd runs")
	w.Expect(own.Leader).To(BeZero())
	_, err = w.admin(third).EtcdMembers(t.Context())
	w.Expect(err).To(MatchError(ContainSubstring("no leader")))
	w.Expect(w.voters(first, 3)).To(Equal(before), "the others go on")
	w.Eventually(func(g Gomega) {
		node, err := w.node(first, third.Hostname())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.NodeReady), HaveField("Status", corev1.ConditionUnknown))))
	}).Should(Succeed())

	third.Break(talossim.Faults{})
	w.ready(third)
	w.Expect(w.voters(third, 3)).To(Equal(before))
	w.Eventually(third.ServesAPI).Should(BeTrue())
}

func TestAMemberThatWasRemovedWhileItWasParted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	first := w.bootstrapped()
	second, third := w.joins(), w.joins()
	w.ready(second)
	w.ready(third)
	members := w.voters(first, 3)
	third.Break(talossim.Faults{Parted: true})
	w.Eventually(third.ServesAPI).Should(BeFalse())
	for _, member := range members {
		if member.Hostname == third.Hostname() {
			_, err := w.raw(first, secrets.RoleAdmin).MachineClient.EtcdRemoveMemberByID(t.Context(), &machine.EtcdRemoveMemberByIDRequest{MemberId: member.ID})
			w.Expect(err).NotTo(HaveOccurred())
		}
	}
	w.voters(first, 2)
	_, err := w.admin(third).EtcdStatus(t.Context())
	w.Expect(err).NotTo(HaveOccurred(), "it does not know yet")
	third.Break(talossim.Faults{})
	w.Eventually(func() error { _, err := w.admin(third).EtcdStatus(t.Context()); return err }).ShouldNot(Succeed())
	w.voters(first, 2)
}
