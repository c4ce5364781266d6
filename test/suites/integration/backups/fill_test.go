package backups

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/capi-talos/capi-talos/test/support/apiserver"
)

// objectBytes is how large the objects are that etcd is filled with, and writers how many
// are written at a time.
const (
	objectBytes = 128 << 10
	writers     = 8
)

// fill has a kube-apiserver fill its etcd with ConfigMaps, and writes what that gives as a
// snapshot to a file.
func fill(ctx context.Context, set set, file string) (err error) {
	server, err := apiserver.Start(ctx, apiserver.Options{
		// What nobody watches need not be in memory.
		Flags:     map[string]string{"watch-cache": "false"},
		EtcdFlags: map[string]string{"quota-backend-bytes": "8589934592", "unsafe-no-fsync": "true"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	config := rest.CopyConfig(server.Config)
	config.QPS = -1
	objects, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range int(set.bytes / objectBytes) {
		group.Go(func() error {
			made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("filler-%d", i)}}
			if set.random {
				made.BinaryData = map[string][]byte{"content": noise(i)}
			} else {
				made.Data = map[string]string{"content": manifests(i)}
			}
			_, err := objects.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, made, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("filling etcd: %w", err)
	}

	return save(context.WithoutCancel(ctx), server.Etcd(), file)
}

// words are those of manifests.
var words = strings.Fields(`apiVersion kind metadata name namespace labels annotations spec selector matchLabels template containers image args command env value
	ports containerPort protocol resources requests limits cpu memory volumeMounts mountPath readOnly livenessProbe httpGet path port initialDelaySeconds status conditions
	lastTransitionTime message reason observedGeneration replicas ownerReferences controller blockOwnerDeletion uid resourceVersion creationTimestamp`)

// noise is what cannot be compressed.
func noise(number int) []byte {
	data := make([]byte, objectBytes)
	_, _ = source(number).Read(data)

	return data
}

// source is the same for a number each time.
func source(number int) *rand.ChaCha8 {
	return rand.NewChaCha8(sha256.Sum256([]byte(strconv.Itoa(number))))
}

// manifests are like those of Kubernetes.
func manifests(number int) string {
	random := rand.New(source(number))
	var text strings.Builder
	for text.Len() < objectBytes {
		fmt.Fprintf(&text, "%*s%s: ", 2*random.IntN(5), "", words[random.IntN(len(words))])
		switch random.IntN(4) {
		case 0:
			fmt.Fprintf(&text, "%08x-%04x\n", random.Uint32(), random.Uint32()>>16)
		case 1:
			fmt.Fprintf(&text, "%d\n", random.IntN(65536))
		default:
			text.WriteString(words[random.IntN(len(words))] + "-" + words[random.IntN(len(words))] + "\n")
		}
	}

	return text.String()
}

// save writes a snapshot of an etcd to a file.
func save(ctx context.Context, endpoint, file string) (err error) {
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("making a client of etcd: %w", err)
	}
	defer func() { err = errors.Join(err, etcd.Close()) }()
	stream, err := etcd.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("taking a snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	into, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(into, stream)

	return errors.Join(err, into.Close())
}
