package talossim_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// sends sends a database to a machine once it takes one.
func (w *world) sends(m *talossim.Machine, database string) {
	w.t.Helper()
	w.Eventually(func() error { return w.admin(m).EtcdRecover(w.t.Context(), strings.NewReader(database)) }).Should(Succeed())
}

// recovers bootstraps a machine from what was sent, once it can.
func (w *world) recovers(m *talossim.Machine) {
	w.t.Helper()
	w.Eventually(func() error { return w.admin(m).BootstrapFromSnapshot(w.t.Context()) }).Should(Succeed())
}

// etcdFails waits until the service of a machine has failed in these words.
func (w *world) etcdFails(m *talossim.Machine, words string) {
	w.t.Helper()
	w.Eventually(func() talosclient.Service { return w.etcdService(m) }).Should(And(
		HaveField("State", "Failed"), HaveField("LastMessage", ContainSubstring(words)), HaveField("Healthy", false)))
	w.Expect(m.HasEtcdData()).To(BeFalse())
}

func TestADatabaseThatWasSentIsKeptUntilTheWipe(t *testing.T) {
	t.Parallel()
	for _, personality := range []talossim.Personality{talossim.Metal, talossim.Container} {
		t.Run(string(personality), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: personality})
			m := w.add()
			w.configure(m, configgen.RoleControlPlane)
			w.sends(m, "old")
			large := bytes.Repeat([]byte("etcd"), 2<<20)
			for _, database := range [][]byte{large, []byte("new")} {
				w.Expect(w.admin(m).EtcdRecover(t.Context(), bytes.NewReader(database))).To(Succeed())
				kept := m.Recovered()
				w.Expect(kept).To(And(HaveField("Bytes", BeEquivalentTo(len(database))), HaveField("SHA256", sha256.Sum256(database)), HaveField("Restored", false)))
				if len(database) == len(large) {
					w.Expect(kept.Data).To(BeNil())
				} else {
					w.Expect(kept.Data).To(Equal(database))
				}
			}

			boots := m.Boots()
			w.Expect(w.admin(m).Restart(t.Context())).To(Succeed())
			w.Eventually(m.Boots).Should(Equal(boots + 1))
			w.Eventually(func() string { return w.etcdService(m).State }).Should(Equal("Preparing"))
			w.Expect(m.Recovered()).To(HaveField("Data", []byte("new")))
			w.Expect(m.HasEtcdData()).To(BeFalse(), "nobody has said that it be restored")

			w.Expect(w.admin(m).Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
			w.Eventually(m.Wiped).Should(Succeed())
			w.Expect(m.Recovered()).To(BeNil())
		})
	}
}

func TestADatabaseThatDoesNotComeToItsEndIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	w.configure(m, configgen.RoleControlPlane)
	w.sends(m, "old")
	gone := errors.New("the store is gone")
	w.Expect(w.admin(m).EtcdRecover(t.Context(), io.MultiReader(strings.NewReader("new"), iotest.ErrReader(gone)))).To(MatchError(gone))
	w.Eventually(m.Recovered).Should(BeNil(), "nor is the one before")
	w.Consistently(m.Recovered).Should(BeNil())
}

func TestADatabaseIsForAControlPlaneNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	refused := func(node talosclient.Node, words string) {
		t.Helper()
		w.Expect(node.EtcdRecover(t.Context(), strings.NewReader("etcd"))).To(And(MatchError(talosclient.ErrBootstrapRefused), MatchError(ContainSubstring(words))))
	}
	m := w.add()
	refused(w.maintenance(m), "not authorized")
	w.configure(m, configgen.RoleControlPlane)
	w.sends(m, "etcd")
	for _, role := range []string{secrets.RoleReader, secrets.RoleEtcdBackup} {
		refused(w.secure(m, role), "not authorized")
	}
	worker := w.add()
	w.configure(worker, configgen.RoleWorker)
	w.Eventually(func() error { return w.admin(worker).EtcdRecover(t.Context(), strings.NewReader("etcd")) }).
		Should(MatchError(ContainSubstring("etcd recover is only available on control plane nodes")))
	w.Expect(worker.Recovered()).To(BeNil())
}

// TestEtcdIsRestored: the database goes, and the data of the service is what was lost.
func TestEtcdIsRestored(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"at once": 0, "after a while": 200 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Delays: talossim.Delays{Bootstrap: delay}})
			m := w.add()
			w.configure(m, configgen.RoleControlPlane)
			w.sends(m, "etcd")
			w.recovers(m)
			w.ready(m)
			w.voters(m, 1)
			w.Expect(m.Recovered()).To(And(HaveField("Restored", true), HaveField("Data", []byte("etcd"))))
			w.Expect([]int{w.sim.Bootstraps(), w.sim.Recoveries()}).To(Equal([]int{1, 1}))
			w.Expect(w.admin(m).BootstrapFromSnapshot(t.Context())).To(MatchError(talosclient.ErrAlreadyBootstrapped))
			w.Expect(w.sim.Offences()).To(BeEmpty())
		})
	}
}

