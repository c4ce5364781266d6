package integration

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
)

// robbery is a tenant with a backup, and one beside that has stores in the same bucket, the
// private key, and a user with both roles of docs/backups.md.
type robbery struct {
	t                *testing.T
	victim, intruder string
	user             client.Client
	vault            *vault
	// kept is the victim's backup, and files are what is stored of it.
	kept  *backupv1.TalosEtcdBackup
	files map[string][]byte
	// stores are those of the intruder.
	stores []string
}

// TestWhatABackupUserCannotDo: neither rights, nor names and prefixes that are chosen to
// collide, nor annotations that are the victim's lead to the backup, the cluster or the keys of
// another namespace.
func TestWhatABackupUserCannotDo(t *testing.T) {
	t.Parallel()
	const victim, intruder = "backups-a", "backups-a-b"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	r := &robbery{t: t, victim: victim, intruder: intruder, vault: newVault(t, victim)}
	hosts := runCluster(t, machines, victim, 1, 0)
	giveSnapshots(t, machines, hosts)
	secret, store := r.vault.objects(victim)
	store.Spec.S3.Prefix = "a"
	g.Expect(world.Client.Create(ctx, secret)).To(Succeed())
	g.Expect(world.Client.Create(ctx, store)).To(Succeed())
	g.Expect(world.Client.Create(ctx, &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: victim, Name: "kept"}, Spec: backupv1.TalosEtcdBackupSpec{ClusterName: victim, StoreName: store.Name},
	})).To(Succeed())
	r.kept = awaitBackup(t, victim)
	r.files = r.vault.files(ctx, g)
	g.Expect(r.files).To(HaveLen(3))
	bundle := &corev1.Secret{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: victim, Name: secrets.BundleName(victim)}, bundle)).To(Succeed())

	r.comeNear()
	expectRefused(t, attackNamed(ctx, r.user, victim, "kept", backupKinds()))
	expectRefused(t, r.reachBeyond())
	r.forgeBackups()
	r.forgeRestores()
	g.Expect(r.vault.files(ctx, g)).To(Equal(r.files), "all of the victim's is there, and nothing else")
	g.Expect(controlPlaneOf(ctx, g, victim).Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	awaitAvailable(t, victim)
	r.vault.expectNothingSecret(t, intruder, bundle.Data[secrets.BundleKey], &backupv1.TalosEtcdRestoreList{}, &backupv1.TalosEtcdBackupScheduleList{})
	deleteClusters(t, victim, victim)
	expectWiped(t, machines, hosts...)
}

// backupKinds are those of the provider, and Secrets.
func backupKinds() []schema.GroupVersionKind {
	kinds := []schema.GroupVersionKind{corev1.SchemeGroupVersion.WithKind("Secret")}
	for _, kind := range []string{"TalosBackupStore", "TalosEtcdBackup", "TalosEtcdBackupSchedule", "TalosEtcdRestore"} {
		kinds = append(kinds, backupv1.GroupVersion.WithKind(kind))
	}
	return kinds
}

