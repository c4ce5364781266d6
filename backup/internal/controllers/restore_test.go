package controllers

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	machinery "github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"go.yaml.in/yaml/v4"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/etcdtool"
	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/backup/internal/scratch"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// expectRestored says that all is as it should be in the end.
func (b *restoreBed) expectRestored(wipes int) {
	b.t.Helper()
	found := b.theRestore()
	for _, stage := range append(stages(), stage{backupv1.RestoreReadyCondition, backupv1.ReadyReason}) {
		b.Expect(says(found, stage.conditionType)).To(Equal("True "+stage.reason), stage.conditionType)
	}
	b.Expect(found.Annotations).To(HaveKeyWithValue(backupv1.OutcomeAnnotation, outcomeCompleted))
	b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.Expect(b.theControlPlane().Annotations).To(HaveKeyWithValue(controlplanev1.ManifestsAnnotation, "restored"), "those in the backup may be of another version")
	b.Expect(b.wipes).To(Equal(map[string]int{"cp-0": wipes, "cp-1": wipes, "cp-2": wipes}))
	b.Expect(b.offences).To(BeEmpty())
}

func TestARestoreInPlace(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(hasEnded)
	b.expectRestored(1)
	for _, node := range b.nodes {
		b.Expect(node.Restarts()).To(Equal(1))
	}
	b.Expect(b.maker.made).To(Equal(2), "it is looked at before anything is wiped, and made again to be sent")
	status := b.theRestore().Status
	b.Expect(status.MachineName).To(Equal("cp-0"))
	b.Expect(status.Revision).To(HaveValue(BeEquivalentTo(1_000_000_042)))
	b.Expect(status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	b.Expect(status.CompletedAt.IsZero()).To(BeFalse())

	// It is never carried out again.
	b.loseRestoreStatus()
	for range 3 {
		b.step()
	}
	b.expectRestored(1)
}

// TestARestartThatIsRefusedIsAskedAgain, and not only when it should long be over.
func TestARestartThatIsRefusedIsAskedAgain(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.EtcdRestoredCondition) == "False WaitingForMembers"
	})
	b.nodes[1].Fail("Restart", errors.New("not authorized"))
	for range 3 {
		_, err := b.restores.Reconcile(t.Context(), requestOf(b.theRestore()))
		b.Expect(err).To(MatchError(ContainSubstring("not authorized")))
		b.clock.Step(restoreInterval)
	}
	b.Expect(b.nodes[1].Restarts()).To(BeZero())
	b.nodes[1].Fail("Restart", nil)
	began := b.clock.Now()
	b.until(hasEnded)
	b.expectRestored(1)
	b.Expect(b.clock.Since(began)).To(BeNumerically("<", 5*time.Minute))
	for _, node := range b.nodes {
		b.Expect(node.Restarts()).To(Equal(1))
	}
}

// TestNothingIsWipedOnceEtcdRuns: neither when the control plane forgets that it does, nor when
// that takes longer than an attempt may.
func TestNothingIsWipedOnceEtcdRuns(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.NodesRestartedCondition) == "False Restarting"
	})
	controlPlane := b.theControlPlane()
	delete(controlPlane.Annotations, controlplanev1.BootstrapIntentAnnotation)
	b.Expect(b.client.Update(t.Context(), controlPlane)).To(Succeed())
	b.clock.Step(2 * time.Hour)
	b.until(hasEnded)
	b.expectRestored(1)
}

func (b *restoreBed) loseRestoreStatus() {
	b.t.Helper()
	found := b.theRestore()
	found.Status = backupv1.TalosEtcdRestoreStatus{}
	b.Expect(b.client.Status().Update(b.t.Context(), found)).To(Succeed())
}