// TestARestoreThatFails: the call is accepted, and etcd stays failed until the next one.
func TestARestoreThatFails(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"at once": 0, "after a while": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Delays: talossim.Delays{Bootstrap: delay}})
			m := w.add()
			w.configure(m, configgen.RoleControlPlane)
			w.recovers(m)
			w.etcdFails(m, "Failed to run pre stage: error verifying snapshot: stat /var/lib/etcd.snapshot: no such file or directory")
			w.sends(m, "")
			w.recovers(m)
			w.etcdFails(m, "error verifying snapshot")
			m.Break(talossim.Faults{RecoverFails: true})
			w.sends(m, "etcd")
			w.recovers(m)
			w.etcdFails(m, "integrity check failed")
			w.status(m, talosclient.StageBooting, ContainElement(ContainSubstring("etcd not running")))
			w.Expect(m.Recovered()).To(HaveField("Restored", false))
			w.Consistently(func() string { return w.etcdService(m).State }).Should(Equal("Failed"))

			m.Break(talossim.Faults{})
			w.Expect(w.sim.Bootstraps()).To(BeZero())
			w.recovers(m)
			w.ready(m)
			w.Expect(w.sim.Recoveries()).To(Equal(1))
			w.Expect(w.sim.Offences()).To(BeEmpty())
		})
	}
}

// TestAFailedRestoreEndsWithABoot: the service waits for others then, and the database
// is still there.
func TestAFailedRestoreEndsWithABoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	m := w.add()
	w.configure(m, configgen.RoleControlPlane)
	m.Break(talossim.Faults{RecoverFails: true})
	w.sends(m, "etcd")
	w.recovers(m)
	w.etcdFails(m, "integrity check failed")
	m.Break(talossim.Faults{})
	w.Expect(w.admin(m).Restart(t.Context())).To(Succeed())
	w.Eventually(m.Boots).Should(Equal(2))
	w.Eventually(func() string { return w.etcdService(m).State }).Should(Equal("Preparing"))
	w.recovers(m)
	w.ready(m)
}

// TestASecondBootstrapFromASnapshot is an offence as any other.
func TestASecondBootstrapFromASnapshot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	w.bootstrapped()
	other := w.add()
	other.Break(talossim.Faults{DeadEtcd: true}) // Else it joins before it is told.
	w.configure(other, configgen.RoleControlPlane)
	w.sends(other, "etcd")
	w.recovers(other)
	w.Expect([]int{w.sim.Bootstraps(), w.sim.Recoveries()}).To(Equal([]int{2, 1}))
	w.Expect(w.sim.Offences()).To(ConsistOf(MatchError(ContainSubstring("bootstrapped a second time: m1 had data of the same cluster"))))
}

// TestKubernetesAfterAllDataWasLost: what it held comes back with the database alone.
func TestKubernetesAfterAllDataWasLost(t *testing.T) {
	t.Parallel()
	for name, restored := range map[string]bool{"a bootstrap from a snapshot": true, "a bootstrap": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{})
			first, _, third := w.ofThree()
			gone := third.Hostname()
			_, err := w.kubernetes(first).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{})
			w.Expect(err).NotTo(HaveOccurred())
			for _, m := range w.sim.Machines() {
				m.LoseDisk()
				w.Eventually(m.Wiped).Should(Succeed())
			}

			w.configure(first, configgen.RoleControlPlane)
			if restored {
				w.sends(first, "etcd")
				w.recovers(first)
			} else {
				w.Eventually(func() error { return w.admin(first).Bootstrap(t.Context()) }).Should(Succeed())
			}
			w.ready(first)
			w.nodeReady(first, first.Hostname(), corev1.ConditionTrue)
			_, err = w.kubernetes(first).CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{})
			if !restored {
				w.Expect(apierrors.IsNotFound(err)).To(BeTrue())
				_, err = w.node(first, gone)
				w.Expect(apierrors.IsNotFound(err)).To(BeTrue())
				return
			}
			w.Expect(err).NotTo(HaveOccurred())
			w.nodeReady(first, gone, corev1.ConditionUnknown)
			w.voters(first, 1)
			w.Expect(w.sim.Offences()).To(BeEmpty())
		})
	}
}
