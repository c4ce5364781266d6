package controllers

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// scaled is a world that has settled with a number of control plane machines.
func scaled(t *testing.T, replicas int32) (*world, *Reconciler) {
	t.Helper()
	controlPlane := newControlPlane()
	controlPlane.Spec.Replicas = ptr.To(replicas)
	w := newWorld(t, newCluster(), controlPlane)
	r := w.manager()
	for range replicas {
		w.settle(r)
	}

	return w, r
}

func (w *world) scale(replicas int32) {
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) { controlPlane.Spec.Replicas = ptr.To(replicas) })
}

// members is the member list as all nodes that have data know it.
func (w *world) members() []talosclient.EtcdMember {
	if running := w.running(); len(running) > 0 {
		return running[0].Snapshot().Members
	}

	return nil
}

func TestScaleUpJoinsOneMachineAtATime(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	w.scale(5)

	most := len(w.machines())
	for range 60 {
		g.Expect(w.reconcile(r)).To(Succeed())
		// At most one Machine more than there are voting members has its turn.
		voting, joining := 0, 0
		for _, member := range w.members() {
			if !member.Learner {
				voting++
			}
		}
		for _, machine := range w.machines() {
			if !w.held(machine.Name) {
				joining++
			}
		}
		g.Expect(joining).To(BeNumerically("<=", voting+1))
		if voting == 1 {
			most = max(most, len(w.machines()))
		}
		w.others()
	}

	g.Expect(most).To(Equal(5), "all are made before the second joins")
	g.Expect(w.members()).To(HaveLen(5))
	g.Expect(w.bootstraps()).To(Equal(1))
	for _, config := range w.talosConfigs() {
		g.Expect(config.Annotations).NotTo(HaveKey(bootstrapv1.HoldBootstrapDataAnnotation))
	}
	status := w.controlPlane().Status
	g.Expect(status.Replicas).To(HaveValue(BeEquivalentTo(5)))
	g.Expect(status.UpToDateReplicas).To(HaveValue(BeEquivalentTo(5)))
	g.Expect(status.Versions).To(Equal([]clusterv1.StatusVersion{{Version: "v1.36.3", Replicas: 5}}))
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.EtcdClusterHealthyCondition)).To(BeTrue())
	g.Expect(conditions.IsFalse(w.controlPlane(), controlplanev1.ScalingUpCondition)).To(BeTrue())
}

func TestThreeReplicasFromNothing(t *testing.T) {
	g := NewWithT(t)
	w, _ := scaled(t, 3)
	g.Expect(w.machines()).To(HaveLen(3))
	g.Expect(w.members()).To(HaveLen(3))
	g.Expect(w.bootstraps()).To(Equal(1))
}

func TestScaleUpConvergesWhereverTheManagerIsKilled(t *testing.T) {
	killed := true
	for killAt := 1; killed; killAt++ {
		w, _ := scaled(t, 1)
		g := NewWithT(t)
		w.scale(3)
		w.life.DieAt(killAt)
		for killed = false; !killed && len(w.members()) < 3; {
			killed = w.reconcile(w.manager()) != nil && w.life.IsOver()
			w.others()
		}
		w.life.Restart()
		r := w.manager()
		for range 3 {
			w.settle(r)
		}
		g.Expect(w.machines()).To(HaveLen(3), "killed at write %d", killAt)
		g.Expect(w.infraMachines()).To(HaveLen(3), "killed at write %d", killAt)
		g.Expect(w.talosConfigs()).To(HaveLen(3), "killed at write %d", killAt)
		g.Expect(w.members()).To(HaveLen(3), "killed at write %d", killAt)
		g.Expect(w.bootstraps()).To(Equal(1), "killed at write %d", killAt)
	}
}

