package talos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
)

// place is a management cluster that holds a cluster for a time.
type place struct {
	stack  *management.Stack
	client ctrlclient.Client
}

// newPlace starts a second management cluster that ends with the spec.
func newPlace(ctx context.Context) place {
	GinkgoHelper()
	source, err := parts.SourceDir()
	Expect(err).NotTo(HaveOccurred())
	dir, err := os.MkdirTemp(world.dir, "there-")
	Expect(err).NotTo(HaveOccurred())
	stack, err := management.Up(ctx, management.StackOptions{
		Dir: dir, Repository: filepath.Join(source, "out", "repository"), Output: GinkgoWriter,
		ManagerArgs: managerArgs(),
	})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(stack.Stop)
	reader, err := ctrlclient.New(stack.Config, ctrlclient.Options{Scheme: world.client.Scheme()})
	Expect(err).NotTo(HaveOccurred())
	return place{stack, reader}
}

// expectMoved moves a cluster: all objects are others then, and all that they stand
// for is what it was.
func expectMoved(ctx context.Context, name string, from, to place, hosts []fleet.Host) {
	GinkgoHelper()
	before, access, started := from.identities(ctx, name), from.kubeconfig(ctx, name), startedAt(ctx, hosts)
	installed := helmRecords(ctx, clientOf(access))
	_, err := from.stack.Clusterctl.Run(ctx, nil, "move", "--namespace", name, "--to-kubeconfig", to.stack.Kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	Expect(from.identities(ctx, name)).To(BeEmpty(), "nothing is left behind")
	Eventually(ctx, func(g Gomega) { to.expectAvailable(ctx, g, name) }).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())

	const watched = 30 * time.Second
	Consistently(ctx, func(g Gomega) {
		after := to.identities(ctx, name)
		g.Expect(slices.Sorted(maps.Keys(after))).To(Equal(slices.Sorted(maps.Keys(before))), "nothing rolls")
		for object, uid := range after {
			g.Expect(uid).NotTo(Equal(before[object]), object)
		}
		g.Expect(startedAt(ctx, hosts)).To(Equal(started), "no machine was released or booted")
		g.Expect(to.kubeconfig(ctx, name)).To(Equal(access))
		g.Expect(clientOf(access).List(ctx, &corev1.NodeList{})).To(Succeed(), "the kubeconfig still works")
		g.Expect(helmRecords(ctx, clientOf(access))).To(Equal(installed), "no chart is installed again")
	}).WithTimeout(watched).WithPolling(time.Second).Should(Succeed())
}

// identities are the UIDs of the objects that a move takes along.
func (p place) identities(ctx context.Context, namespace string) map[string]string {
	GinkgoHelper()
	found := map[string]string{}
	for _, list := range []ctrlclient.ObjectList{
		&clusterv1.ClusterList{}, &clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}, &clusterv1.MachineList{},
		&bootstrapv1.TalosConfigList{}, &controlplanev1.TalosControlPlaneList{}, &infrav1.TalosClusterList{}, &infrav1.TalosMachineList{}, &infrav1.TalosHostList{},
		&addonv1.TalosClusterAddonList{}, &addonv1.TalosClusterAddonReleaseList{},
		&backupv1.TalosBackupStoreList{}, &backupv1.TalosEtcdBackupList{}, &backupv1.TalosEtcdBackupScheduleList{}, &backupv1.TalosEtcdRestoreList{},
		&corev1.SecretList{},
	} {
		Expect(p.client.List(ctx, list, ctrlclient.InNamespace(namespace))).To(Succeed())
		items, err := meta.ExtractList(list)
		Expect(err).NotTo(HaveOccurred())
		for _, item := range items {
			object, err := meta.Accessor(item)
			Expect(err).NotTo(HaveOccurred())
			found[fmt.Sprintf("%T %s", item, object.GetName())] = string(object.GetUID())
		}
	}
	return found
}

// kubeconfig is what the management cluster keeps for users.
func (p place) kubeconfig(ctx context.Context, name string) string {
	GinkgoHelper()
	secret := &corev1.Secret{}
	Expect(p.client.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: name + "-kubeconfig"}, secret)).To(Succeed())
	return string(secret.Data["value"])
}

// expectAvailable looks whether all that is told of the cluster is true again.
func (p place) expectAvailable(ctx context.Context, g Gomega, name string) {
	cluster, controlPlane := &clusterv1.Cluster{}, &controlplanev1.TalosControlPlane{}
	g.Expect(p.client.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: name}, cluster)).To(Succeed())
	g.Expect(conditions.IsTrue(cluster, clusterv1.AvailableCondition)).To(BeTrue(), conditions.GetMessage(cluster, clusterv1.AvailableCondition))
	g.Expect(p.client.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: name + "-control-plane"}, controlPlane)).To(Succeed())
	g.Expect(controlPlane.Status.UpToDateReplicas).To(Equal(controlPlane.Spec.Replicas))
	g.Expect(controlPlane.Status.AvailableReplicas).To(Equal(controlPlane.Spec.Replicas))
	releases := &addonv1.TalosClusterAddonReleaseList{}
	g.Expect(p.client.List(ctx, releases, ctrlclient.InNamespace(name))).To(Succeed())
	for i := range releases.Items {
		g.Expect(conditions.IsTrue(&releases.Items[i], addonv1.ReleaseReadyCondition)).To(BeTrue(), conditions.GetMessage(&releases.Items[i], addonv1.ReleaseReadyCondition))
	}
}

// startedAt tells of each machine which one it is and when it was switched on.
func startedAt(ctx context.Context, hosts []fleet.Host) map[string]string {
	GinkgoHelper()
	found := map[string]string{}
	for _, host := range hosts {
		started, err := world.nodes.Fleet.Started(ctx, host)
		Expect(err).NotTo(HaveOccurred())
		found[host.Name] = started
	}
	return found
}
