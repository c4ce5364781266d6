package controllers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/restore"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/mortal"
)

// restoreBed is a bed whose Cluster has lost its etcd, with a control plane and machines that
// do what they are told.
type restoreBed struct {
	*bed

	life     *mortal.Life
	restores *RestoreReconciler
	maker    *fakeMaker
	workload *fakeWorkload
	// wipes counts how often each machine was wiped, and offences are what must never be.
	wipes    map[string]int
	offences []string
	// touching guards touched, which counts the changes of others.
	touching sync.Mutex
	touched  int
	// fails is how often etcd cannot be restored from a database.
	fails int
}

// newRestoreBed has a backup of Cluster prod, whose etcd has lost its quorum since.
func newRestoreBed(t *testing.T) *restoreBed {
	t.Helper()
	b := &restoreBed{bed: newBed(t), life: &mortal.Life{}, maker: &fakeMaker{}, workload: &fakeWorkload{err: errors.New("nobody answers")}, wipes: map[string]int{}}
	b.create(b.identities())
	edit(b.bed, b.theStore(), func(s *backupv1.TalosBackupStore) { s.Spec.IdentitySecretName = "identities" })
	b.backup("one")
	b.settle()
	b.Expect(says(b.theBackup("one"), backupv1.CompletedCondition)).To(Equal("True Completed"))
	b.createControlPlane()
	for _, node := range b.nodes {
		node.Update(func(s *fake.State) {
			s.EtcdData, s.EtcdStatus.Leader, s.EtcdSpec = true, 0, talosclient.EtcdSpec{Hostname: s.Hostname, Version: "3.6.12"}
			s.Services = []talosclient.Service{{ID: "etcd", State: "Running", Started: b.clock.Now().Add(-time.Hour)}}
		})
	}
	b.startRestores()

	return b
}

func (b *restoreBed) createControlPlane() {
	b.t.Helper()
	b.create(&controlplanev1.TalosControlPlane{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prod-cp"}})
	cluster := &clusterv1.Cluster{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "prod"}, cluster)).To(Succeed())
	cluster.Spec.ControlPlaneRef = clusterv1.ContractVersionedObjectReference{APIGroup: controlplanev1.GroupVersion.Group, Kind: "TalosControlPlane", Name: "prod-cp"}
	b.Expect(b.client.Update(b.t.Context(), cluster)).To(Succeed())
	for i := range b.nodes {
		name := fmt.Sprintf("cp-%d", i)
		b.create(&infrav1.TalosMachine{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		machine := b.machine(name)
		machine.Spec.ProviderID, machine.Spec.Bootstrap.DataSecretName = "talos://"+name, ptr.To(name)
		machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: infrav1.GroupVersion.Group, Kind: "TalosMachine", Name: name}
		b.Expect(b.client.Update(b.t.Context(), machine)).To(Succeed())
	}
}

func (b *restoreBed) machine(name string) *clusterv1.Machine {
	b.t.Helper()
	machine := &clusterv1.Machine{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, machine)).To(Succeed())

	return machine
}

// startRestores starts a new manager, which knows nothing of the former one.
func (b *restoreBed) startRestores() {
	b.life.Restart()
	b.maker.life = b.life
	mortalClient := b.life.Client(b.client.(client.WithWatch)) //nolint:forcetypeassert // It is a fake.
	b.restores = &RestoreReconciler{
		Client: mortalClient, APIReader: mortalClient, SecretCachingClient: mortalClient, Stores: b.backups.Stores, Dialer: &mortalDialer{Dialer: b.dialer, life: b.life, meanwhile: b.touch},
		Maker: b.maker, Workload: b.workload, Jobs: jobs.New[metrics.Step, RestoreResult](b.t.Context(), jobs.Limits{Total: 10, PerCluster: 1}),
		Metrics: b.metrics, Clock: b.clock, Random: requeue.SharedRandom{}, Recorder: b.events,
	}
	b.restores.init()
}

// touch changes what other controllers write all the time.
func (b *restoreBed) touch() {
	b.touching.Lock()
	defer b.touching.Unlock()
	objects := []client.Object{b.theControlPlane()}
	for i := range b.nodes {
		its := &infrav1.TalosMachine{}
		b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: fmt.Sprintf("cp-%d", i)}, its)).To(Succeed())
		objects = append(objects, its)
	}
	b.touched++
	for _, object := range objects {
		object.SetLabels(map[string]string{"touched": fmt.Sprint(b.touched)})
		b.Expect(b.client.Update(b.t.Context(), object)).To(Succeed())
	}
}

// fakeMaker makes a database of any backup: package restore shows it with the programs of etcd.
type fakeMaker struct {
	life *mortal.Life
	// err is what is wrong.
	err error
	// made counts the databases, and sent are the revisions of those that were sent.
	made int
	sent []int64
}

const theDatabase = "a database"

