package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/plan"
)

// told is what a condition of the control plane says.
func (w *world) told(conditionType string) *metav1.Condition {
	w.t.Helper()
	found := conditions.Get(w.controlPlane(), conditionType)
	NewWithT(w.t).Expect(found).NotTo(BeNil(), conditionType)

	return found
}

// tell lets a manager, whose reconciles may fail, and the others take turns. In the end what
// it tells stays the same: a status that is written each time starts the next reconcile.
func (w *world) tell(r *Reconciler) {
	w.t.Helper()
	turns := func(times int) {
		for range times {
			if err := w.reconcile(r); err != nil {
				w.t.Log(err)
			}
			w.others()
		}
	}
	turns(6)
	before := w.versions()
	turns(2)
	NewWithT(w.t).Expect(w.versions()).To(Equal(before), "nothing is written again")
}

// versions are those of the control planes and their Machines.
func (w *world) versions() map[string]string {
	w.t.Helper()
	list, found := &controlplanev1.TalosControlPlaneList{}, map[string]string{}
	NewWithT(w.t).Expect(w.client.List(w.t.Context(), list)).To(Succeed())
	for _, controlPlane := range list.Items {
		found[controlPlane.Name] = controlPlane.ResourceVersion
	}
	for _, machine := range w.machines() {
		found[machine.Name] = machine.ResourceVersion
	}

	return found
}

// errQuota is how the API server refuses what a quota does not allow.
var errQuota = apierrors.NewForbidden(schema.GroupResource{Group: clusterv1.GroupVersion.Group, Resource: "machines"}, "x", errors.New("exceeded quota: machines"))

// refusing has the API server refuse a manager what makes another Machine, the deletion of
// Machines, and backups.
func (w *world) refusing(r *Reconciler) {
	w.t.Helper()
	var present []string
	for _, machine := range w.infraMachines() {
		present = append(present, machine.GetName())
	}
	r.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if named, has := object.(interface{ GetName() string }); has && !slices.Contains(present, named.GetName()) {
				return errQuota
			}
			return c.Apply(ctx, object, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
			if _, is := object.(*backupv1.TalosEtcdBackup); is {
				return apierrors.NewForbidden(backupv1.GroupVersion.WithResource("talosetcdbackups").GroupResource(), object.GetName(), errors.New("exceeded quota: backups"))
			}
			return c.Create(ctx, object, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			if _, is := object.(*clusterv1.Machine); is {
				return errQuota
			}
			return c.Delete(ctx, object, opts...)
		},
	})
	r.applier, r.backups.Client = newApplier(w.t.Context(), r.Client), r.Client
}

// TestWhatCannotBeReadIsTold: nothing is decided before a person has mended it.
func TestWhatCannotBeReadIsTold(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*world, *Reconciler)
		says  string
	}{
		"the kind of the template is not installed": {func(w *world, _ *Reconciler) {
			w.change(func(c *controlplanev1.TalosControlPlane) {
				c.Spec.MachineTemplate.Spec.InfrastructureRef.Kind = "PlainMachineTemplat"
			})
		}, "PlainMachineTemplat plain in API group infrastructure.cluster.x-k8s.io cannot be read"},
		"the kubeconfig is none": {func(_ *world, r *Reconciler) { r.Prober = brokenProber{} },
			"asking the API server by Secret one-kubeconfig: no kubeconfig; correct it"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			w, r := scaled(t, 3)
			tc.spoil(w, r)
			w.scale(5)

			w.tell(r)

			for _, conditionType := range []string{controlplanev1.AvailableCondition, controlplanev1.ScalingUpCondition} {
				g.Expect(w.told(conditionType).Message).To(ContainSubstring(tc.says), conditionType)
			}
			g.Expect(w.told(controlplanev1.CertificatesAvailableCondition).Status).To(Equal(metav1.ConditionTrue), "they are there")
			g.Expect(w.machines()).To(HaveLen(3))
		})
	}
}

// TestCertificatesThatNobodyHasLookedAtAreUnknown: what fails before is not their fault.
func TestCertificatesThatNobodyHasLookedAtAreUnknown(t *testing.T) {
	g := NewWithT(t)
	controlPlane := newControlPlane()
	controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef.Kind = "PlainMachineTemplat"
	w := newWorld(t, newCluster(), controlPlane)

	w.tell(w.manager())

	g.Expect(w.told(controlplanev1.CertificatesAvailableCondition).Status).To(Equal(metav1.ConditionUnknown))
	g.Expect(w.told(controlplanev1.InitializedCondition).Message).To(ContainSubstring("PlainMachineTemplat plain"))
}

