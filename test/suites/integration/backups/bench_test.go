// Package backups measures what backups take, with the manager as a process, a snapshot of a
// real etcd that a real kube-apiserver has filled, and a real S3 server.
package backups

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/google/pprof/profile"
	"github.com/minio/minio-go/v7"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	backupv1 "github.com/capi-talos/capi-talos/backup/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet/simfleet"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/process"
	bed "github.com/capi-talos/capi-talos/test/suites/integration/world"
	"github.com/capi-talos/capi-talos/test/support/s3server"
)

const (
	name    = "bench"
	mebi    = 1 << 20
	timeout = 10 * time.Minute
	// polling is how often a backup is looked at: 100 times a second would keep a fifth of a
	// processor from what is measured.
	polling = time.Second / 4
	// leastBytes are measured of each set: a small one is backed up several times.
	leastBytes = 256 * mebi
	profiler   = "127.0.0.1:16060"
	// partSize is how large the parts of the raw copy are, and threads how many are sent at once.
	partSize, threads = 16 * mebi, 2
	// The goals: MiB of memory at most, MiB/s of plain bytes at least, and of what the raw
	// copy takes; where that is missed, so many cores of the machine busy.
	maxPeak, minRate, minRatio, minCores = 100, 60, 0.8, 1.8
)

var world bed.World

func TestMain(m *testing.M) {
	bed.MainLong(m, bed.Options{ManagerArgs: map[string][]string{"backup": {"--allow-local-endpoints"}}}, &world)
}

// only names the set that is measured; empty means all.
var only = flag.String("only", "", "measure the set of this name only")

// set is what etcd is filled with.
type set struct {
	name   string
	bytes  int64
	random bool
}

// measured is what backups took, all together.
type measured struct {
	set          set
	sealed       bool
	backups      int
	plain        float64
	stored       float64
	seconds      float64
	verify       float64
	peak         float64
	cpu          float64
	cores        float64
	raw          float64
	stages       map[string]float64
	profiledSecs float64
}

// TestHowFastBackupsAre prints what each backup took, beside a copy of the same bytes.
func TestHowFastBackupsAre(t *testing.T) {
	g, ctx := NewWithT(t), t.Context()
	machine := runCluster(t)
	server, err := s3server.Start(ctx, t.TempDir())
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(server.Stop()).To(Succeed()) })
	g.Expect(server.MakeBucket(ctx, name, minio.MakeBucketOptions{})).To(Succeed())
	createStores(t, server)
	scraper, err := bed.NewScraper(ctx, world.Client, name)
	g.Expect(err).NotTo(HaveOccurred())

	var results []measured
	sets := []set{{"16 MiB", 16 * mebi, false}, {"256 MiB", 256 * mebi, false}, {"256 MiB random", 256 * mebi, true}, {"2 GiB", 2048 * mebi, false}}
	sets = slices.DeleteFunc(sets, func(set set) bool { return *only != "" && *only != set.name })
	g.Expect(sets).NotTo(BeEmpty(), *only)
	for _, set := range sets {
		file := filepath.Join(t.TempDir(), "snapshot.db")
		t.Logf("filling etcd with %s", set.name)
		g.Expect(fill(ctx, set, file)).To(Succeed())
		flow := &flow{file: file}
		machine.Break(talossim.Faults{Snapshot: flow.open})
		for _, sealed := range []bool{false, true} {
			found := measure(t, set, sealed, flow, scraper)
			found.raw = copyRaw(t, server, file)
			results = append(results, found)
			printAll(t, results[len(results)-1:])
		}
		g.Expect(os.Remove(file)).To(Succeed())
	}
	printAll(t, results)
}

// runCluster runs a cluster of one machine, whose etcd is measured.
func runCluster(t *testing.T) *talossim.Machine {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	fleet, err := simfleet.New(ctx, simfleet.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(fleet.Sim.Offences()).To(BeEmpty())
		g.Expect(fleet.Close(context.WithoutCancel(ctx))).To(Succeed())
	})
	g.Expect(world.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})).To(Succeed())
	hosts, err := fleet.Add(ctx, 1)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(world.Client.Create(ctx, hosts[0].Manifest(name, nil))).To(Succeed())
	manifest, err := world.Stack.Generate(ctx, fleet, management.Shape{Namespace: name, ControlPlanes: 1})
	g.Expect(err).NotTo(HaveOccurred())
	objects, err := management.Objects(manifest)
	g.Expect(err).NotTo(HaveOccurred())
	for _, object := range objects {
		g.Expect(world.Client.Create(ctx, object)).To(Succeed(), object.GetKind())
	}

	return fleet.Machine(hosts[0])
}