func (m *fakeMaker) Make(_ context.Context, _ *archive.Archive, _ *archive.Manifest, _ []age.Identity, seen int64, use func(io.Reader) error) (*restore.Database, error) {
	m.made++
	if m.err != nil {
		return nil, m.err
	}
	made := &restore.Database{Revision: max(42, seen) + restore.Bump}
	if use != nil {
		m.sent = append(m.sent, made.Revision)
		if err := use(strings.NewReader(theDatabase)); err != nil {
			return nil, err
		}
	}

	return made, nil
}

// fakeWorkload is the API server of the cluster.
type fakeWorkload struct {
	err      error
	revision int64
	// nodes are those that are not known to be gone yet, and missing the Machines that have
	// none.
	nodes, missing []string
	// undeleted is why Nodes cannot be deleted, and unlisted why they cannot be listed.
	undeleted, unlisted error
}

func (w *fakeWorkload) Revision(context.Context, client.ObjectKey) (int64, error) {
	return w.revision, w.err
}

func (w *fakeWorkload) DeleteNodesWithout(context.Context, client.ObjectKey, []*clusterv1.Machine, time.Time) ([]string, error) {
	return w.nodes, cmp.Or(w.undeleted, w.err)
}

func (w *fakeWorkload) WorkersWithout(context.Context, client.ObjectKey, []*clusterv1.Machine) ([]string, error) {
	return w.missing, cmp.Or(w.unlisted, w.err)
}

// mortalDialer gives nodes whose calls that change something are effects.
type mortalDialer struct {
	*fake.Dialer

	life *mortal.Life
	// meanwhile is what others do while nodes are asked.
	meanwhile func()
}

func (d *mortalDialer) Secure(ctx context.Context, address string, creds talosclient.Credentials) (talosclient.Node, error) {
	d.meanwhile()
	node, err := d.Dialer.Secure(ctx, address, creds)

	return &mortalNode{Node: node, life: d.life}, err
}

type mortalNode struct {
	talosclient.Node

	life *mortal.Life
}

func (n *mortalNode) EtcdRecover(ctx context.Context, database io.Reader) error {
	return n.life.Around(func() error { return n.Node.EtcdRecover(ctx, database) })
}

func (n *mortalNode) Restart(ctx context.Context) error {
	return n.life.Around(func() error { return n.Node.Restart(ctx) })
}

// restore makes a restore of Cluster prod from backup one.
func (b *restoreBed) restore(changes ...func(*backupv1.TalosEtcdRestore)) {
	b.t.Helper()
	made := &backupv1.TalosEtcdRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "back", UID: types.UID("uid-of-back")},
		Spec:       backupv1.TalosEtcdRestoreSpec{ClusterName: "prod", BackupName: "one", Confirm: "prod"},
	}
	for _, change := range changes {
		change(made)
	}
	b.create(made)
}

func (b *restoreBed) theRestore() *backupv1.TalosEtcdRestore {
	b.t.Helper()
	found := &backupv1.TalosEtcdRestore{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "back"}, found)).To(Succeed())

	return found
}

func (b *restoreBed) theControlPlane() *controlplanev1.TalosControlPlane {
	b.t.Helper()
	found := &controlplanev1.TalosControlPlane{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "prod-cp"}, found)).To(Succeed())

	return found
}

// step reconciles the restore once, and waits for its job. A manager that has died is
// replaced. Then the world does what it was told.
func (b *restoreBed) step() {
	b.t.Helper()
	key := client.ObjectKey{Namespace: namespace, Name: "back"}
	_, err := b.restores.Reconcile(b.t.Context(), requestOf(&backupv1.TalosEtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}))
	b.Eventually(func() bool { _, running := b.restores.Jobs.Running(key); return running }).WithTimeout(time.Minute).Should(BeFalse())
	if b.life.IsOver() {
		b.startRestores()
		b.loseRestoreStatus()
	} else {
		b.Expect(err).NotTo(HaveOccurred())
	}
	b.world()
	b.clock.Step(restoreInterval)
}

// until steps until the restore is as wanted.
func (b *restoreBed) until(is func(*backupv1.TalosEtcdRestore) bool) {
	b.t.Helper()
	for range 400 {
		if is(b.theRestore()) {
			return
		}
		b.step()
	}
	b.t.Fatalf("it does not come so far: %+v", b.theRestore().Status.Conditions)
}

func hasEnded(of *backupv1.TalosEtcdRestore) bool {
	return of.Annotations[backupv1.OutcomeAnnotation] != "" && says(of, backupv1.RestoreReadyCondition) != ""
}