// TestARestoreSurvivesEveryDeath: the manager dies at each of its effects in turn, and its
// successor has no status.
func TestARestoreSurvivesEveryDeath(t *testing.T) {
	for _, fails := range []int{0, 1} {
		whole := newRestoreBed(t)
		whole.fails = fails
		whole.restore()
		whole.until(hasEnded)
		effects := whole.life.Effects()
		whole.Expect(effects).To(BeNumerically(">", 20))
		for n := 1; n <= effects; n++ {
			t.Run(fmt.Sprintf("%d attempts, %d effects", fails+1, n), func(t *testing.T) {
				t.Parallel()
				b := newRestoreBed(t)
				b.fails = fails
				b.restore()
				b.life.DieAt(n)
				b.until(hasEnded)
				b.Expect(b.life.Effects()).To(BeNumerically(">=", n))
				// One that dies before it has recorded that an attempt has failed tries again without
				// another wipe.
				b.Expect(b.wipes["cp-0"]).To(BeNumerically("<=", fails+1))
				b.expectRestored(b.wipes["cp-0"])
			})
		}
	}
}

func TestAnAttemptThatFailsIsRepeated(t *testing.T) {
	b := newRestoreBed(t)
	b.fails = 2
	b.restore()
	b.until(hasEnded)
	b.expectRestored(3)
	b.Expect(b.theRestore().Status.Attempt).To(HaveValue(BeEquivalentTo(3)))
}

func TestARestoreIsGivenUp(t *testing.T) {
	b := newRestoreBed(t)
	b.fails = 3
	b.restore()
	b.until(hasEnded)
	found := b.theRestore()
	b.Expect(says(found, backupv1.RestoreReadyCondition)).To(Equal("False Failed"))
	b.Expect(found.Status.Conditions).To(ContainElement(HaveField("Message", ContainSubstring("no luck"))))
	b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.Expect(b.offences).To(BeEmpty())
}

// TestNothingIsWiped where a restore is refused.
func TestNothingIsWiped(t *testing.T) {
	quorum := func(b *restoreBed) { b.setLeader(1) }
	for name, tc := range map[string]struct {
		change func(*restoreBed)
		with   func(*backupv1.TalosEtcdRestore)
		want   string
	}{
		"etcd has its quorum":        {quorum, nil, "False QuorumPresent"},
		"the API server answers":     {func(b *restoreBed) { b.workload.err = nil }, nil, "False QuorumPresent"},
		"the backup is damaged":      {func(b *restoreBed) { b.maker.err = etcdtool.ErrSnapshot }, nil, "False Damaged"},
		"or something else":          {func(b *restoreBed) { b.maker.err = pipeline.ErrStored }, nil, "False Damaged"},
		"the store has another one":  {func(b *restoreBed) { b.setDigest("00") }, nil, "False Damaged"},
		"the cluster is another one": {func(b *restoreBed) { b.replaceBundle(bundleOf(b, "other")) }, nil, "False OtherCluster"},
		"etcd is older":              {func(b *restoreBed) { b.nodes[1].Update(func(s *fake.State) { s.EtcdSpec.Version = "3.5.21" }) }, nil, "False EtcdTooOld"},
		"a machine is another's":     {func(b *restoreBed) { b.foreignMachine() }, nil, "False InfrastructureUnsupported"},
		"a new cluster runs already": {func(b *restoreBed) { b.annotateControlPlane(controlplanev1.RestoreAnnotation, "back") }, newCluster, "False OtherCluster"},
		"Kubernetes has another CA":  {func(b *restoreBed) { b.changeKeys(otherCA) }, nil, "False OtherCluster"},
		"or a service account key":   {func(b *restoreBed) { b.changeKeys(otherServiceAccounts) }, nil, "False OtherCluster"},
		"or a key for Secrets":       {func(b *restoreBed) { b.changeKeys(otherSecretbox) }, nil, "False OtherCluster"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRestoreBed(t)
			tc.change(b)
			b.restore(func(r *backupv1.TalosEtcdRestore) {
				if tc.with != nil {
					tc.with(r)
				}
			})
			b.until(hasEnded)
			b.Expect(says(b.theRestore(), backupv1.CheckedCondition)).To(Equal(tc.want))
			b.Expect(says(b.theRestore(), backupv1.RestoreReadyCondition)).To(Equal(tc.want))
			b.Expect(b.theRestore().Annotations).To(HaveKeyWithValue(backupv1.OutcomeAnnotation, outcomeFailed))
			b.Expect(b.wipes).To(BeEmpty())
			b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))

			// It stays so, whatever becomes of the cluster.
			b.workload.err, b.maker.err = errors.New("nobody answers"), nil
			for range 3 {
				b.step()
			}
			b.Expect(b.wipes).To(BeEmpty())
			b.Expect(says(b.theRestore(), backupv1.CheckedCondition)).To(Equal(tc.want))
		})
	}
}