// createStores makes a store that encrypts, and one that does not.
func createStores(t *testing.T, server *s3server.Server) {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	key, err := age.GenerateX25519Identity()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(world.Client.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "s3"}, Data: map[string][]byte{
		backupv1.AccessKeyIDKey: []byte(s3server.AccessKey), backupv1.SecretAccessKeyKey: []byte(s3server.SecretKey), backupv1.CAKey: server.CA,
	}})).To(Succeed())
	for store, recipients := range map[string][]string{storeOf(false): nil, storeOf(true): {key.Recipient().String()}} {
		g.Expect(world.Client.Create(ctx, &backupv1.TalosBackupStore{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: store}, Spec: backupv1.TalosBackupStoreSpec{
			S3:         backupv1.S3Store{Endpoint: server.Endpoint, Bucket: name, CredentialsSecretName: "s3", CASecretName: "s3"},
			Recipients: recipients, ImportPolicy: backupv1.ImportNever,
		}})).To(Succeed())
	}
}

func storeOf(sealed bool) string {
	if sealed {
		return "sealed"
	}

	return "clear"
}

// flow is a file that is given as a snapshot, and what was busy meanwhile.
type flow struct {
	file string

	mu                 sync.Mutex
	seconds, processor float64
}

// open opens the file. Until it is closed, the snapshot flows.
func (f *flow) open() (io.ReadCloser, error) {
	file, err := os.Open(f.file)
	if err != nil {
		return nil, err
	}
	before, err := process.MachineCPUSeconds()

	return &flowing{File: file, flow: f, began: time.Now(), before: before}, err
}

// cores is how many cores of this machine were busy on average while snapshots flowed since the
// last call.
func (f *flow) cores() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seconds == 0 {
		return 0 // Not NaN, which no bound catches.
	}
	cores := f.processor / f.seconds
	f.processor, f.seconds = 0, 0

	return cores
}

type flowing struct {
	*os.File
	flow   *flow
	began  time.Time
	before float64
}

// Close implements io.Closer.
func (f *flowing) Close() error {
	after, err := process.MachineCPUSeconds()
	f.flow.mu.Lock()
	defer f.flow.mu.Unlock()
	f.flow.seconds += time.Since(f.began).Seconds()
	f.flow.processor += after - f.before

	return errors.Join(err, f.File.Close())
}

// measure makes backups with a manager that has just started: those that are measured, and one
// that is profiled.
func measure(t *testing.T, set set, sealed bool, flow *flow, scraper *bed.Scraper) measured {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	manager := world.Stack.Managers.Get("backup")
	g.Expect(manager.RestartWith(ctx, "--profiler-address="+profiler)).To(Succeed())
	g.Eventually(func(g Gomega) {
		store := &backupv1.TalosBackupStore{}
		g.Expect(world.Client.Get(ctx, client.ObjectKey{Namespace: name, Name: storeOf(sealed)}, store)).To(Succeed())
		g.Expect(conditions.IsTrue(store, backupv1.StoreReadyCondition)).To(BeTrue())
		_, err := scraper.Value(ctx, manager, "go_goroutines")
		g.Expect(err).NotTo(HaveOccurred())
	}).WithTimeout(timeout).Should(Succeed())
	before, err := process.UsageOf(manager.PID())
	g.Expect(err).NotTo(HaveOccurred())
	found := measured{set: set, sealed: sealed, backups: max(1, int(leastBytes/set.bytes))}
	var made []*backupv1.TalosEtcdBackup
	for range found.backups {
		backup := backUp(t, sealed)
		found.plain += float64(*backup.Status.Snapshot.PlainBytes) / mebi
		found.stored += float64(*backup.Status.Snapshot.StoredBytes) / mebi
		made = append(made, backup)
	}
	found.cores = flow.cores()
	usage, err := process.UsageOf(manager.PID())
	g.Expect(err).NotTo(HaveOccurred())
	found.peak, found.cpu = usage.PeakMiB, usage.CPUSeconds-before.CPUSeconds
	for step, into := range map[string]*float64{"BackUp": &found.seconds, "Verify": &found.verify} {
		*into, err = scraper.Value(ctx, manager, fmt.Sprintf(`capi_talos_backup_attempt_duration_seconds_sum{result="succeeded",step=%q}`, step))
		g.Expect(err).NotTo(HaveOccurred())
	}
	var profiling sync.WaitGroup
	profiling.Go(func() { found.stages, found.profiledSecs = profileOf(ctx, set) })
	made = append(made, backUp(t, sealed))
	profiling.Wait()
	for _, backup := range made {
		g.Expect(world.Client.Delete(ctx, backup)).To(Succeed())
		g.Eventually(func() error { return world.Client.Get(ctx, client.ObjectKeyFromObject(backup), backup) }).WithTimeout(timeout).Should(MatchError(ContainSubstring("not found")))
	}
	flow.cores() // Not of what was profiled.

	return found
}

