package controllers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	fakeclient "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/backup/internal/archive"
	"github.com/capi-talos/capi-talos/backup/internal/metrics"
	"github.com/capi-talos/capi-talos/backup/internal/snapshot"
	"github.com/capi-talos/capi-talos/backup/internal/stores"
	"github.com/capi-talos/capi-talos/backup/internal/verify"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/egress"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/jobs"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/requeue"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient/fake"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

const namespace = "team"

var (
	server  *s3server.Server
	buckets atomic.Int64

	// bundleOf makes the secrets of a cluster, once for each name: that takes a while.
	bundlesMu sync.Mutex
	bundles   = map[string]*secrets.Bundle{}
)

func TestMain(m *testing.M) { os.Exit(s3server.Main(m, &server)) }

func bundleOf(g Gomega, name string) *secrets.Bundle {
	bundlesMu.Lock()
	defer bundlesMu.Unlock()
	if bundles[name] == nil {
		made, err := secrets.NewBundle(time.Now(), "v1.13", nil)
		g.Expect(err).NotTo(HaveOccurred())
		bundles[name] = made
	}

	return bundles[name]
}

// bed is a management cluster with one workload cluster, whose machines are fakes, and a
// real S3 server.
type bed struct {
	*WithT

	t      *testing.T
	client client.Client
	clock  *clocktesting.FakeClock
	events *events.FakeRecorder
	dialer *fake.Dialer
	nodes  []*fake.Machine
	bucket string
	// key is that of the recipient of the store.
	key *age.X25519Identity
	// snapshots counts those that were taken.
	snapshots atomic.Int64
	// onRequest sees each request to the store before it is sent, and may have it fail; nil
	// lets all pass.
	onRequest func(*http.Request) error

	metrics   *metrics.Metrics
	verifier  *fakeVerifier
	stores    *StoreReconciler
	backups   *BackupReconciler
	schedules *ScheduleReconciler
}

func newBed(t *testing.T) *bed {
	t.Helper()
	bucket, key := newBucket(t, true)

	return newBedAt(t, bucket, key, time.Now().Truncate(time.Second))
}

// newBucket makes a bucket, versioned or not, and the key of those who can read what is
// stored there.
func newBucket(t *testing.T, versioned bool) (string, *age.X25519Identity) {
	t.Helper()
	g := NewWithT(t)
	bucket := fmt.Sprintf("bucket-%d", buckets.Add(1))
	g.Expect(server.MakeBucket(t.Context(), bucket, minio.MakeBucketOptions{})).To(Succeed())
	if versioned {
		g.Expect(server.EnableVersioning(t.Context(), bucket)).To(Succeed())
	}
	key, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())

	return bucket, key
}

// newBedAt is a bed whose store has a bucket that others may have used, and whose clock
// begins at a time.
func newBedAt(t *testing.T, bucket string, key *age.X25519Identity, begin time.Time) *bed {
	t.Helper()
	scheme := runtime.NewScheme()
	b := &bed{
		WithT: NewWithT(t), t: t, clock: clocktesting.NewFakeClock(begin), events: events.NewFakeRecorder(1000),
		dialer: fake.NewDialer(), bucket: bucket, key: key, verifier: &fakeVerifier{},
	}
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, clusterv1.AddToScheme, backupv1.AddToScheme, controlplanev1.AddToScheme, infrav1.AddToScheme} {
		b.Expect(add(scheme)).To(Succeed())
	}
	b.client = fakeclient.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&backupv1.TalosBackupStore{}, &backupv1.TalosEtcdBackup{}, &backupv1.TalosEtcdBackupSchedule{}, &backupv1.TalosEtcdRestore{}, &clusterv1.Cluster{}).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			// As an API server does.
			if object.GetUID() == "" {
				object.SetUID(uuid.NewUUID())
			}
			return c.Create(ctx, object, options...)
		}}).Build()
	b.create(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "s3"}, Data: map[string][]byte{
			backupv1.AccessKeyIDKey: []byte(s3server.AccessKey), backupv1.SecretAccessKeyKey: []byte(s3server.SecretKey + "\n"), backupv1.CAKey: server.CA,
		}},
		b.store(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secrets.BundleName("prod")}, Data: map[string][]byte{secrets.BundleKey: bundleOf(b, "prod").YAML()}},
	)
	b.createCluster()
	b.start()

	return b
}

// store is the store of the bed.
func (b *bed) store(changes ...func(*backupv1.TalosBackupStore)) *backupv1.TalosBackupStore {
	store := &backupv1.TalosBackupStore{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "store", Generation: 1}, Spec: backupv1.TalosBackupStoreSpec{
		S3:         backupv1.S3Store{Endpoint: server.Endpoint, Bucket: b.bucket, Prefix: "some/prefix", CredentialsSecretName: "s3", CASecretName: "s3"},
		Recipients: []string{b.key.Recipient().String()},
	}}
	for _, change := range changes {
		change(store)
	}

	return store
}