func newCluster(r *backupv1.TalosEtcdRestore) {
	r.Spec.Mode, r.Spec.Confirm = backupv1.RestoreNewCluster, ""
}

func (b *restoreBed) replaceBundle(bundle *secrets.Bundle) {
	b.t.Helper()
	secret := b.bundleSecret("prod")
	secret.Data[secrets.BundleKey] = bundle.YAML()
	b.Expect(b.client.Update(b.t.Context(), secret)).To(Succeed())
}

func (b *restoreBed) annotateControlPlane(name, value string) {
	b.t.Helper()
	controlPlane := b.theControlPlane()
	metav1.SetMetaDataAnnotation(&controlPlane.ObjectMeta, name, value)
	b.Expect(b.client.Update(b.t.Context(), controlPlane)).To(Succeed())
}

func (b *restoreBed) foreignMachine() {
	b.t.Helper()
	machine := b.machine("cp-1")
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.example.com", Kind: "CloudMachine", Name: "cp-1"}
	b.Expect(b.client.Update(b.t.Context(), machine)).To(Succeed())
}

// TestARestoreWaits for what may come, and then goes on.
func TestARestoreWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*restoreBed)
		want   string
		mend   func(*restoreBed)
	}{
		"for the backup": {func(b *restoreBed) { b.setOutcome("") }, "Unknown WaitingForBackup", func(b *restoreBed) { b.setOutcome(outcomeCompleted) }},
		"for the store": {
			func(b *restoreBed) { b.Expect(b.client.Delete(b.t.Context(), b.theStore())).To(Succeed()) }, "Unknown WaitingForStore",
			func(b *restoreBed) {
				b.create(b.store(func(s *backupv1.TalosBackupStore) { s.Spec.IdentitySecretName = "identities" }))
				b.settle()
			},
		},
		"for another restore": {
			func(b *restoreBed) {
				b.annotateControlPlane(controlplanev1.RestoreInProgressAnnotation, `{"restore":"other"}`)
			}, "Unknown WaitingForControlPlane",
			func(b *restoreBed) { b.annotateControlPlane(controlplanev1.RestoreInProgressAnnotation, "") },
		},
		"for scratch space":     {func(b *restoreBed) { b.maker.err = scratch.ErrShort }, "Unknown ScratchSpaceShort", func(b *restoreBed) { b.maker.err = nil }},
		"for a private key":     {func(b *restoreBed) { b.maker.err = pipeline.ErrIdentity }, "Unknown NoIdentity", func(b *restoreBed) { b.maker.err = nil }},
		"for a release of etcd": {func(b *restoreBed) { b.maker.err = etcdtool.ErrRelease }, "Unknown EtcdReleaseUnknown", func(b *restoreBed) { b.maker.err = nil }},
		"for the secrets of the cluster": {
			func(b *restoreBed) { b.Expect(b.client.Delete(b.t.Context(), b.bundleSecret("prod"))).To(Succeed()) }, "Unknown WaitingForCluster",
			func(b *restoreBed) { b.createBundle("prod") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newRestoreBed(t)
			tc.change(b)
			b.restore()
			b.until(func(r *backupv1.TalosEtcdRestore) bool { return says(r, backupv1.CheckedCondition) == tc.want })
			b.Expect(b.wipes).To(BeEmpty())
			tc.mend(b)
			b.clock.Step(time.Minute)
			b.until(hasEnded)
			b.expectRestored(1)
		})
	}
}

// TestARestoreEndsWithItsControlPlane: one of the same name, which another restore has made of
// the backup since, is left alone.
func TestARestoreEndsWithItsControlPlane(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.MachinesWipedCondition) == "False Wiping"
	})
	b.Expect(b.client.Delete(t.Context(), b.theControlPlane())).To(Succeed())
	b.create(&controlplanev1.TalosControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prod-cp"}})
	b.setLeader(1)
	b.until(hasEnded)
	b.expectNothingWiped(backupv1.RestoreReadyCondition, "False Failed")
}

