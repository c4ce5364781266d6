package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// writerNamespace is where the writer is in kind, and writes to in the cluster.
	writerNamespace, writtenTo = "writer", "default"
	// writerLabel is on what it writes.
	writerLabel = "written-by"
)

// writer is a client of a cluster in Pods, in another Pod of kind.
type writer struct{ cluster string }

// startWriter begins to write to a cluster, and returns once the first write was
// acknowledged.
func startWriter(ctx context.Context, cluster string) *writer {
	GinkgoHelper()
	Expect(client.IgnoreAlreadyExists(world.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: writerNamespace}}))).To(Succeed())
	meta := metav1.ObjectMeta{Namespace: writerNamespace, Name: cluster}
	Expect(world.client.Create(ctx, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"kubeconfig": kubeconfigOf(ctx, cluster)}})).To(Succeed())
	Expect(world.client.Create(ctx, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers: []corev1.Container{{
			Name: "writer", Image: writerImage, ImagePullPolicy: corev1.PullNever,
			Args:         []string{"--kubeconfig=/cluster/kubeconfig", "--namespace=" + writtenTo, "--label=" + writerLabel},
			VolumeMounts: []corev1.VolumeMount{{Name: "cluster", MountPath: "/cluster", ReadOnly: true}},
		}},
		Volumes: []corev1.Volume{{Name: "cluster", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: cluster}}}},
	}})).To(Succeed())
	w := &writer{cluster}
	Eventually(ctx, func(g Gomega) {
		written, err := w.written(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(written.names).NotTo(BeEmpty())
	}).WithTimeout(timeout).WithPolling(interval).Should(Succeed())
	return w
}

// writes are those that were acknowledged.
type writes struct {
	names []string
	// longest is the longest time between two, last the time of the last.
	longest time.Duration
	last    time.Time
}

// readWrites reads what the writer prints. A last line that is not whole is left
// out.
func readWrites(printed []byte) (writes, error) {
	found := writes{}
	scanner := bufio.NewScanner(bytes.NewReader(printed[:bytes.LastIndexByte(printed, '\n')+1]))
	for scanner.Scan() {
		name, text, _ := strings.Cut(scanner.Text(), " ")
		nanoseconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return writes{}, fmt.Errorf("reading what the writer prints: %w", err)
		}
		at := time.Unix(0, nanoseconds)
		if !found.last.IsZero() {
			found.longest = max(found.longest, at.Sub(found.last))
		}
		found.names, found.last = append(found.names, name), at
	}
	return found, scanner.Err()
}

func (w *writer) written(ctx context.Context) (writes, error) {
	printed, err := world.proxy.GetClientSet().CoreV1().Pods(writerNamespace).GetLogs(w.cluster, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return writes{}, err
	}
	return readWrites(printed)
}

// stop looks for all that was acknowledged so far, takes the writer away, and tells
// the longest time without a write.
func (w *writer) stop(ctx context.Context) string {
	GinkgoHelper()
	acknowledged, err := w.written(ctx)
	Expect(err).NotTo(HaveOccurred())
	longest := max(acknowledged.longest, time.Since(acknowledged.last))
	there := &corev1.ConfigMapList{}
	Expect(workloadClient(ctx, w.cluster).List(ctx, there, client.InNamespace(writtenTo), client.HasLabels{writerLabel})).To(Succeed())
	names := map[string]bool{}
	for i := range there.Items {
		names[there.Items[i].Name] = true
	}
	var lost []string
	for _, name := range acknowledged.names {
		if !names[name] {
			lost = append(lost, name)
		}
	}
	Expect(lost).To(BeEmpty(), "acknowledged, and not there")
	for _, object := range []client.Object{&corev1.Pod{}, &corev1.Secret{}} {
		object.SetNamespace(writerNamespace)
		object.SetName(w.cluster)
		Expect(world.client.Delete(ctx, object)).To(Succeed())
	}
	return fmt.Sprintf("%d acknowledged, none lost, longest gap %.1f s", len(acknowledged.names), longest.Seconds())
}

func TestReadWrites(t *testing.T) {
	g := NewWithT(t)
	found, err := readWrites([]byte("written-000000 1000000000\nwritten-000001 1100000000\nwritten-000003 3100000000\nwritten-0000"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(Equal(writes{
		names: []string{"written-000000", "written-000001", "written-000003"}, longest: 2 * time.Second, last: time.Unix(3, 100000000),
	}))
	g.Expect(readWrites(nil)).To(Equal(writes{}))
	_, err = readWrites([]byte("writer: it failed\n"))
	g.Expect(err).To(MatchError(ContainSubstring("reading what the writer prints")))
}