// TestARefusalOfTheAPIServerIsTold: the cause is in the condition of what does not go on.
func TestARefusalOfTheAPIServerIsTold(t *testing.T) {
	t.Run("another Machine", func(t *testing.T) {
		g := NewWithT(t)
		w, r := changing(t, 1)
		w.refusing(r)
		w.scale(3)

		w.tell(r)

		g.Expect(w.told(controlplanev1.ScalingUpCondition).Message).To(ContainSubstring("exceeded quota"))
		g.Expect(w.told(controlplanev1.AvailableCondition).Status).To(Equal(metav1.ConditionTrue))
		g.Expect(w.told(controlplanev1.AvailableCondition).Message).To(ContainSubstring("exceeded quota"))
	})
	t.Run("a remediation", func(t *testing.T) {
		g := NewWithT(t)
		w, r := changing(t, 3)
		w.refusing(r)
		w.talos[w.machines()[2].Name].SetSilent(true)
		w.flag(w.machines()[2])

		w.tell(r)

		g.Expect(conditions.GetMessage(w.machines()[2], clusterv1.MachineOwnerRemediatedCondition)).To(And(
			HavePrefix("The Machine is to be deleted\n"), ContainSubstring("exceeded quota")))
	})
	for _, policy := range []controlplanev1.BackupPolicy{controlplanev1.BackupRequired, controlplanev1.BackupBestEffort} {
		t.Run("not for the backup before a remediation: "+string(policy), func(t *testing.T) {
			g := NewWithT(t)
			w, r := backedUp(t, 3, policy)
			w.refusing(r)
			w.talos[w.machines()[2].Name].SetSilent(true)
			w.flag(w.machines()[2])

			w.tell(r)

			g.Expect(conditions.GetMessage(w.machines()[2], clusterv1.MachineOwnerRemediatedCondition)).To(And(
				HavePrefix("The Machine is to be deleted\n"), ContainSubstring("exceeded quota: machines")))
			g.Expect(w.backups()).To(BeEmpty())
		})
	}
	t.Run("the backup before a change", func(t *testing.T) {
		g := NewWithT(t)
		w, r := backedUp(t, 3, "")
		w.refusing(r)
		w.scale(1)

		w.tell(r)

		g.Expect(w.told(controlplanev1.ScalingDownCondition).Message).To(ContainSubstring("exceeded quota: backups"))
	})
	t.Run("a change with a backup that is not required", func(t *testing.T) {
		g := NewWithT(t)
		w, r := backedUp(t, 3, controlplanev1.BackupBestEffort)
		w.refusing(r)
		w.scale(1)

		w.tell(r)

		g.Expect(w.told(controlplanev1.ScalingDownCondition).Message).To(ContainSubstring("exceeded quota: machines"))
	})
	t.Run("the deletion of the control plane", func(t *testing.T) {
		g := NewWithT(t)
		w, r := changing(t, 1)
		w.refusing(r)
		g.Expect(w.client.Delete(t.Context(), w.controlPlane())).To(Succeed())

		w.tell(r)

		g.Expect(w.told(controlplanev1.DeletingCondition).Message).To(ContainSubstring("exceeded quota"))
	})
}

// TestWhatWaitsForAPersonIsToldOfAHealthyControlPlane: it stays available, and nothing that
// is wanted is done.
func TestWhatWaitsForAPersonIsToldOfAHealthyControlPlane(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 3)
	stray := w.machines()[0].DeepCopy()
	stray.Name, stray.UID, stray.ResourceVersion, stray.OwnerReferences = "stray", "", "", nil
	stray.Spec = clusterv1.MachineSpec{ProviderID: "other://stray"}
	delete(stray.Labels, clusterv1.MachineControlPlaneNameLabel)
	g.Expect(w.client.Create(t.Context(), stray)).To(Succeed())
	broken := w.machines()[0]
	w.talos[broken.Name].SetSilent(true)
	w.flag(broken)

	w.tell(r)

	available := w.told(controlplanev1.AvailableCondition)
	g.Expect(available.Status).To(Equal(metav1.ConditionTrue), available.Message)
	g.Expect(available.Message).To(ContainSubstring("do not belong to this TalosControlPlane: stray;"))
	g.Expect(conditions.GetMessage(w.machines()[0], clusterv1.MachineOwnerRemediatedCondition)).To(ContainSubstring("stray"))
}

