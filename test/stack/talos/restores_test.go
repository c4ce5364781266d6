package talos

import (
	"context"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// raised is more than any revision that a cluster here has by itself: a restore adds it.
const raised = 1_000_000_000

// Restores of a cluster of real machines.
var _ = Describe("Restores", func() {
	It("bring back an etcd that all machines have lost, and make a new cluster of a backup", Label("restores"), func(ctx SpecContext) {
		const name, other = "restores", "restored"
		vault := newVault(ctx, name)
		hosts := addHosts(ctx, name, 4)
		createCluster(ctx, management.Shape{Namespace: name, ControlPlanes: 3, Workers: 1}, nil)
		awaitControlPlane(ctx, name, 3)
		awaitWorkers(ctx, name, 1)
		workload := workloadClient(ctx, name)
		Expect(workload.Create(ctx, deploymentOf(demo.Workload))).To(Succeed())
		pod := awaitPod(ctx, workload)
		write := func(name string) {
			GinkgoHelper()
			Expect(workload.Create(ctx, configMap(name))).To(Succeed())
		}
		write("before")

		By("backing it up as the page says")
		folder := filepath.Join(world.dir, "pages")
		kept := backUpAsThePageSays(ctx, vault, folder, name)
		write("after")
		seen := watchFrom(ctx, name)

		By("refusing to restore it while etcd has its quorum")
		page := openSection(ctx, "backups.md", "The quorum is lost", folder, name)
		page.types(ctx, "create secret")
		refused := restoreOf(kept, "refused", name)
		Expect(world.client.Create(ctx, refused)).To(Succeed())
		awaitRestore(ctx, refused, metav1.ConditionFalse, backupv1.QuorumPresentReason)
		expectVoters(ctx, name, 3)

		By("losing etcd on all control plane machines")
		for _, machine := range machinesOf(ctx, name, controlPlanes) {
			Expect(world.nodes.Fleet.SpoilEtcd(ctx, hostOf(machine))).To(Succeed())
		}
		before, began := uids(machinesOf(ctx, name)), time.Now()
		Eventually(ctx, func() error { return workload.List(ctx, &corev1.NamespaceList{}) }).WithTimeout(timeout).WithPolling(time.Second).ShouldNot(Succeed())

		By("restoring it as the page says")
		Expect(page.types(ctx, "get teb")).To(ContainSubstring(kept.Name))
		restore := &backupv1.TalosEtcdRestore{}
		page.applies(ctx, restore, "daily-"+name+"-20261125t0100z-5d1c0b2f", kept.Name)
		page.types(ctx, "get ter", "--watch", "")
		awaitCondition(ctx, restore, backupv1.MachinesWipedCondition)
		// A restart is a reset that names nothing to wipe in a container, which whoever runs it cannot
		// tell from others.
		keepOnReset(ctx, true)
		DeferCleanup(func(ctx SpecContext) { keepOnReset(ctx, false) })
		joined := startedAt(ctx, hosts)
		awaitRestore(ctx, restore, metav1.ConditionTrue, backupv1.ReadyReason)
		AddReportEntry("restored in place", time.Since(began).Round(time.Second).String())
		Expect(restore.Status.Attempt).To(HaveValue(BeEquivalentTo(1)))
		page.types(ctx, "wait ter")
		page.expectAllTyped()

		By("having restarted each control plane machine, and no other")
		for _, machine := range machinesOf(ctx, name) {
			host := hostOf(machine)
			_, isControlPlane := machine.Labels[clusterv1.MachineControlPlaneLabel]
			Expect(startedAt(ctx, hosts)[host.Name] != joined[host.Name]).To(Equal(isControlPlane), host.Name)
		}

		By("having all that was there, with the same Machines")
		awaitControlPlane(ctx, name, 3)
		awaitWorkers(ctx, name, 1)
		Expect(uids(machinesOf(ctx, name))).To(ConsistOf(before))
		expectRestored(ctx, workload)
		Expect(awaitPod(ctx, workload)).To(Equal(pod), "the Pod ran on")
		seen.expectNothingOlder(ctx)
		expectNodes(ctx, workload, machinesOf(ctx, name))

		By("backing up what it has now, and reading that back")
		patch(ctx, name, "talosbackupstore", kept.Spec.StoreName, `{"spec":{"identitySecretName":"age-identities"}}`)
		later := &backupv1.TalosEtcdBackup{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: name, Name: "later", Annotations: map[string]string{backupv1.VerifyAnnotation: string(backupv1.VerificationRestore)},
			},
			Spec: backupv1.TalosEtcdBackupSpec{ClusterName: name, StoreName: kept.Spec.StoreName},
		}
		Expect(world.client.Create(ctx, later)).To(Succeed())
		later = awaitBackup(ctx, world.client, name, func(backup *backupv1.TalosEtcdBackup) bool {
			return backup.Name == later.Name && backup.Status.Verification.Level == backupv1.VerificationRestore
		})
		Expect(later.Status.Verification.Revision).To(HaveValue(BeNumerically(">", raised)))

		By("making a new cluster of the first one, once the old cluster is gone")
		keepOnReset(ctx, false)
		deleteCluster(ctx, name)
		awaitState(ctx, name, infrav1.HostAvailable)
		began = time.Now()
		createFrom(ctx, management.Shape{Namespace: name, Name: other, ControlPlanes: 3}, "anew")
		anew := restoreOf(kept, "anew", other)
		anew.Spec.Mode, anew.Spec.Confirm = backupv1.RestoreNewCluster, ""
		Expect(world.client.Create(ctx, anew)).To(Succeed())
		awaitCondition(ctx, anew, backupv1.MachinesWipedCondition)
		keepOnReset(ctx, true)
		awaitRestore(ctx, anew, metav1.ConditionTrue, backupv1.ReadyReason)
		keepOnReset(ctx, false)
		AddReportEntry("restored to a new cluster", time.Since(began).Round(time.Second).String())
		fresh := clientOf(string(secretValue(ctx, name, other+"-kubeconfig", "value")))
		expectRestored(ctx, fresh)
		Eventually(ctx, func(g Gomega) {
			found := machinesOfCluster(ctx, name, other)
			g.Expect(found).To(HaveLen(3))
			for _, machine := range found {
				g.Expect(conditions.IsTrue(machine, clusterv1.MachineReadyCondition)).To(BeTrue(), conditions.GetMessage(machine, clusterv1.MachineReadyCondition))
			}
		}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
		expectNodes(ctx, fresh, machinesOfCluster(ctx, name, other))

		By("giving the machines back")
		cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: other}}
		Expect(world.client.Delete(ctx, cluster)).To(Succeed())
		awaitState(ctx, name, infrav1.HostAvailable)
		for _, host := range hosts {
			Expect(world.nodes.Fleet.Wiped(ctx, host)).To(Succeed())
		}
	}, SpecTimeout(3*longTimeout))
})