// createCluster makes Cluster prod with three control plane Machines.
func (b *bed) createCluster() {
	b.t.Helper()
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "prod", Labels: map[string]string{"tier": "gold"}, CreationTimestamp: metav1.NewTime(b.clock.Now())}}
	cluster.Status.Initialization.ControlPlaneInitialized = ptr.To(true)
	b.create(cluster)
	var members []talosclient.EtcdMember
	for id := range uint64(3) {
		members = append(members, talosclient.EtcdMember{ID: id + 1})
	}
	for id := range uint64(3) {
		name, address := fmt.Sprintf("cp-%d", id), fmt.Sprintf("10.0.0.%d", id+1)
		machine := &clusterv1.Machine{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{clusterv1.ClusterNameLabel: "prod", clusterv1.MachineControlPlaneLabel: ""}},
			Spec:       clusterv1.MachineSpec{ClusterName: "prod", Version: "v1.36.3"},
		}
		machine.Status.Addresses = clusterv1.MachineAddresses{{Type: clusterv1.MachineInternalIP, Address: address}}
		machine.Status.Initialization.InfrastructureProvisioned = ptr.To(true)
		b.create(machine)
		node := fake.NewMachine(fake.State{
			Hostname: name, Version: "v1.13.9", Members: members,
			EtcdStatus: talosclient.EtcdStatus{MemberID: id + 1, Leader: 1, RaftIndex: 42, RaftAppliedIndex: 42, Version: "3.6.12"},
		})
		node.OnSnapshot = func(context.Context, *fake.Machine) (io.ReadCloser, error) {
			b.snapshots.Add(1)
			return io.NopCloser(bytes.NewReader(etcdSnapshot(100_000))), nil
		}
		b.nodes = append(b.nodes, b.dialer.Add(address, node))
	}
}

// etcdSnapshot is one as etcd gives it.
func etcdSnapshot(size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	sum := sha256.Sum256(data)

	return append(data, sum[:]...)
}

// start starts a new manager, which knows nothing of the former one.
func (b *bed) start() {
	work := jobs.New[metrics.Step, Result](b.t.Context(), jobs.Limits{Total: 10, PerCluster: 1})
	b.metrics = metrics.New(work.Count)
	opener := &stores.Opener{Live: b.client, Clock: b.clock, Guard: egress.Guard{AllowLocal: true, Proxy: b.proxy}, Attempts: 1}
	b.stores = &StoreReconciler{Client: b.client, APIReader: b.client, Stores: opener, Metrics: b.metrics, Clock: b.clock, Random: requeue.SharedRandom{}, Recorder: b.events}
	b.stores.init()
	b.backups = &BackupReconciler{
		Client: b.client, APIReader: b.client, SecretCachingClient: b.client, Stores: opener, Taker: &snapshot.Taker{Dialer: b.dialer}, Verifier: b.verifier,
		Jobs: work, Metrics: b.metrics, Clock: b.clock, Random: requeue.SharedRandom{}, Recorder: b.events, Tool: "test",
	}
	b.backups.init()
	b.schedules = &ScheduleReconciler{Client: b.client, APIReader: b.client, SecretCachingClient: b.client, Metrics: b.metrics, Clock: b.clock, Recorder: b.events}
}

// proxy is asked for the proxy of each request: there is none.
func (b *bed) proxy(request *http.Request) (*url.URL, error) {
	if b.onRequest == nil {
		return nil, nil //nolint:nilnil // It is the form of http.Transport.
	}

	return nil, b.onRequest(request)
}

// fakeVerifier finds by digest what there is, and by the other levels what a test says:
// package verify shows these with a real etcd.
type fakeVerifier struct {
	// err is what is wrong, and asked are the levels that were asked for.
	err   error
	asked []backupv1.VerificationLevel
	// keys is with how many private keys.
	keys int
}

func (v *fakeVerifier) Verify(ctx context.Context, level backupv1.VerificationLevel, in *archive.Archive, manifest *archive.Manifest, identities []age.Identity) (*verify.Report, error) {
	if level == backupv1.VerificationDigest {
		return &verify.Report{Level: level}, in.Check(ctx, manifest)
	}
	v.asked, v.keys = append(v.asked, level), len(identities)
	if v.err != nil {
		return nil, v.err
	}

	return &verify.Report{Level: level, Etcd: "3.6", Revision: 42, Keys: 7}, nil
}

// refusing is a client that makes no objects of a type while an API server has words against it.
func refusing[T client.Object](c client.Client, words func() error) client.Client {
	return interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{ //nolint:forcetypeassert // It is a fake.
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if _, is := object.(T); is && words() != nil {
				return words()
			}
			return c.Create(ctx, object, options...)
		},
	})
}

