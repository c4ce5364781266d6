package backends

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/reprovision"
)

// workerOf is a worker of a Cluster.
func workerOf(cluster string) *Scope {
	return &Scope{
		Cluster:      &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: cluster}},
		Machine:      &clusterv1.Machine{},
		TalosMachine: &infrav1.TalosMachine{},
	}
}

// users is how many have the lock of a Cluster, or wait for it.
func (l *clusterLocks) users(cluster string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if found := l.locks[client.ObjectKey{Namespace: "ns", Name: cluster}]; found != nil {
		return found.users
	}

	return 0
}

// TestASilentNodeOfAClusterHoldsUpNoOtherCluster: while a machine of Cluster "one" is
// judged, which may take long where its nodes are silent, one of Cluster "two" is begun,
// and the next one of "one" waits.
func TestASilentNodeOfAClusterHoldsUpNoOtherCluster(t *testing.T) {
	g := NewWithT(t)
	reprovisioner := &Reprovisioner{}
	answer, done := make(chan struct{}), make(chan string, 3)
	begin := func(name, cluster string, judge func()) {
		begun, err := reprovisioner.Begin(t.Context(), workerOf(cluster), Etcd{},
			func() (reprovision.Refusal, error) {
				judge()
				return reprovision.Refusal{}, nil
			},
			func() error {
				done <- name
				return nil
			})
		if err != nil || !begun {
			t.Errorf("%s is not begun: %v", name, err)
		}
	}
	asked := make(chan struct{})
	go begin("first of one", "one", func() {
		close(asked)
		<-answer
	})
	<-asked
	go begin("second of one", "one", func() {})
	g.Eventually(func() int { return reprovisioner.locks.users("one") }).WithTimeout(time.Minute).Should(Equal(2))

	begin("of two", "two", func() {})
	g.Expect(<-done).To(Equal("of two"))

	g.Expect(done).To(BeEmpty(), "the second of one waits for the first")
	close(answer)
	g.Expect(<-done).To(Equal("first of one"))
	g.Expect(<-done).To(Equal("second of one"))
	g.Eventually(func() int {
		reprovisioner.locks.mu.Lock()
		defer reprovisioner.locks.mu.Unlock()
		return len(reprovisioner.locks.locks)
	}).WithTimeout(time.Minute).Should(BeZero(), "a Cluster is remembered")
}

// TestWhatIsRefusedIsNotBegun: the condition says why.
func TestWhatIsRefusedIsNotBegun(t *testing.T) {
	g, scope := NewWithT(t), workerOf("one")
	begun, err := (&Reprovisioner{}).Begin(t.Context(), scope, Etcd{},
		func() (reprovision.Refusal, error) {
			return reprovision.Refusal{Reason: infrav1.ReprovisioningBlockedReason, Message: "wait"}, nil
		},
		func() error {
			t.Error("it is begun")
			return nil
		})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(begun).To(BeFalse())
	g.Expect(scope.Observed.Reprovisioning.Reason).To(Equal(infrav1.ReprovisioningBlockedReason))
	g.Expect(scope.Observed.Reprovisioning.Message).To(Equal("wait"))
}
