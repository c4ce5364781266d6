package controllers

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// TestAMemberIsKeptWhoseMachineWasConfiguredMeanwhile: Machines are read before the nodes
// are asked, so a Machine may be seen without its configuration though its node is listed
// by etcd. What is removed rests on what is there right before.
func TestAMemberIsKeptWhoseMachineWasConfiguredMeanwhile(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	w, r := changing(t, 3)
	s := &scope{cluster: w.cluster(), controlPlane: w.controlPlane()}
	g.Expect(inOrder(ctx, s, r.gatherMachines, r.gatherMachineRefs, r.gatherCertificates)).To(Succeed())
	r.observer().Forget(s.machines)
	g.Expect(inOrder(ctx, s, r.gatherNodes, r.gatherFacts)).To(Succeed())
	own, listed := ownMember(s.nodes[s.machines[2].Name])
	g.Expect(listed).To(BeTrue())
	s.decision = plan.Decision{Action: plan.RemoveMember, MemberID: own.ID, Message: "Removing a member"}

	configured := s.machines[2].Spec.Bootstrap.DataSecretName
	s.machines[2].Spec.Bootstrap.DataSecretName = nil
	g.Expect(r.removeMember(ctx, s)).To(Succeed())
	g.Expect(w.members()).To(HaveLen(3))

	s.machines[2].Spec.Bootstrap.DataSecretName = ptr.To(*configured)
	g.Expect(r.removeMember(ctx, s)).To(Succeed())
	g.Expect(w.members()).To(HaveLen(2), "it was kept for that reason alone")
}