func (b *bed) create(objects ...client.Object) {
	b.t.Helper()
	for _, object := range objects {
		b.Expect(b.client.Create(b.t.Context(), object)).To(Succeed())
	}
}

// backup makes a backup of Cluster prod.
func (b *bed) backup(name string, changes ...func(*backupv1.TalosEtcdBackup)) {
	b.t.Helper()
	backup := &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       backupv1.TalosEtcdBackupSpec{ClusterName: "prod", StoreName: "store"},
	}
	for _, change := range changes {
		change(backup)
	}
	b.create(backup)
}

// settle reconciles everything until nothing changes any more.
func (b *bed) settle() {
	b.t.Helper()
	before := ""
	for range 60 {
		b.round()
		now := b.versions()
		if now == before {
			return
		}
		before = now
	}
	b.t.Fatal("it does not settle")
}

// round reconciles everything once, and waits for the jobs.
func (b *bed) round() {
	b.t.Helper()
	for _, store := range b.allStores() {
		_, err := b.stores.Reconcile(b.t.Context(), requestOf(&store))
		b.Expect(err).NotTo(HaveOccurred())
	}
	for _, schedule := range b.allSchedules() {
		_, err := b.schedules.Reconcile(b.t.Context(), requestOf(&schedule))
		b.Expect(err).NotTo(HaveOccurred())
	}
	for _, backup := range b.allBackups() {
		key := client.ObjectKeyFromObject(&backup)
		_, err := b.backups.Reconcile(b.t.Context(), requestOf(&backup))
		b.Expect(err).NotTo(HaveOccurred())
		b.Eventually(func() bool { _, running := b.backups.Jobs.Running(key); return running }).WithTimeout(time.Minute).Should(BeFalse())
	}
}

func (b *bed) versions() string {
	var text strings.Builder
	for _, store := range b.allStores() {
		text.WriteString(store.Name + store.ResourceVersion + " ")
	}
	for _, schedule := range b.allSchedules() {
		text.WriteString(schedule.Name + schedule.ResourceVersion + " ")
	}
	for _, backup := range b.allBackups() {
		text.WriteString(backup.Name + backup.ResourceVersion + fmt.Sprint(b.backups.Jobs.Result(client.ObjectKeyFromObject(&backup)) != nil) + " ")
	}

	return text.String()
}

func (b *bed) allStores() []backupv1.TalosBackupStore {
	list := &backupv1.TalosBackupStoreList{}
	b.Expect(b.client.List(b.t.Context(), list)).To(Succeed())

	return list.Items
}

func (b *bed) allBackups() []backupv1.TalosEtcdBackup {
	list := &backupv1.TalosEtcdBackupList{}
	b.Expect(b.client.List(b.t.Context(), list)).To(Succeed())

	return list.Items
}

func (b *bed) allSchedules() []backupv1.TalosEtcdBackupSchedule {
	list := &backupv1.TalosEtcdBackupScheduleList{}
	b.Expect(b.client.List(b.t.Context(), list)).To(Succeed())

	return list.Items
}

func (b *bed) theStore() *backupv1.TalosBackupStore {
	b.t.Helper()
	store := &backupv1.TalosBackupStore{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: "store"}, store)).To(Succeed())

	return store
}

func (b *bed) theBackup(name string) *backupv1.TalosEtcdBackup {
	b.t.Helper()
	backup := &backupv1.TalosEtcdBackup{}
	b.Expect(b.client.Get(b.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, backup)).To(Succeed())

	return backup
}

// edit changes an object, and its generation.
func edit[T client.Object](b *bed, object T, change func(T)) {
	b.t.Helper()
	change(object)
	object.SetGeneration(object.GetGeneration() + 1)
	b.Expect(b.client.Update(b.t.Context(), object)).To(Succeed())
}

// loseStatus forgets the status of a backup, as clusterctl move does.
func (b *bed) loseStatus(name string) {
	b.t.Helper()
	backup := b.theBackup(name)
	backup.Status = backupv1.TalosEtcdBackupStatus{}
	b.Expect(b.client.Status().Update(b.t.Context(), backup)).To(Succeed())
}

// keys are all that the bucket has.
func (b *bed) keys() (keys []string) {
	b.t.Helper()
	opened, err := b.backups.Stores.Open(b.t.Context(), b.store())
	b.Expect(err).NotTo(HaveOccurred())
	for object, err := range opened.List(b.t.Context(), "") {
		b.Expect(err).NotTo(HaveOccurred())
		keys = append(keys, object.Key)
	}
	left, err := opened.Unfinished(b.t.Context(), "")
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(left).To(BeEmpty())

	return keys
}

// says is a condition in short.
func says(object conditions.Getter, conditionType string) string {
	found := conditions.Get(object, conditionType)
	if found == nil {
		return ""
	}

	return string(found.Status) + " " + found.Reason
}

func requestOf(object client.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: client.ObjectKeyFromObject(object)}
}
