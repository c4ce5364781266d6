package talos

import (
	"context"
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// writeInterval is how often a writer writes, writeTimeout bounds one write.
	writeInterval = 100 * time.Millisecond
	writeTimeout  = 2 * time.Second
	// writerNamespace and writerLabel are where the ConfigMaps of a writer are.
	writerNamespace, writerLabel = "default", "written-by"
)

// writer creates ConfigMaps in a cluster through its endpoint, and remembers which
// the API server has acknowledged.
type writer struct {
	client ctrlclient.Client
	cancel context.CancelFunc
	done   sync.WaitGroup

	acknowledged []string
	tried        int
	last         time.Time
	longest      time.Duration
}

// startWriter begins to write.
func startWriter(ctx context.Context, name string) *writer {
	GinkgoHelper()
	access, err := clientcmd.RESTConfigFromKubeConfig(secretValue(ctx, name, name+"-kubeconfig", "value"))
	Expect(err).NotTo(HaveOccurred())
	access.Timeout, access.QPS = writeTimeout, -1
	workload, err := ctrlclient.New(access, ctrlclient.Options{})
	Expect(err).NotTo(HaveOccurred())
	w := &writer{client: workload, last: time.Now()}
	ctx, w.cancel = context.WithCancel(ctx)
	w.done.Go(func() { w.run(ctx) })
	return w
}

func (w *writer) run(ctx context.Context) {
	ticker := time.NewTicker(writeInterval)
	defer ticker.Stop()
	for {
		w.tried++
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Namespace: writerNamespace, Name: fmt.Sprintf("written-%06d", w.tried), Labels: map[string]string{writerLabel: "test"},
		}}
		err := w.client.Create(ctx, object)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			w.acknowledged = append(w.acknowledged, object.Name)
			w.longest = max(w.longest, time.Since(w.last))
			w.last = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// stop ends the writes, reads all that were acknowledged back, and returns the
// longest time between two of them.
func (w *writer) stop(ctx context.Context) time.Duration {
	GinkgoHelper()
	w.cancel()
	w.done.Wait()
	w.longest = max(w.longest, time.Since(w.last))
	there := &corev1.ConfigMapList{}
	Expect(w.client.List(ctx, there, ctrlclient.InNamespace(writerNamespace), ctrlclient.HasLabels{writerLabel})).To(Succeed())
	names := map[string]bool{}
	for i := range there.Items {
		names[there.Items[i].Name] = true
	}
	var lost []string
	for _, name := range w.acknowledged {
		if !names[name] {
			lost = append(lost, name)
		}
	}
	fmt.Fprintf(GinkgoWriter, "%d of %d writes acknowledged, %d of them lost, longest time between two: %.1f s\n",
		len(w.acknowledged), w.tried, len(lost), w.longest.Seconds())
	Expect(w.acknowledged).NotTo(BeEmpty())
	Expect(lost).To(BeEmpty())
	return w.longest
}