// world does what the infrastructure, the control plane and etcd do.
func (b *restoreBed) world() {
	b.t.Helper()
	record, intent := b.records()
	for i, node := range b.nodes {
		name, its := fmt.Sprintf("cp-%d", i), &infrav1.TalosMachine{}
		b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, its)).To(Succeed())
		if metav1.HasAnnotation(its.ObjectMeta, infrav1.ReprovisionAnnotation) {
			b.wipe(name, node, its, record, intent)
		}
	}
	record, intent = b.records()
	if record.Machine == "" {
		return
	}
	target := b.nodes[slices.Index([]string{"cp-0", "cp-1", "cp-2"}, record.Machine)]
	switch state := target.Snapshot(); {
	case state.EtcdData && state.Services[0].State == "Failed":
	case state.EtcdData:
		b.join(target)
	case intent.Restore != record.ID || !intent.Bootstrapped:
		b.bootstrap(record, target)
	}
}

func (b *restoreBed) records() (controlplanev1.RestoreRecord, controlplanev1.BootstrapIntent) {
	controlPlane := b.theControlPlane()
	record, intent := controlplanev1.RestoreRecord{}, controlplanev1.BootstrapIntent{}
	_ = json.Unmarshal([]byte(controlPlane.Annotations[controlplanev1.RestoreInProgressAnnotation]), &record)
	_ = json.Unmarshal([]byte(controlPlane.Annotations[controlplanev1.BootstrapIntentAnnotation]), &intent)

	return record, intent
}

// wipe wipes a machine, and gives it its configuration again.
func (b *restoreBed) wipe(name string, node *fake.Machine, its *infrav1.TalosMachine, record controlplanev1.RestoreRecord, intent controlplanev1.BootstrapIntent) {
	b.wipes[name]++
	if record.Restore == "" {
		b.offences = append(b.offences, "a machine is wiped whose control plane is not held")
	}
	if intent.Bootstrapped && intent.Restore == record.ID && record.ID != "" {
		b.offences = append(b.offences, "a machine is wiped after etcd was restored")
	}
	if its.Annotations[infrav1.ReprovisionAnnotation] != infrav1.ReprovisionDespiteOthers {
		b.offences = append(b.offences, "the wipe waits for others")
	}
	delete(its.Annotations, infrav1.ReprovisionAnnotation)
	b.Expect(b.client.Update(b.t.Context(), its)).To(Succeed())
	node.Update(func(s *fake.State) {
		s.EtcdData, s.EtcdDatabase, s.Members = false, nil, nil
		s.Services = []talosclient.Service{{ID: "etcd", State: "Preparing", Started: b.clock.Now()}}
	})
}

// bootstrap does as the control plane does when all nodes have no data.
func (b *restoreBed) bootstrap(record controlplanev1.RestoreRecord, target *fake.Machine) {
	for _, node := range b.nodes {
		if node.Snapshot().EtcdData {
			b.offences = append(b.offences, "a node has data when etcd is to be restored")
			return
		}
	}
	if string(target.Snapshot().EtcdDatabase) != theDatabase {
		b.offences = append(b.offences, "the node has no database")
		return
	}
	if b.fails > 0 {
		b.fails--
		// Talos makes the data before it starts etcd.
		target.Update(func(s *fake.State) {
			s.EtcdData, s.Services[0].State, s.Services[0].LastMessage = true, "Failed", "no luck"
		})
		return
	}
	target.Update(func(s *fake.State) {
		s.EtcdData, s.EtcdDatabase, s.Members = true, nil, []talosclient.EtcdMember{{ID: s.EtcdStatus.MemberID}}
		s.EtcdStatus.Leader = s.EtcdStatus.MemberID
		s.Services = []talosclient.Service{{ID: "etcd", State: "Running", Started: b.clock.Now()}}
	})
	progress, err := readProgress(b.theRestore())
	b.Expect(err).NotTo(HaveOccurred())
	b.workload.err, b.workload.revision = nil, progress.Revision+8
	controlPlane := b.theControlPlane()
	value, err := json.Marshal(controlplanev1.BootstrapIntent{Kind: "Machine", Name: record.Machine, Restore: record.ID, Bootstrapped: true, Initialized: true})
	b.Expect(err).NotTo(HaveOccurred())
	controlPlane.Annotations[controlplanev1.BootstrapIntentAnnotation] = string(value)
	b.Expect(b.client.Update(b.t.Context(), controlPlane)).To(Succeed())
}

// join has all nodes vote.
func (b *restoreBed) join(target *fake.Machine) {
	var members []talosclient.EtcdMember
	for _, node := range b.nodes {
		members = append(members, talosclient.EtcdMember{ID: node.Snapshot().EtcdStatus.MemberID})
	}
	leader := target.Snapshot().EtcdStatus.MemberID
	for _, node := range b.nodes {
		node.Update(func(s *fake.State) {
			if !s.EtcdData {
				s.Services = []talosclient.Service{{ID: "etcd", State: "Running", Started: b.clock.Now()}}
			}
			s.EtcdData, s.Members, s.EtcdStatus.Leader = true, members, leader
		})
		node.OnRestart = func(m *fake.Machine) error {
			m.Update(func(s *fake.State) {
				s.Services = []talosclient.Service{{ID: "etcd", State: "Running", Started: b.clock.Now()}}
			})
			return nil
		}
	}
}