func backUp(t *testing.T, sealed bool) *backupv1.TalosEtcdBackup {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	backup := &backupv1.TalosEtcdBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: name, GenerateName: "backup-"},
		Spec:       backupv1.TalosEtcdBackupSpec{ClusterName: name, StoreName: storeOf(sealed), Secrets: backupv1.SecretsExclude, DeletionPolicy: backupv1.DeletionDelete},
	}
	g.Expect(world.Client.Create(ctx, backup)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(world.Client.Get(ctx, client.ObjectKeyFromObject(backup), backup)).To(Succeed())
		g.Expect(conditions.IsTrue(backup, backupv1.BackupReadyCondition)).To(BeTrue(), conditions.GetMessage(backup, backupv1.BackupReadyCondition))
	}).WithTimeout(timeout).WithPolling(polling).Should(Succeed())

	return backup
}

// copyRaw copies the same bytes to the same server, and returns the MiB per second.
func copyRaw(t *testing.T, server *s3server.Server, file string) float64 {
	t.Helper()
	g, ctx := NewWithT(t), t.Context()
	began := time.Now()
	stored, err := server.FPutObject(ctx, name, "raw", file, minio.PutObjectOptions{PartSize: partSize, NumThreads: threads})
	g.Expect(err).NotTo(HaveOccurred())
	took := time.Since(began).Seconds()
	g.Expect(server.RemoveObject(ctx, name, "raw", minio.RemoveObjectOptions{})).To(Succeed())

	return float64(stored.Size) / mebi / took
}

// stagesOf are where the time of the manager goes, by what is in the stack, the innermost
// first.
var stagesOf = []struct{ stage, part string }{
	{"zstd", "klauspost/compress/zstd"}, {"age", "filippo.io/age"}, {"age", "chacha20poly1305"}, {"sha256", "sha256"}, {"md5, crc", "hash/crc"}, {"md5, crc", "md5"},
	{"TLS", "crypto/tls"}, {"TLS", "aes/gcm"}, {"gRPC", "google.golang.org/grpc"}, {"gRPC", "protobuf"}, {"memory", "runtime.gc"}, {"memory", "runtime.mallocgc"},
}

// profileOf profiles the manager while it makes a backup, and returns the seconds by stage.
func profileOf(ctx context.Context, set set) (map[string]float64, float64) {
	seconds := max(1, int(set.bytes/(100*mebi)))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", profiler, seconds), http.NoBody)
	if err != nil {
		return nil, 0
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, 0
	}
	defer func() { _ = response.Body.Close() }()
	parsed, err := profile.Parse(response.Body)
	if err != nil {
		return nil, 0
	}
	found := map[string]float64{}
	for _, sample := range parsed.Sample {
		found[stageOf(sample)] += float64(sample.Value[len(sample.Value)-1]) / float64(time.Second)
	}

	return found, float64(seconds)
}

func stageOf(sample *profile.Sample) string {
	for _, location := range sample.Location {
		for _, line := range location.Line {
			for _, known := range stagesOf {
				if line.Function != nil && strings.Contains(line.Function.Name, known.part) {
					return known.stage
				}
			}
		}
	}

	return "rest"
}

func printAll(t *testing.T, results []measured) {
	t.Helper()
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SNAPSHOT\tAGE\tBACKUPS\tMiB\tSTORED\tSECONDS\tMiB/s\tRAW MiB/s\tOF RAW\tCORES\tPEAK MiB\tCPU s\tREAD BACK s\tGOALS")
	for _, found := range results {
		rate := found.plain / found.seconds
		fmt.Fprintf(table, "%s\t%t\t%d\t%.0f\t%.0f\t%.2f\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f\t%.1f\t%.2f\t%s\n", found.set.name, found.sealed, found.backups, found.plain, found.stored, found.seconds,
			rate, found.raw, rate/found.raw, found.cores, found.peak, found.cpu, found.verify, goals(found, rate))
	}
	_ = table.Flush()
	for _, found := range results {
		if len(found.stages) > 0 {
			fmt.Fprintf(&text, "%s, age %t: CPU seconds of the manager by stage in the first %.0f s:", found.set.name, found.sealed, found.profiledSecs)
			for stage, seconds := range found.stages {
				fmt.Fprintf(&text, " %s %.1f", stage, seconds)
			}
			text.WriteString("\n")
		}
	}
	t.Log("\n" + text.String())
}

func goals(found measured, rate float64) string {
	var missed []string
	if found.peak > maxPeak {
		missed = append(missed, fmt.Sprintf("memory ≤ %d", maxPeak))
	}
	if rate < minRate {
		missed = append(missed, fmt.Sprintf("≥ %d MiB/s", minRate))
	}
	if rate/found.raw < minRatio && found.cores < minCores {
		missed = append(missed, fmt.Sprintf("≥ %.1f of raw or %.1f cores", minRatio, minCores))
	}
	if len(missed) == 0 {
		return "met"
	}

	return "missed: " + strings.Join(missed, ", ")
}