func TestScaleUpWaitsForAHealthyControlPlane(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil  func(*talosfake.Machine)
		reason string
	}{
		"a silent node": {func(m *talosfake.Machine) { m.SetSilent(true) }, "to answer through the Talos API"},
		"a full disk":   {func(m *talosfake.Machine) { alarm(m, "NOSPACE") }, "NOSPACE"},
		"corrupt data":  {func(m *talosfake.Machine) { alarm(m, "CORRUPT") }, "CORRUPT"},
		"a lost leader": {func(m *talosfake.Machine) { m.Update(func(s *talosfake.State) { s.EtcdStatus.Leader = 0 }) }, "knows no leader"},
		"a broken API server": {func(m *talosfake.Machine) {
			m.Update(func(s *talosfake.State) {
				s.StaticPods = slices.Clone(s.StaticPods)
				s.StaticPods[0].Ready = false
			})
		}, "kube-apiserver is not ready"},
		"an orphan in etcd": {func(m *talosfake.Machine) {
			m.Update(func(s *talosfake.State) {
				s.Members = append(s.Members, talosclient.EtcdMember{ID: 99, Hostname: "orphan"})
			})
		}, "orphan (63) belongs to no Machine"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := scaled(t, 1)
			node := w.talos[w.machines()[0].Name]
			before := node.Snapshot()
			tc.spoil(node)
			w.scale(3)
			w.settle(r)

			g.Expect(w.machines()).To(HaveLen(1))
			condition := conditions.Get(w.controlPlane(), controlplanev1.ScalingUpCondition)
			g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
			g.Expect(condition.Message).To(ContainSubstring(tc.reason))

			node.SetSilent(false)
			node.Update(func(s *talosfake.State) { *s = before })
			w.settle(r)
			w.settle(r)
			g.Expect(w.machines()).To(HaveLen(3))
		})
	}
}

// TestADatabaseNearItsQuotaIsTold, and holds nothing up.
func TestADatabaseNearItsQuotaIsTold(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	node := w.talos[w.machines()[0].Name]
	node.Update(func(s *talosfake.State) { s.EtcdSpec.QuotaBytes, s.EtcdStatus.DBSizeBytes = 1<<30, 900<<20 })
	w.scale(3)
	w.settle(r)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	g.Expect(w.members()).To(HaveLen(3))
	condition := conditions.Get(w.controlPlane(), controlplanev1.EtcdClusterHealthyCondition)
	g.Expect(condition.Reason).To(Equal(controlplanev1.EtcdClusterNotHealthyReason))
	g.Expect(condition.Message).To(And(ContainSubstring(node.Snapshot().Hostname), ContainSubstring("near its quota of 1Gi")))
	g.Expect(conditions.IsTrue(w.controlPlane(), controlplanev1.AvailableCondition)).To(BeTrue())
}

func alarm(machine *talosfake.Machine, name string) {
	machine.Update(func(s *talosfake.State) { s.Alarms = []talosclient.EtcdAlarm{{MemberID: firstMember, Alarm: name}} })
}

// held is a world in which a second Machine exists, and waits to join.
func held(t *testing.T) (*world, *Reconciler, *clusterv1.Machine) {
	t.Helper()
	w, r := scaled(t, 1)
	first := w.machines()[0].Name
	w.scale(3)
	for len(w.machines()) == 1 {
		NewWithT(t).Expect(w.reconcile(r)).To(Succeed())
	}
	for _, machine := range w.machines() {
		if machine.Name != first {
			return w, r, machine
		}
	}

	return w, r, nil
}

func TestBadInputHostNameIsAlreadyAnEtcdMember(t *testing.T) {
	g := NewWithT(t)
	w, r, machine := held(t)
	for _, node := range w.running() {
		node.Update(func(s *talosfake.State) {
			s.Members = append(s.Members, talosclient.EtcdMember{ID: 99, Hostname: machine.Name})
		})
	}
	w.settle(r)

	g.Expect(w.held(machine.Name)).To(BeTrue(), "no configuration before the hand-over")
	condition := conditions.Get(w.controlPlane(), controlplanev1.ScalingUpCondition)
	g.Expect(condition.Status).To(Equal(metav1.ConditionTrue))
	g.Expect(condition.Message).To(ContainSubstring("etcd has a member of the name " + machine.Name))
}

func TestHeldMachineIsNotHandedOverWhileTheControlPlaneIsUnhealthy(t *testing.T) {
	g := NewWithT(t)
	w, r, machine := held(t)
	node := w.running()[0]
	node.SetSilent(true)
	w.settle(r)

	g.Expect(w.held(machine.Name)).To(BeTrue())
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.ScalingUpCondition)).To(ContainSubstring("to answer through the Talos API"))
	g.Expect(conditions.GetMessage(mustMachine(w, machine.Name), controlplanev1.MachineEtcdMemberHealthyCondition)).To(ContainSubstring("its turn to join"))

	node.SetSilent(false)
	w.settle(r)
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(3))
}

func mustMachine(w *world, name string) *clusterv1.Machine {
	w.t.Helper()
	for _, machine := range w.machines() {
		if machine.Name == name {
			return machine
		}
	}
	w.t.Fatalf("no Machine %s", name)

	return nil
}