// comeNear gives the intruder stores in the victim's bucket, which import all that they find,
// and the victim's private key. All of them find nothing.
func (r *robbery) comeNear() {
	g, ctx := NewWithT(r.t), r.t.Context()
	createNamespace(r.t, r.intruder)
	var folder string
	for key := range r.files {
		folder, _, _ = strings.Cut(key, "/"+r.victim+"/")
	}
	secret, _ := r.vault.objects(r.intruder)
	secret.Data[backupv1.IdentitiesKey] = []byte(r.vault.key.String())
	g.Expect(world.Client.Create(ctx, secret)).To(Succeed())
	for i, prefix := range []string{"", "a", "a-b", "a/b", folder, folder + "/" + r.victim, folder + "/" + r.victim + "/" + r.victim} {
		_, store := r.vault.objects(r.intruder)
		store.Name, store.Spec.S3.Prefix, store.Spec.ImportPolicy = fmt.Sprintf("store-%d", i), prefix, backupv1.ImportAlways
		store.Spec.IdentitySecretName = secret.Name
		g.Expect(world.Client.Create(ctx, store)).To(Succeed())
		awaitCondition(r.t, store, backupv1.StoreReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
		r.stores = append(r.stores, store.Name)
	}
	g.Expect(r.backups()).To(BeEmpty(), "nothing of the victim's is imported")
	r.user = tenant(r.t, r.intruder, "backups.md", &backupv1.TalosEtcdBackupList{})
}

func (r *robbery) backups() []backupv1.TalosEtcdBackup {
	list := &backupv1.TalosEtcdBackupList{}
	NewWithT(r.t).Expect(world.Client.List(r.t.Context(), list, client.InNamespace(r.intruder))).To(Succeed())
	return list.Items
}

// reachBeyond is what neither role allows in the intruder's own namespace.
func (r *robbery) reachBeyond() map[string]attempt {
	ctx := r.t.Context()
	_, store := r.vault.objects(r.intruder)
	own := &backupv1.TalosBackupStore{ObjectMeta: metav1.ObjectMeta{Namespace: r.intruder, Name: r.stores[0]}}
	return map[string]attempt{
		"a store of its own":      {func() error { return r.user.Create(ctx, store) }, apierrors.IsForbidden, nil},
		"the deletion of a store": {func() error { return r.user.Delete(ctx, own.DeepCopy()) }, apierrors.IsForbidden, nil},
		"another bucket of a store": {func() error {
			return r.user.Patch(ctx, own.DeepCopy(), client.RawPatch(client.Merge.Type(), []byte(`{"spec":{"recipients":[]}}`)))
		}, apierrors.IsForbidden, nil},
		"the credentials of a store": {func() error {
			return r.user.Get(ctx, client.ObjectKey{Namespace: r.intruder, Name: "s3"}, &corev1.Secret{})
		}, apierrors.IsForbidden, nil},
	}
}

// forged are the annotations by which the victim's backup is known, and those of one that is
// complete or imported.
func (r *robbery) forged() map[string]string {
	annotations := maps.Clone(r.kept.Annotations)
	annotations[backupv1.ImportedAnnotation] = ""
	return annotations
}

// forgeBackups makes backups that say to be the victim's, in each store, and deletes them with
// their data: some by hand, and some by the retention of a schedule.
func (r *robbery) forgeBackups() {
	g, ctx := NewWithT(r.t), r.t.Context()
	schedule := &backupv1.TalosEtcdBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.intruder, Name: "all"},
		Spec: backupv1.TalosEtcdBackupScheduleSpec{
			MatchAll: new(true), StoreName: r.stores[0], Schedule: "* * * * *", ConcurrencyPolicy: backupv1.ConcurrencyReplace,
			Retention: backupv1.Retention{Last: new(int32(1))}, FailedLimit: new(int32(0)),
		},
	}
	g.Expect(r.user.Create(ctx, schedule)).To(Succeed())
	for i, store := range r.stores {
		for kind, annotations := range map[string]map[string]string{"new": nil, "forged": r.forged()} {
			backup := &backupv1.TalosEtcdBackup{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: r.intruder, Name: fmt.Sprintf("%s-%d", kind, i), Annotations: annotations,
					Labels: map[string]string{clusterv1.ClusterNameLabel: r.victim, backupv1.ScheduleNameLabel: schedule.Name},
				},
				Spec: backupv1.TalosEtcdBackupSpec{ClusterName: r.victim, StoreName: store, DeletionPolicy: backupv1.DeletionDelete},
			}
			if i == 1 && kind == "forged" {
				backup.Name = r.kept.Name
			}
			g.Expect(r.user.Create(ctx, backup)).To(Succeed())
			g.Eventually(func(g Gomega) {
				g.Expect(r.user.Get(ctx, client.ObjectKeyFromObject(backup), backup)).To(Succeed())
				found := told(backup, backupv1.CompletedCondition)
				g.Expect(found.Reason).To(BeElementOf(backupv1.WaitingForClusterReason, backupv1.MissingReason), found.Message)
			}).WithTimeout(timeout).Should(Succeed(), backup.Name)
			g.Expect(backup.Status.Snapshot.SHA256).To(BeEmpty(), "it has not found the victim's")
		}
	}
	for _, backup := range r.backups() {
		g.Expect(client.IgnoreNotFound(r.user.Delete(ctx, &backup))).To(Succeed())
	}
	g.Eventually(r.backups).WithTimeout(timeout).Should(BeEmpty())
}

// forgeRestores makes restores of the victim's cluster, from a backup that says to be the
// victim's: they wait for a Cluster that is not there, and no Secret is brought.
func (r *robbery) forgeRestores() {
	g, ctx := NewWithT(r.t), r.t.Context()
	backup := &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.intruder, Name: r.kept.Name, Annotations: r.forged()},
		Spec:       backupv1.TalosEtcdBackupSpec{ClusterName: r.victim, StoreName: r.stores[1]},
	}
	g.Expect(r.user.Create(ctx, backup)).To(Succeed())
	for _, mode := range []backupv1.RestoreMode{backupv1.RestoreInPlace, backupv1.RestoreNewCluster} {
		restore := restoreOf(r.intruder, "of-"+strings.ToLower(string(mode)), r.victim)
		restore.Spec.Mode, restore.Spec.QuorumPolicy, restore.Spec.IdentitySecretName = mode, backupv1.QuorumDiscard, "s3"
		g.Expect(r.user.Create(ctx, restore)).To(Succeed())
		awaitCondition(r.t, restore, backupv1.CheckedCondition, metav1.ConditionUnknown, backupv1.WaitingForClusterReason)
	}
	list := &corev1.SecretList{}
	g.Expect(world.Client.List(ctx, list, client.InNamespace(r.intruder))).To(Succeed())
	g.Expect(list.Items).To(ConsistOf(HaveField("Name", "s3")))
}
