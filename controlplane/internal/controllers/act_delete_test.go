package controllers

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	talosfake "github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
)

// anotherTemplate names another template, without surge.
func (w *world) anotherTemplate(name string) {
	w.t.Helper()
	w.change(func(controlPlane *controlplanev1.TalosControlPlane) {
		controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef.Name = name
		controlPlane.Spec.Rollout.Strategy.Type = controlplanev1.RollingUpdateStrategyType
		controlPlane.Spec.Rollout.Strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt(0))
	})
}

func TestAMissingTemplateDeletesNoMachine(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	w.anotherTemplate("typo")
	w.settle(r)
	g.Expect(w.staying()).To(Equal(3))
	g.Expect(w.members()).To(HaveLen(3))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.RollingOutCondition)).To(ContainSubstring("typo does not exist; create it"))

	w.flag(w.machines()[0])
	w.settle(r)
	g.Expect(w.staying()).To(Equal(3))
	g.Expect(conditions.GetMessage(w.machines()[0], clusterv1.MachineOwnerRemediatedCondition)).To(ContainSubstring("typo does not exist"))
}

// withoutTemplates reads live that no template exists.
type withoutTemplates struct{ client.Reader }

func (c withoutTemplates) Get(ctx context.Context, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
	if into.GetObjectKind().GroupVersionKind() == templateGVK {
		key.Name = "gone"
	}

	return c.Reader.Get(ctx, key, into, opts...)
}

func TestATemplateThatIsGoneDeletesNoMachine(t *testing.T) {
	for name, change := range map[string]func(*world){
		"a rollout": func(w *world) {
			w.anotherTemplate(newTemplate().GetName())
			w.change(func(controlPlane *controlplanev1.TalosControlPlane) { controlPlane.Spec.Version = "v1.36.4" })
		},
		"a remediation": func(w *world) { w.flag(w.machines()[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := changing(t, 3)
			change(w)
			r.APIReader = withoutTemplates{w.client}
			w.settle(r)
			g.Expect(w.staying()).To(Equal(3))
			g.Expect(w.controlPlane().Annotations).NotTo(HaveKey(controlplanev1.RemediationInProgressAnnotation))
			r.APIReader = w.client
			w.until(r, func() bool { return w.staying() < 3 })
		})
	}
}

// TestAMachineThatLostItsLabelIsKnown: the owner reference tells.
func TestAMachineThatLostItsLabelIsKnown(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	machine := w.machines()[1]
	delete(machine.Labels, clusterv1.MachineControlPlaneLabel)
	g.Expect(w.client.Update(t.Context(), machine)).To(Succeed())
	w.settle(r)
	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(3))
	g.Expect(w.controlPlane().Status.Replicas).To(HaveValue(BeEquivalentTo(3)))
	g.Expect(w.machines()[1].Labels).To(HaveKey(clusterv1.MachineControlPlaneLabel))
}

// unlisted is a cache that has not seen a Machine.
type unlisted struct {
	client.Client
	name string
}

func (c unlisted) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := c.Client.List(ctx, list, opts...)
	if machines, ok := list.(*clusterv1.MachineList); ok {
		for i := range machines.Items {
			if machines.Items[i].Name == c.name {
				machines.Items = append(machines.Items[:i], machines.Items[i+1:]...)
				break
			}
		}
	}

	return err
}

// TestAMemberWhoseMachineIsNotSeenIsKept: it votes, so it is given time; and what is
// removed then rests on what is there, not on the cache.
func TestAMemberWhoseMachineIsNotSeenIsKept(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	w.scale(2) // None is made in its place.
	hidden := w.machines()[2].Name
	r.Client = unlisted{Client: w.life.Client(w.client), name: hidden}
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(3))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.EtcdClusterHealthyCondition)).To(ContainSubstring("belongs to no Machine"))
	g.Expect(w.recorded()).To(ContainElement(ContainSubstring("unless its Machine comes back")))

	w.clock.SetTime(w.clock.Now().Add(time.Hour))
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(3), "it is there, as a live read tells")

	r.APIReader = r.Client
	w.settle(r)
	g.Expect(w.members()).To(HaveLen(2))
}

// TestALeaveThatIsTakenBackIsWaitedFor: etcd may carry it out still.
func TestALeaveThatIsTakenBackIsWaitedFor(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	leaving := w.machines()[0]
	var begun, ended = make(chan struct{}, 1), make(chan struct{})
	defer close(ended)
	w.talos[leaving.Name].OnLeave = func(*talosfake.Machine) error {
		begun <- struct{}{}
		<-ended
		return nil
	}
	g.Expect(w.client.Delete(t.Context(), leaving)).To(Succeed())
	w.settle(r)
	g.Eventually(begun).Should(Receive())

	r.leaves.Stop(nodes.KeyOf(leaving))
	g.Expect(w.client.Delete(t.Context(), w.machines()[1])).To(Succeed())
	w.settle(r)
	g.Consistently(begun).ShouldNot(Receive())
	g.Expect(conditions.GetMessage(w.machines()[1], controlplanev1.MachineEtcdMemberHealthyCondition)).To(ContainSubstring("one member changes at a time"))

	w.clock.SetTime(w.clock.Now().Add(nodes.LeaveSettles))
	w.settle(r)
	g.Eventually(begun).Should(Receive())
}

// TestALearnerThatIsNeverPromotedIsTold: nobody promotes it, and all waits for it.
func TestALearnerThatIsNeverPromotedIsTold(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	machine := w.machines()[1]
	node := w.talos[machine.Name]
	learner := node.Snapshot().EtcdStatus.MemberID
	node.Fail("EtcdMembers", talosclient.ErrUntrusted) // A learner does not tell them.
	node.Update(func(s *talosfake.State) { s.Services = service("Running", w.clock.Now().Unix()) })
	// The others list it as a learner, and no one promotes it.
	learns := func() {
		for _, other := range w.running() {
			other.Update(func(s *talosfake.State) {
				s.Members = append([]talosclient.EtcdMember(nil), s.Members...)
				for i := range s.Members {
					s.Members[i].Learner = s.Members[i].ID == learner
				}
			})
		}
	}
	learns()
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(conditions.GetReason(w.machines()[1], controlplanev1.MachineEtcdMemberHealthyCondition)).NotTo(Equal(controlplanev1.MachineEtcdMemberNeverPromotedReason))

	w.clock.SetTime(w.clock.Now().Add(15 * time.Minute))
	learns()
	r = w.manager() // What was seen before does not matter.
	g.Expect(w.reconcile(r)).To(Succeed())
	condition := conditions.Get(w.machines()[1], controlplanev1.MachineEtcdMemberHealthyCondition)
	g.Expect(condition.Reason).To(Equal(controlplanev1.MachineEtcdMemberNeverPromotedReason))
	g.Expect(condition.Message).To(ContainSubstring("delete the Machine"))
	g.Expect(conditions.GetMessage(w.controlPlane(), controlplanev1.EtcdClusterHealthyCondition)).To(ContainSubstring("Machine " + machine.Name + ": The etcd member is a learner"))

	g.Expect(w.client.Delete(t.Context(), machine)).To(Succeed())
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.reconcile(r)).To(Succeed())
	g.Expect(w.recorded()).To(ContainElement(And(HavePrefix("Warning EtcdMemberRemoved "), ContainSubstring("a learner"))))
}