// TestTheNextRestoreGoesOnFromALaterRevision, also from an older backup.
func TestTheNextRestoreGoesOnFromALaterRevision(t *testing.T) {
	for name, answers := range map[string]bool{"than the API server tells": true, "than the former one": false} {
		t.Run(name, func(t *testing.T) {
			b := newRestoreBed(t)
			b.restore()
			b.until(hasEnded)
			former := *b.theRestore().Status.Revision
			b.Expect(b.client.Delete(t.Context(), b.theRestore())).To(Succeed())
			b.step()
			if !answers {
				b.workload.err = errors.New("nobody answers")
			} else {
				former = b.workload.revision
			}
			b.restore(func(r *backupv1.TalosEtcdRestore) {
				r.Spec.QuorumPolicy, r.UID = backupv1.QuorumDiscard, "uid-of-the-next"
			})
			b.until(hasEnded)
			b.expectRestored(2)
			b.Expect(b.theRestore().Status.Revision).To(HaveValue(Equal(former + restore.Bump)))
			b.Expect(b.maker.sent).To(HaveExactElements(BeNumerically(">", 0), former+restore.Bump))
		})
	}
}

// TestWhatEtcdHasIsDiscarded only where somebody says so.
func TestWhatEtcdHasIsDiscarded(t *testing.T) {
	b := newRestoreBed(t)
	b.workload.err = nil
	b.restore(func(r *backupv1.TalosEtcdRestore) { r.Spec.QuorumPolicy = backupv1.QuorumDiscard })
	b.until(hasEnded)
	b.expectRestored(1)
}

// TestARestoreThatIsDeleted lets the control plane go.
func TestARestoreThatIsDeleted(t *testing.T) {
	b := newRestoreBed(t)
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.MachinesWipedCondition) == "False Wiping"
	})
	b.step()
	b.Expect(b.theControlPlane().Annotations).To(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.Expect(b.client.Delete(b.t.Context(), b.theRestore())).To(Succeed())
	for range 3 {
		b.step()
	}
	b.Expect(b.theControlPlane().Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.Expect(client.IgnoreNotFound(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "back"}, &backupv1.TalosEtcdRestore{}))).To(Succeed())
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "back"}, &backupv1.TalosEtcdRestore{})).NotTo(Succeed())
}

// TestABackupInUseStays until the restore that reads it has ended.
func TestABackupInUseStays(t *testing.T) {
	b := newRestoreBed(t)
	b.maker.err = scratch.ErrShort
	b.restore()
	b.step()
	edit(b.bed, b.theBackup("one"), func(backup *backupv1.TalosEtcdBackup) { backup.Spec.DeletionPolicy = backupv1.DeletionDelete })
	b.Expect(b.client.Delete(b.t.Context(), b.theBackup("one"))).To(Succeed())
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.BackupDeletingCondition)).To(Equal("True BackupInUse"))
	b.maker.err = nil
	b.clock.Step(time.Hour)
	b.until(hasEnded)
	b.expectRestored(1)
	b.clock.Step(time.Hour)
	b.settle()
	b.Expect(b.allBackups()).To(BeEmpty())
	b.Expect(b.keys()).To(BeEmpty())
}

// TestTheEndIsLookedAt: the API server must tell the revision of the backup, and Nodes that
// may be alive are waited for.
func TestTheEndIsLookedAt(t *testing.T) {
	b := newRestoreBed(t)
	b.workload.nodes = []string{"old"}
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.NodesRestartedCondition) == "False WaitingForNodes"
	})
	b.workload.nodes, b.workload.revision = nil, 50
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return says(r, backupv1.NodesRestartedCondition) == "False WaitingForAPIServer"
	})
	b.Expect(b.theControlPlane().Annotations).To(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	b.workload.revision = 1_000_000_050
	b.until(hasEnded)
	b.expectRestored(1)
}