// restoreOf restores a backup to a cluster.
func restoreOf(backup *backupv1.TalosEtcdBackup, name, cluster string) *backupv1.TalosEtcdRestore {
	return &backupv1.TalosEtcdRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: backup.Namespace, Name: name},
		Spec: backupv1.TalosEtcdRestoreSpec{
			ClusterName: cluster, BackupName: backup.Name, Confirm: cluster, IdentitySecretName: "age-identities",
		},
	}
}

// awaitRestore waits until a restore has ended so.
func awaitRestore(ctx context.Context, restore *backupv1.TalosEtcdRestore, status metav1.ConditionStatus, reason string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(restore), restore)).To(Succeed())
		found := conditions.Get(restore, backupv1.RestoreReadyCondition)
		g.Expect(found).To(HaveValue(And(HaveField("Status", status), HaveField("Reason", reason))))
	}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
}

// keepOnReset has machines come back from a reset with what they have, or blank.
func keepOnReset(ctx context.Context, keep bool) {
	GinkgoHelper()
	Expect(world.nodes.Fleet.KeepDataOnReset(ctx, keep)).To(Succeed())
}

// awaitCondition waits until a condition of a restore is true.
func awaitCondition(ctx context.Context, restore *backupv1.TalosEtcdRestore, kind string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		g.Expect(world.client.Get(ctx, ctrlclient.ObjectKeyFromObject(restore), restore)).To(Succeed())
		g.Expect(conditions.IsTrue(restore, kind)).To(BeTrue(), conditions.GetMessage(restore, kind))
	}).WithTimeout(longTimeout).WithPolling(time.Second).Should(Succeed())
}

// createFrom creates a cluster whose etcd comes from a restore.
func createFrom(ctx context.Context, shape management.Shape, restore string) {
	GinkgoHelper()
	manifests, err := world.stack.Generate(ctx, world.nodes.Fleet, shape)
	Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(manifests)
	Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		if object.GetKind() == "TalosControlPlane" {
			object.SetAnnotations(map[string]string{controlplanev1.RestoreAnnotation: restore})
		}
		Expect(world.client.Create(ctx, object)).To(Succeed())
	}
}

// machinesOfCluster are those of a cluster that has not the name of its namespace.
func machinesOfCluster(ctx context.Context, namespace, cluster string) []*clusterv1.Machine {
	GinkgoHelper()
	list := &clusterv1.MachineList{}
	Expect(world.client.List(ctx, list, ctrlclient.InNamespace(namespace), ctrlclient.MatchingLabels{clusterv1.ClusterNameLabel: cluster})).To(Succeed())
	found := make([]*clusterv1.Machine, 0, len(list.Items))
	for i := range list.Items {
		found = append(found, &list.Items[i])
	}
	return found
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}, Data: map[string]string{"written": name}}
}

// deploymentOf is a Deployment of one Pod.
func deploymentOf(image string) *appsv1.Deployment {
	labels := map[string]string{"app": "lasting"}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "lasting"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "pause", Image: image}}},
			},
		},
	}
}

