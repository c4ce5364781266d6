// The writer program writes to a cluster all the time, and prints what the API
// server has acknowledged: the name of an object and the time in nanoseconds, a
// line each. The tests run it where the users of a cluster in Pods are: in another
// Pod.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// writeTimeout bounds one write.
const writeTimeout = 2 * time.Second

func main() {
	kubeconfig := flag.String("kubeconfig", "", "The kubeconfig of the cluster.")
	namespace := flag.String("namespace", "default", "Where ConfigMaps are written.")
	label := flag.String("label", "written-by", "The label of the ConfigMaps.")
	every := flag.Duration("every", 100*time.Millisecond, "How often is written.")
	flag.Parse()
	// The log of the Pod has what goes to stderr too.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := connectAndWrite(ctx, *kubeconfig, writer{namespace: *namespace, label: *label, every: *every, out: os.Stdout})
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "writer: %v\n", err)
		os.Exit(1)
	}
}

func connectAndWrite(ctx context.Context, kubeconfig string, w writer) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.Timeout, config.QPS = writeTimeout, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	w.run(ctx, client)
	return nil
}

// writer is how is written.
type writer struct {
	namespace, label string
	every            time.Duration
	out              io.Writer
}

// run writes until the context ends. Each object has a name of its own: what was
// not acknowledged is not tried again.
func (w writer) run(ctx context.Context, client kubernetes.Interface) {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	for number := 0; ctx.Err() == nil; number++ {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("written-%06d", number), Labels: map[string]string{w.label: "writer"}}}
		if _, err := client.CoreV1().ConfigMaps(w.namespace).Create(ctx, object, metav1.CreateOptions{}); err == nil {
			fmt.Fprintf(w.out, "%s %d\n", object.Name, time.Now().UnixNano())
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}