func TestHeldMachineMayBeDeleted(t *testing.T) {
	g := NewWithT(t)
	w, r, machine := held(t)
	w.hold()
	g.Expect(w.client.Delete(t.Context(), machine)).To(Succeed())
	for range 3 {
		g.Expect(w.reconcile(r)).To(Succeed())
		w.release()
	}
	w.settle(r)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	for _, present := range w.machines() {
		g.Expect(present.Name).NotTo(Equal(machine.Name))
	}
}

func TestDeletedMachineThatHasNotJoinedMayGo(t *testing.T) {
	g := NewWithT(t)
	w, r, _ := held(t)
	var machine *clusterv1.Machine
	for machine == nil {
		g.Expect(w.reconcile(r)).To(Succeed())
		for _, waiting := range w.machines() {
			if waiting.Spec.ProviderID == "" && !w.held(waiting.Name) {
				machine = waiting
			}
		}
	}
	// It has its configuration, and has not joined yet.
	before := machine.DeepCopy()
	machine.Spec.Bootstrap.DataSecretName = ptr.To(machine.Name)
	g.Expect(w.client.Patch(t.Context(), machine, client.MergeFrom(before))).To(Succeed())
	w.hold()
	g.Expect(w.client.Delete(t.Context(), machine)).To(Succeed())
	for range 5 {
		g.Expect(w.reconcile(r)).To(Succeed())
	}
	g.Expect(mustMachine(w, machine.Name).Annotations).NotTo(HaveKey(controlplanev1.EtcdPreTerminateHookAnnotation))
}

func TestScaleUpBalancesFailureDomains(t *testing.T) {
	for name, tc := range map[string]struct {
		free map[string]string
		want map[string]int
	}{
		"three domains":               {map[string]string{"a": "", "b": "", "c": ""}, map[string]int{"a": 1, "b": 1, "c": 1}},
		"a domain without free hosts": {map[string]string{"a": infrav1.FreeHostsSome, "b": infrav1.FreeHostsNone, "c": infrav1.FreeHostsSome}, map[string]int{"a": -1, "b": 0, "c": -1}},
		"no free hosts at all":        {map[string]string{"a": infrav1.FreeHostsNone, "b": infrav1.FreeHostsNone, "c": infrav1.FreeHostsNone}, map[string]int{"a": 1, "b": 1, "c": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cluster, controlPlane := newCluster(), newControlPlane()
			controlPlane.Spec.Replicas = ptr.To(int32(3))
			cluster.Status.FailureDomains = []clusterv1.FailureDomain{{Name: "workers"}}
			for domain, free := range tc.free {
				fd := clusterv1.FailureDomain{Name: domain, ControlPlane: ptr.To(true)}
				if free != "" {
					fd.Attributes = map[string]string{infrav1.FreeHostsAttribute: free}
				}
				cluster.Status.FailureDomains = append(cluster.Status.FailureDomains, fd)
			}
			w := newWorld(t, cluster, controlPlane)
			r := w.manager()
			for range 3 {
				w.settle(r)
			}
			got := map[string]int{}
			for _, machine := range w.machines() {
				got[machine.Spec.FailureDomain]++
			}
			for domain, want := range tc.want {
				if want >= 0 {
					g.Expect(got[domain]).To(Equal(want), domain)
				}
			}
			g.Expect(w.machines()).To(HaveLen(3))
		})
	}
}

func TestNothingIsCreatedWhileTheTopologyBringsAnotherVersion(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	cluster := &clusterv1.Cluster{}
	g.Expect(w.client.Get(t.Context(), client.ObjectKey{Namespace: testNamespace, Name: testCluster}, cluster)).To(Succeed())
	cluster.Spec.Topology = clusterv1.Topology{ClassRef: clusterv1.ClusterClassRef{Name: "c"}, Version: "v1.36.4"}
	g.Expect(w.client.Update(t.Context(), cluster)).To(Succeed())
	w.scale(3)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.ScalingUpCondition)).To(ContainSubstring("topology"))

	cluster.Annotations = map[string]string{clusterv1.ClusterTopologyUpgradeStepAnnotation: "v1.36.3"}
	g.Expect(w.client.Update(t.Context(), cluster)).To(Succeed())
	w.settle(r)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
}

func TestANameThatAMachineHasIsNotGivenAgain(t *testing.T) {
	g := NewWithT(t)
	w, r := scaled(t, 1)
	name := w.machines()[0].Name
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.Replicas = ptr.To(int32(3))
		metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, controlplanev1.NextMachineAnnotation, name)
	})
	before := mustMachine(w, name).DeepCopy()
	w.settle(r)
	w.settle(r)
	g.Expect(w.machines()).To(HaveLen(3))
	g.Expect(mustMachine(w, name).Spec).To(Equal(before.Spec))
}
