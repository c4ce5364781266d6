package integration

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// TestManagersAreKilledWhileTheyRestore kills the backup manager with SIGKILL whenever a restore
// has come further, and starts it again. The restore comes to its end in its first attempt.
func TestManagersAreKilledWhileTheyRestore(t *testing.T) {
	const name = "restores-killed"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	hosts := backUpCluster(t, machines, newVault(t, name), name)
	spoilEtcd(t, machines, hosts, name)
	restore := restoreOf(name, "back", name)
	g.Expect(world.Client.Create(ctx, restore)).To(Succeed())

	manager, stories := world.Stack.Managers.Get("backup"), map[string]bool{}
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(restore), restore)).To(Succeed())
		story := ""
		for _, condition := range restore.Status.Conditions {
			story += fmt.Sprint(condition.Type, condition.Status, condition.Reason, " ")
		}
		if !stories[story] {
			stories[story] = true
			g.Expect(manager.Restart(ctx)).To(Succeed())
		}
		g.Expect(restore.Annotations).To(HaveKeyWithValue(backupv1.OutcomeAnnotation, "Completed"), story)
	}).WithTimeout(timeout).Should(Succeed())
	awaitCondition(t, restore, backupv1.RestoreReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	t.Logf("killed %d times", len(stories))
	g.Expect(len(stories)).To(BeNumerically(">=", 5))
	g.Expect(restore.Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(machines.Sim.Bootstraps()).To(Equal(2), "etcd has begun once more, and not again")
	awaitAvailable(t, name)
	g.Expect(controlPlaneOf(ctx, g, name).Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	deleteClusters(t, name, name)
	expectWiped(t, machines, hosts...)
}
