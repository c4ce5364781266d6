package integration

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/support/etcds"
)

// TestRestores restores an etcd that has lost its quorum, and makes a new cluster of the same
// backup: with the managers under their shipped rights, and a snapshot of a real etcd.
func TestRestores(t *testing.T) {
	t.Parallel()
	const name, other = "restores", "restored"
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	vault := newVault(t, name)
	hosts := backUpCluster(t, machines, vault, name)

	// Nothing is touched while etcd has its quorum.
	refused := restoreOf(name, "refused", name)
	g.Expect(world.Client.Create(ctx, refused)).To(Succeed())
	awaitCondition(t, refused, backupv1.RestoreReadyCondition, metav1.ConditionFalse, backupv1.QuorumPresentReason)
	before, boots := machinesOf(ctx, g, name, true), machines.Sim.Bootstraps()
	g.Expect(boots).To(Equal(1))

	spoilEtcd(t, machines, hosts, name)
	restore := restoreOf(name, "back", name)
	g.Expect(world.Client.Create(ctx, restore)).To(Succeed())
	awaitCondition(t, restore, backupv1.MachinesWipedCondition, metav1.ConditionTrue, backupv1.MachinesWipedReason)
	joined := bootsOf(machines, hosts)
	awaitCondition(t, restore, backupv1.RestoreReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	for i, host := range hosts {
		g.Expect(bootsOf(machines, hosts)[i]).To(BeNumerically(">", joined[i]), "%s has restarted", host.Name)
	}
	g.Expect(restore.Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
	g.Expect(machines.Sim.Recoveries()).To(Equal(1))
	g.Expect(machines.Sim.Bootstraps()).To(Equal(2))
	awaitAvailable(t, name)
	g.Expect(machinesOf(ctx, g, name, true)).To(ConsistOf(haveUIDs(before)...))
	g.Expect(controlPlaneOf(ctx, g, name).Annotations).NotTo(HaveKey(controlplanev1.RestoreInProgressAnnotation))
	bundle := &corev1.Secret{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: secrets.BundleName(name)}, bundle)).To(Succeed())

	// On other machines, once these are gone.
	deleteClusters(t, name, name)
	expectWiped(t, machines, hosts...)
	newCluster(t, machines, management.Shape{Namespace: name, Name: other, ControlPlanes: 3}, func(object *unstructured.Unstructured) {
		if object.GetKind() == "TalosControlPlane" {
			object.SetAnnotations(map[string]string{controlplanev1.RestoreAnnotation: "anew"})
		}
	})
	anew := restoreOf(name, "anew", other)
	anew.Spec.Mode, anew.Spec.Confirm = backupv1.RestoreNewCluster, ""
	g.Expect(world.Client.Create(ctx, anew)).To(Succeed())
	awaitCondition(t, anew, backupv1.RestoreReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	copied := &corev1.Secret{}
	g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: secrets.BundleName(other)}, copied)).To(Succeed())
	g.Expect(copied.Data[secrets.BundleKey]).To(MatchYAML(bundle.Data[secrets.BundleKey]))
	g.Expect(machines.Sim.Recoveries()).To(Equal(2))
	g.Eventually(func(g Gomega) {
		controlPlane := &controlplanev1.TalosControlPlane{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: other + "-control-plane"}, controlPlane)).To(Succeed())
		g.Expect(controlPlane.Status.ReadyReplicas).To(HaveValue(BeEquivalentTo(3)))
		g.Expect(told(controlPlane, controlplanev1.AvailableCondition).Status).To(Equal(metav1.ConditionTrue))
	}).WithTimeout(timeout).Should(Succeed())
	vault.expectNothingSecret(t, name, bundle.Data[secrets.BundleKey], &backupv1.TalosEtcdRestoreList{})
	deleteClusters(t, name, other)
	expectWiped(t, machines, hosts...)
}

// backUpCluster makes a cluster of three control plane machines, and backup kept of it.
func backUpCluster(t *testing.T, machines *simfleet.Fleet, vault *vault, name string) []fleet.Host {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	hosts := runCluster(t, machines, name, 3, 0)
	giveSnapshots(t, machines, hosts)
	secret, store := vault.objects(name)
	secret.Data[backupv1.IdentitiesKey] = []byte(vault.key.String())
	store.Spec.IdentitySecretName = secret.Name
	g.Expect(world.Client.Create(ctx, secret)).To(Succeed())
	g.Expect(world.Client.Create(ctx, store)).To(Succeed())
	g.Expect(world.Client.Create(ctx, &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "kept"}, Spec: backupv1.TalosEtcdBackupSpec{ClusterName: name, StoreName: store.Name},
	})).To(Succeed())
	awaitBackup(t, name)
	return hosts
}

// spoilEtcd has all machines of a cluster lose their etcd.
func spoilEtcd(t *testing.T, machines *simfleet.Fleet, hosts []fleet.Host, name string) {
	t.Helper()
	for _, host := range hosts {
		machines.Machine(host).Break(talossim.Faults{SpoiltEtcd: true})
	}
	awaitCondition(t, controlPlaneOf(t.Context(), NewWithT(t), name), controlplanev1.AvailableCondition, metav1.ConditionFalse, controlplanev1.NotAvailableReason)
}

// giveSnapshots has machines give a snapshot of a real etcd.
func giveSnapshots(t *testing.T, machines *simfleet.Fleet, hosts []fleet.Host) {
	t.Helper()
	const release = "3.6"
	g, ctx, programs := NewWithT(t), t.Context(), t.TempDir()
	g.Expect(etcds.Programs(ctx, programs, release)).To(Succeed())
	snapshot, err := etcds.Snapshot(ctx, programs, release, t.TempDir(), func(ctx context.Context, etcd *clientv3.Client) error {
		for i := range 10 {
			if _, err := etcd.Put(ctx, fmt.Sprintf("/registry/configmaps/default/%d", i), "{}"); err != nil {
				return err
			}
		}
		return nil
	})
	g.Expect(err).NotTo(HaveOccurred())
	for _, host := range hosts {
		machines.Machine(host).Break(talossim.Faults{Snapshot: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(snapshot)), nil }})
	}
}

// bootsOf counts how often machines have booted.
func bootsOf(machines *simfleet.Fleet, hosts []fleet.Host) []int {
	var boots []int
	for _, host := range hosts {
		boots = append(boots, machines.Machine(host).Boots())
	}
	return boots
}

// haveUIDs match the same Machines.
func haveUIDs(machines []clusterv1.Machine) []any {
	var same []any
	for _, machine := range machines {
		same = append(same, HaveField("UID", machine.UID))
	}
	return same
}

// restoreOf restores backup kept to a cluster.
func restoreOf(namespace, name, cluster string) *backupv1.TalosEtcdRestore {
	return &backupv1.TalosEtcdRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       backupv1.TalosEtcdRestoreSpec{ClusterName: cluster, BackupName: "kept", Confirm: cluster},
	}
}