// TestTheOnlyMachineThatCannotBeReplacedSaysWhy: the way out is not to give the data up.
func TestTheOnlyMachineThatCannotBeReplacedSaysWhy(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	w.change(func(c *controlplanev1.TalosControlPlane) {
		c.Spec.MachineTemplate.Spec.InfrastructureRef.Name = "absent"
	})
	g.Expect(w.client.Delete(t.Context(), w.machines()[0])).To(Succeed())

	w.tell(r)

	g.Expect(w.machines()).To(HaveLen(1))
	g.Expect(w.told(controlplanev1.ScalingUpCondition)).To(And(
		HaveField("Status", metav1.ConditionTrue), HaveField("Message", ContainSubstring("absent"))))
	g.Expect(conditions.GetMessage(w.machines()[0], controlplanev1.MachineEtcdMemberHealthyCondition)).To(And(
		ContainSubstring("absent"), ContainSubstring(controlplanev1.EtcdPreTerminateHookOverrideAnnotation)))
}

// TestAControlPlaneWithoutItsClusterGoes: somebody has taken the finalizer from the Cluster.
// Cluster API's Machines wait for it, and somebody has to make it again.
func TestAControlPlaneWithoutItsClusterGoes(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	g.Expect(w.client.Delete(t.Context(), w.controlPlane())).To(Succeed())
	g.Expect(w.client.Delete(t.Context(), newCluster())).To(Succeed())
	w.tell(r)
	g.Expect(w.told(controlplanev1.DeletingCondition).Message).To(ContainSubstring("Cluster one does not exist"))
	g.Expect(w.machines()).To(HaveEach(HaveField("DeletionTimestamp", Not(BeNil()))))

	machine := w.machines()[0]
	machine.Finalizers = nil
	g.Expect(w.client.Update(t.Context(), machine)).To(Succeed())
	w.tell(r)
	g.Expect(apierrors.IsNotFound(w.client.Get(t.Context(), testKey, &controlplanev1.TalosControlPlane{}))).To(BeTrue())
}

// TestThatSomebodyWasFasterIsNotTold: the next reconcile begins with what is there then.
func TestThatSomebodyWasFasterIsNotTold(t *testing.T) {
	g := NewWithT(t)
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "secrets"}, "x", errors.New("the object has been modified"))
	decided := plan.Decision{Action: plan.CreateMachine, Message: "Creating one more control plane Machine"}
	for _, s := range []*scope{{gatherErr: conflict}, {gatherErr: fmt.Errorf("writing: %w", conflict)}, {decision: decided, effectErr: conflict}} {
		g.Expect(standstill(s)).To(BeEmpty())
		g.Expect(progress(s)).To(Equal(s.decision.Message))
	}

	s := &scope{cluster: newCluster(), controlPlane: newControlPlane(), gatherErr: conflict}
	conditions.Set(s.controlPlane, metav1.Condition{Type: controlplanev1.InitializedCondition, Status: metav1.ConditionFalse, Reason: "Known", Message: "as before"})
	setInitializedCondition(s)
	g.Expect(conditions.GetMessage(s.controlPlane, controlplanev1.InitializedCondition)).To(Equal("as before"))
}

// TestWhatPersonsAreToldOfTheNetworkStaysTheSame: each try is from another port.
func TestWhatPersonsAreToldOfTheNetworkStaysTheSame(t *testing.T) {
	g := NewWithT(t)
	tried := func(port int) error {
		return fmt.Errorf("creating: %w", apierrors.NewInternalError(fmt.Errorf("failed calling webhook: read tcp 10.0.0.1:%d->10.0.0.2:443: reset", port)))
	}
	g.Expect(explain(tried(40000))).To(And(Equal(explain(tried(40001))), HavePrefix(objects.Says+"creating: Internal error occurred: failed calling webhook")))
	g.Expect(explain(causeError{tried(40000)})).To(Equal(explain(causeError{tried(40001)})))
}

// TestAnAPIServerThatDoesNotAnswerAfterAMoveIsTold: the status is lost, and etcd is well.
func TestAnAPIServerThatDoesNotAnswerAfterAMoveIsTold(t *testing.T) {
	g := NewWithT(t)
	w, r := changing(t, 1)
	w.loseStatus()
	w.prober.set(health.APIServerNotReady)

	w.tell(r)

	for _, conditionType := range []string{controlplanev1.InitializedCondition, controlplanev1.AvailableCondition} {
		g.Expect(w.told(conditionType)).To(And(HaveField("Status", metav1.ConditionFalse), HaveField("Message", ContainSubstring("and is not ready"))), conditionType)
	}
}