// TestTheEndSaysWhatHoldsItUp: the words of the API server, and nothing that is another from
// one look to the next.
func TestTheEndSaysWhatHoldsItUp(t *testing.T) {
	b := newRestoreBed(t)
	says := func() string {
		b.step()
		b.Expect(says(b.theRestore(), backupv1.NodesRestartedCondition)).To(Equal("False WaitingForNodes"))
		return conditions.GetMessage(b.theRestore(), backupv1.NodesRestartedCondition)
	}
	cut := func(port int) error { return fmt.Errorf("read tcp 10.0.0.1:%d: connection reset by peer", port) }
	b.workload.nodes = []string{"old"}
	b.restore()
	b.until(func(r *backupv1.TalosEtcdRestore) bool {
		return conditions.GetReason(r, backupv1.NodesRestartedCondition) == backupv1.WaitingForNodesReason
	})
	b.workload.undeleted = fmt.Errorf("deleting Node old: %w", apierrors.NewInternalError(errors.New(`failed calling webhook "policy"`)))
	b.Expect(says()).To(HaveSuffix(`until that is mended in the cluster. The API server says: deleting Node old: Internal error occurred: failed calling webhook "policy"`))
	b.workload.nodes, b.workload.undeleted, b.workload.unlisted = nil, nil, cut(40001)
	first := says()
	b.workload.unlisted = cut(40002)
	b.Expect(says()).To(And(Equal(first), ContainSubstring("log of the manager")))
	b.workload.unlisted = nil
	b.until(hasEnded)
	b.expectRestored(1)
}

// TestWorkersThatTheBackupDoesNotKnow have no Node until somebody restarts their kubelets: that
// is said, and nothing waits for it.
func TestWorkersThatTheBackupDoesNotKnow(t *testing.T) {
	b := newRestoreBed(t)
	b.workload.missing = []string{"worker-7"}
	b.restore()
	b.until(hasEnded)
	b.expectRestored(1)
	b.Expect(conditions.GetMessage(b.theRestore(), backupv1.NodesRestartedCondition)).To(ContainSubstring("worker-7"))
}

func (b *restoreBed) bundleSecret(cluster string) *corev1.Secret {
	b.t.Helper()
	found := &corev1.Secret{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: secrets.BundleName(cluster)}, found)).To(Succeed())

	return found
}

func (b *restoreBed) createBundle(cluster string) {
	b.t.Helper()
	b.create(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secrets.BundleName(cluster)}, Data: map[string][]byte{secrets.BundleKey: bundleOf(b, cluster).YAML()},
	})
}

// changeKeys gives the cluster other keys, and the CA of its Talos API stays.
func (b *restoreBed) changeKeys(change func(ours, others *machinery.Bundle)) {
	b.t.Helper()
	changed := *bundleOf(b, "prod").Machinery()
	certs, keys := *changed.Certs, *changed.Secrets
	changed.Certs, changed.Secrets = &certs, &keys
	change(&changed, bundleOf(b, "other").Machinery())
	raw, err := yaml.Marshal(&changed)
	b.Expect(err).NotTo(HaveOccurred())
	bundle, err := secrets.ParseBundle(raw)
	b.Expect(err).NotTo(HaveOccurred())
	b.replaceBundle(bundle)
}

// Keys of a cluster that a rotation changes: without the former ones its API server cannot
// read what a backup has, or does not know whom it was given to.
func otherCA(ours, others *machinery.Bundle) { ours.Certs.K8s = others.Certs.K8s }
func otherServiceAccounts(ours, others *machinery.Bundle) {
	ours.Certs.K8sServiceAccount = others.Certs.K8sServiceAccount
}
func otherSecretbox(ours, others *machinery.Bundle) {
	ours.Secrets.SecretboxEncryptionSecret = others.Secrets.SecretboxEncryptionSecret
}

// setOutcome changes how the backup has ended, and nothing else.
func (b *restoreBed) setOutcome(outcome string) {
	b.t.Helper()
	backup := b.theBackup("one")
	backup.Annotations[backupv1.OutcomeAnnotation] = outcome
	b.Expect(b.client.Update(b.t.Context(), backup)).To(Succeed())
}

// setDigest changes what the backup knows of its snapshot.
func (b *restoreBed) setDigest(sha256 string) {
	b.t.Helper()
	backup := b.theBackup("one")
	backup.Status.Snapshot.SHA256 = sha256
	b.Expect(b.client.Status().Update(b.t.Context(), backup)).To(Succeed())
}