// awaitPod waits until the Deployment has its one Pod ready, and returns which it is and how
// often its container was started.
func awaitPod(ctx context.Context, workload ctrlclient.Client) (which struct {
	UID      types.UID
	Restarts int32
},
) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		pods := &corev1.PodList{}
		g.Expect(workload.List(ctx, pods, ctrlclient.InNamespace(metav1.NamespaceDefault), ctrlclient.MatchingLabels{"app": "lasting"})).To(Succeed())
		g.Expect(pods.Items).To(HaveLen(1))
		g.Expect(pods.Items[0].Status.Conditions).To(ContainElement(And(HaveField("Type", corev1.PodReady), HaveField("Status", corev1.ConditionTrue))))
		which.UID, which.Restarts = pods.Items[0].UID, pods.Items[0].Status.ContainerStatuses[0].RestartCount
		deployment := &appsv1.Deployment{}
		g.Expect(workload.Get(ctx, ctrlclient.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "lasting"}, deployment)).To(Succeed())
		g.Expect(deployment.Status.AvailableReplicas).To(BeEquivalentTo(1))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	return which
}

// expectRestored finds what was written before the backup, and nothing of after; and that
// something can be written, at a revision that is raised.
func expectRestored(ctx context.Context, workload ctrlclient.Client) {
	GinkgoHelper()
	Expect(writtenAt(ctx, workload)).To(BeNumerically(">", raised))
}

// writtenAt finds what was written before a backup, and nothing of after, and returns the
// revision at which something can be written.
func writtenAt(ctx context.Context, workload ctrlclient.Client) int64 {
	GinkgoHelper()
	Expect(workload.Get(ctx, ctrlclient.ObjectKeyFromObject(configMap("before")), configMap("before"))).To(Succeed())
	Expect(workload.Get(ctx, ctrlclient.ObjectKeyFromObject(configMap("after")), configMap("after"))).To(MatchError(ContainSubstring("not found")))
	written := configMap("restored")
	Expect(workload.Create(ctx, written)).To(Succeed())
	Expect(workload.Delete(ctx, written)).To(Succeed())
	revision, err := strconv.ParseInt(written.ResourceVersion, 10, 64)
	Expect(err).NotTo(HaveOccurred())
	return revision
}

// expectNodes waits until the Nodes are those of the Machines.
func expectNodes(ctx context.Context, workload ctrlclient.Client, machines []*clusterv1.Machine) {
	GinkgoHelper()
	var want []string
	for _, machine := range machines {
		want = append(want, machine.Spec.ProviderID)
	}
	Eventually(ctx, func(g Gomega) {
		nodes := &corev1.NodeList{}
		g.Expect(workload.List(ctx, nodes)).To(Succeed())
		var found []string
		for _, node := range nodes.Items {
			found = append(found, node.Spec.ProviderID)
		}
		g.Expect(found).To(ConsistOf(want))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
}

// watcher is a client that has watched ConfigMaps all the time.
type watcher struct {
	informer cache.SharedIndexInformer

	mu sync.Mutex
	// revisions are those up to which it had seen all, at each event.
	revisions []int64
}

// watchFrom begins to watch the ConfigMaps of a cluster.
func watchFrom(ctx context.Context, name string) *watcher {
	GinkgoHelper()
	access, err := clientcmd.RESTConfigFromKubeConfig(secretValue(ctx, name, name+"-kubeconfig", "value"))
	Expect(err).NotTo(HaveOccurred())
	clients, err := kubernetes.NewForConfig(access)
	Expect(err).NotTo(HaveOccurred())
	factory := informers.NewSharedInformerFactoryWithOptions(clients, 0, informers.WithNamespace(metav1.NamespaceDefault))
	w := &watcher{informer: factory.Core().V1().ConfigMaps().Informer()}
	_, err = w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.note() }, UpdateFunc: func(any, any) { w.note() }, DeleteFunc: func(any) { w.note() },
	})
	Expect(err).NotTo(HaveOccurred())
	watching, cancel := context.WithCancel(context.Background())
	DeferCleanup(cancel)
	go w.informer.Run(watching.Done())
	Expect(cache.WaitForCacheSync(ctx.Done(), w.informer.HasSynced)).To(BeTrue())
	return w
}

func (w *watcher) note() {
	revision, _ := strconv.ParseInt(w.informer.LastSyncResourceVersion(), 10, 64)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revisions = append(w.revisions, revision)
}

// expectNothingOlder waits until the client has what was restored, and expects that time has
// never gone back for it.
func (w *watcher) expectNothingOlder(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) {
		_, was, err := w.informer.GetStore().GetByKey(metav1.NamespaceDefault + "/after")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(was).To(BeFalse(), "it learns that what came after the backup is gone")
		_, is, err := w.informer.GetStore().GetByKey(metav1.NamespaceDefault + "/before")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(is).To(BeTrue())
		g.Expect(strconv.ParseInt(w.informer.LastSyncResourceVersion(), 10, 64)).To(BeNumerically(">", raised))
	}).WithTimeout(timeout).WithPolling(time.Second).Should(Succeed())
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := 1; i < len(w.revisions); i++ {
		Expect(w.revisions[i]).To(BeNumerically(">=", w.revisions[i-1]))
	}
}
