package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestManagersAreKilledWhileTheyBackUp kills the backup manager with SIGKILL at 30 seeded
// moments: when so many bytes of a backup have gone to the store. Then two of them work at once.
// All backups come to their end, and no manifest is ever there without its data.
func TestManagersAreKilledWhileTheyBackUp(t *testing.T) {
	const name, kills, snapshotBytes = "backups-killed", 30, 20 << 20
	g, ctx := NewWithT(t), t.Context()
	machines := newFleet(t, simfleet.Options{})
	vault := newVault(t, name)
	toll := newTollgate(t, strings.TrimPrefix(vault.server.Endpoint, "https://"))
	hosts := runCluster(t, machines, name, 1, 0)
	machines.Machine(hosts[0]).Break(talossim.Faults{SnapshotBytes: snapshotBytes})
	secret, store := vault.objects(name)
	store.Spec.S3.Endpoint = "https://" + toll.address
	g.Expect(world.Client.Create(ctx, secret)).To(Succeed())
	g.Expect(world.Client.Create(ctx, store)).To(Succeed())
	awaitCondition(t, store, backupv1.StoreReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	create := func(i int) *backupv1.TalosEtcdBackup {
		backup := &backupv1.TalosEtcdBackup{
			ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: fmt.Sprintf("killed-%02d", i)},
			Spec:       backupv1.TalosEtcdBackupSpec{ClusterName: name, StoreName: store.Name},
		}
		g.Expect(world.Client.Create(ctx, backup)).To(Succeed())
		return backup
	}
	before := toll.taken.Load()
	awaitCondition(t, create(0), backupv1.BackupReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	whole := toll.taken.Load() - before
	g.Expect(whole).To(BeNumerically(">", 0))

	manager, random := world.Stack.Managers.Get("backup"), rand.New(rand.NewPCG(1, 2))
	var backups []*backupv1.TalosEtcdBackup
	for i := 1; i <= kills; i++ {
		reached := toll.at(random.Int64N(whole))
		backups = append(backups, create(i))
		select {
		case <-reached:
		case <-ctx.Done():
			t.Fatal("the manager does not store so much")
		}
		g.Expect(manager.Restart(ctx)).To(Succeed())
		expectDataOfManifests(ctx, g, vault)
	}
	for _, backup := range backups {
		awaitCondition(t, backup, backupv1.BackupReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	}
	manifests, others := expectDataOfManifests(ctx, g, vault)
	g.Expect(manifests).To(Equal(kills + 1))
	unfinished := 0
	for upload := range vault.server.ListIncompleteUploads(ctx, vault.bucket, "", true) {
		g.Expect(upload.Err).NotTo(HaveOccurred())
		unfinished++
	}
	g.Expect(others+unfinished).To(BeNumerically("<=", 2*kills), "no attempt leaves more than its data and its secrets, which are collected later")

	// Two at once, as when leader election fails.
	const atOnce = 6
	twin, err := world.Stack.Twin(ctx, "backup")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(twin.Start(ctx)).To(Succeed())
	t.Cleanup(func() { g.Expect(twin.Stop(context.WithoutCancel(ctx))).To(Succeed()) })
	for i := range atOnce {
		backups = append(backups, create(kills+1+i))
	}
	for _, backup := range backups {
		awaitCondition(t, backup, backupv1.BackupReadyCondition, metav1.ConditionTrue, backupv1.ReadyReason)
	}
	manifests, _ = expectDataOfManifests(ctx, g, vault)
	g.Expect(manifests).To(Equal(kills+1+atOnce), "one of each")
	g.Expect(twin.Check()).To(Succeed())
	deleteClusters(t, name, name)
	expectWiped(t, machines, hosts...)
}

// expectDataOfManifests finds the files of each manifest in the store. It counts the
// manifests, and the files that none names.
func expectDataOfManifests(ctx context.Context, g Gomega, vault *vault) (manifests, others int) {
	sizes, named := map[string]int64{}, map[string]bool{}
	for object := range vault.server.ListObjects(ctx, vault.bucket, minio.ListObjectsOptions{Recursive: true}) {
		g.Expect(object.Err).NotTo(HaveOccurred())
		sizes[object.Key] = object.Size
	}
	for key := range sizes {
		if path.Base(key) != "manifest.json" {
			continue
		}
		file, err := vault.server.GetObject(ctx, vault.bucket, key, minio.GetObjectOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		var manifest struct {
			Data, Secrets struct {
				Name        string
				StoredBytes int64
			}
		}
		g.Expect(json.NewDecoder(file).Decode(&manifest)).To(Succeed())
		g.Expect(file.Close()).To(Succeed())
		manifests++
		named[key] = true
		for _, of := range []struct {
			name  string
			bytes int64
		}{{manifest.Data.Name, manifest.Data.StoredBytes}, {manifest.Secrets.Name, manifest.Secrets.StoredBytes}} {
			found := path.Join(path.Dir(key), of.name)
			g.Expect(sizes).To(HaveKeyWithValue(found, of.bytes))
			named[found] = true
		}
	}
	return manifests, len(sizes) - len(named)
}

// tollgate passes connections to a server on, and counts the bytes that go there.
type tollgate struct {
	address string
	taken   atomic.Int64

	mu sync.Mutex
	// alarm is closed when limit bytes were taken.
	limit int64
	alarm chan struct{}
}

func newTollgate(t *testing.T, to string) *tollgate {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = listener.Close() })
	gate := &tollgate{address: listener.Addr().String()}
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go gate.pass(t.Context(), from, to)
		}
	}()
	return gate
}

// at returns a channel that is closed when so many more bytes were taken.
func (g *tollgate) at(bytes int64) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit, g.alarm = g.taken.Load()+bytes, make(chan struct{})
	return g.alarm
}

func (g *tollgate) pass(ctx context.Context, from net.Conn, address string) {
	defer func() { _ = from.Close() }()
	to, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	go func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	}()
	_, _ = io.Copy(io.MultiWriter(to, g), from)
}

// Write counts bytes.
func (g *tollgate) Write(data []byte) (int, error) {
	taken := g.taken.Add(int64(len(data)))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.alarm != nil && taken >= g.limit {
		close(g.alarm)
		g.alarm = nil
	}
	return len(data), nil
}
