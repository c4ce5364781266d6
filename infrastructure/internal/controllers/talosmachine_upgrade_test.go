package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/controllers"
	"github.com/capi-talos/capi-talos/infrastructure/internal/harness"
)

// TestAnUpgradeRenamesConditions: the first reconcile of a new manager renames what the
// manager before it has written. Nothing else is known of some machines.
func TestAnUpgradeRenamesConditions(t *testing.T) {
	g := NewWithT(t)
	w, m, metal := harness.Provisioned(t)
	long := metav1.NewTime(w.Clock.Now().Add(-24 * time.Hour).Truncate(time.Second))
	machine := w.Machine("a")
	machine.Status.Conditions = []metav1.Condition{
		{Type: infrav1.ReadyCondition, Status: metav1.ConditionTrue, Reason: "Running", LastTransitionTime: long},
		{Type: "HostClaimed", Status: metav1.ConditionTrue, Reason: "Claimed", LastTransitionTime: long},
		{Type: "ConfigurationApplied", Status: metav1.ConditionTrue, Reason: "Applied", LastTransitionTime: long},
		{Type: "HostRunning", Status: metav1.ConditionTrue, Reason: "Running", LastTransitionTime: long},
		{Type: "IdentityUnverified", Status: metav1.ConditionTrue, Reason: "NoFingerprint", LastTransitionTime: long},
		{Type: "SomebodyElses", Status: metav1.ConditionTrue, Reason: "Theirs", LastTransitionTime: long},
	}
	g.Expect(w.Client.Status().Update(t.Context(), machine)).To(Succeed())

	w.Settle(m)
	g.Expect(metal.Applied()).To(HaveLen(1))
	machine = w.Machine("a")
	known := map[string]metav1.ConditionStatus{}
	for _, condition := range machine.Status.Conditions {
		known[condition.Type] = condition.Status
	}
	g.Expect(known).To(And(
		HaveKeyWithValue(infrav1.AllocatedCondition, metav1.ConditionTrue),
		HaveKeyWithValue(infrav1.RunningCondition, metav1.ConditionTrue),
		HaveKeyWithValue(infrav1.IdentityVerifiedCondition, metav1.ConditionUnknown),
		HaveKeyWithValue("SomebodyElses", metav1.ConditionTrue),
		Not(HaveKey("HostClaimed")), Not(HaveKey("HostRunning")), Not(HaveKey("IdentityUnverified"))))
	for _, name := range []string{infrav1.ReadyCondition, infrav1.AllocatedCondition, infrav1.RunningCondition} {
		g.Expect(conditions.Get(machine, name).LastTransitionTime.UTC()).To(Equal(long.UTC()), "nothing has happened to the machine")
	}
}

func TestFormerNamesOfConditions(t *testing.T) {
	is := func(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason}
	}
	for name, tt := range map[string]struct{ before, after []metav1.Condition }{
		"a machine that does not answer": {
			before: []metav1.Condition{is("HostRunning", metav1.ConditionFalse, "NotAnswering")},
			after:  []metav1.Condition{is("Running", metav1.ConditionFalse, "Unreachable")},
		},
		"a verified machine": {
			before: []metav1.Condition{is("IdentityUnverified", metav1.ConditionFalse, "FingerprintVerified")},
			after:  []metav1.Condition{is("IdentityVerified", metav1.ConditionTrue, "FingerprintVerified")},
		},
		"a machine that was perhaps the wrong one": {
			before: []metav1.Condition{is("IdentityUnverified", metav1.ConditionTrue, "OtherFingerprint")},
			after:  []metav1.Condition{is("IdentityVerified", metav1.ConditionFalse, "FingerprintChanged")},
		},
		"a machine without a configuration": {
			before: []metav1.Condition{is("IdentityUnverified", metav1.ConditionFalse, "NotHandedOver")},
			after:  []metav1.Condition{is("IdentityVerified", metav1.ConditionUnknown, "NotConfigured")},
		},
		"a reason of a condition that keeps its name": {
			before: []metav1.Condition{is("Reprovisioning", metav1.ConditionFalse, "EtcdNeedsMachine")},
			after:  []metav1.Condition{is("Reprovisioning", metav1.ConditionFalse, "EtcdQuorumAtRisk")},
		},
		"a condition of somebody else": {
			before: []metav1.Condition{is("HostRunning", metav1.ConditionTrue, "Running"), is("Theirs", metav1.ConditionFalse, "NotAnswering")},
			after:  []metav1.Condition{is("Running", metav1.ConditionTrue, "Running"), is("Theirs", metav1.ConditionFalse, "NotAnswering")},
		},
		"both names, after a manager of the former revision was back for a while": {
			before: []metav1.Condition{is("HostClaimed", metav1.ConditionTrue, "Claimed"), is("Allocated", metav1.ConditionFalse, "NoHostFits")},
			after:  []metav1.Condition{is("Allocated", metav1.ConditionFalse, "NoHostFits")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(controllers.Upgraded(tt.before)).To(Equal(tt.after))
		})
	}
}
