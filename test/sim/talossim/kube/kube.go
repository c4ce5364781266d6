// Package kube is the workload API of pretended clusters: Cluster API's
// in-memory API server behind listeners of our own, with ECDSA certificates
// and client certificates checked, and a layer of our own for what Cluster API's
// controllers and kubectl need beyond it. Server-side apply merges, and knows no
// owners of fields. It lacks dry run, disruption budgets, field selectors but for
// spec.nodeName of Pods, and controllers: nothing runs a Pod.
package kube

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	inmemoryruntime "sigs.k8s.io/cluster-api/test/infrastructure/inmemory/pkg/runtime"
	inmemoryapi "sigs.k8s.io/cluster-api/test/infrastructure/inmemory/pkg/server/api"
)

// Clusters are pretended Kubernetes clusters, each known by its CA.
type Clusters struct {
	manager inmemoryruntime.Manager
	stop    context.CancelFunc

	mu       sync.Mutex
	clusters map[string]*cluster
	// lost are clusters whose etcd is gone, as they were then.
	lost map[string]*cluster
	// made counts the clusters that were made.
	made int
}

// cluster is what all API servers of a cluster serve alike.
type cluster struct {
	// group is the name of the resources.
	group   string
	handler *overlay
	// servers counts the API servers that serve it.
	servers int
	// full reports whether its etcd refuses to write keys.
	full atomic.Bool
}

// New returns a fleet without clusters. Close ends it.
func New() (*Clusters, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	c := &Clusters{manager: inmemoryruntime.NewManager(scheme), stop: stop, clusters: map[string]*cluster{}, lost: map[string]*cluster{}}
	if err := c.manager.Start(ctx); err != nil {
		stop()
		return nil, fmt.Errorf("starting the in-memory runtime: %w", err)
	}
	return c, nil
}

// Close ends the runtime. The API servers are stopped by who started them.
func (c *Clusters) Close() { c.stop() }

func keyOf(ca []byte) string {
	sum := sha256.Sum256(ca)
	return hex.EncodeToString(sum[:8])
}

func (c *Clusters) get(ca []byte, create bool) *cluster {
	key := keyOf(ca)
	c.mu.Lock()
	defer c.mu.Unlock()
	found := c.clusters[key]
	if found == nil && create {
		c.made++
		found = c.create(fmt.Sprintf("%s-%d", key, c.made))
		c.clusters[key] = found
	}
	return found
}

// create makes a cluster as kube-apiserver starts one: with its namespaces.
func (c *Clusters) create(group string) *cluster {
	c.manager.AddResourceGroup(group)
	storage := c.manager.GetResourceGroup(group).GetClient()
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		namespace := &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: uuid.NewUUID(), Labels: map[string]string{corev1.LabelMetadataName: name}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		}
		_ = storage.Create(context.Background(), namespace) // The group is new and in memory.
	}
	handler := inmemoryapi.NewAPIServerHandler(c.manager, logr.Discard(), func(string) (string, error) { return group, nil })
	return &cluster{group: group, handler: newOverlay(storage, c.manager.GetScheme(), handler)}
}

// Fill makes a cluster refuse what would write to its etcd, as it does while etcd
// has an alarm NOSPACE; or take it again. A cluster that nobody has served yet has
// nothing to fill.
func (c *Clusters) Fill(ca []byte, full bool) {
	if found := c.get(ca, false); found != nil {
		found.full.Store(full)
	}
}

// Drop takes away what a cluster holds: the data of its etcd is gone. The next that is
// served is empty, unless Restore comes before it.
func (c *Clusters) Drop(ca []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(ca)
	found := c.clusters[key]
	if found == nil {
		return
	}
	if older := c.lost[key]; older != nil {
		c.manager.DeleteResourceGroup(older.group)
	}
	c.lost[key] = found
	delete(c.clusters, key)
}

// raise is by how much the revision of a cluster is higher after it was restored than any
// that a snapshot of it has, and a restore has raised.
const raise = 2_000_000_000

// Restore gives a cluster back what it held when it was dropped last: that stands for
// what a snapshot of its etcd holds. A cluster that holds something keeps that.
func (c *Clusters) Restore(ca []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(ca)
	if was := c.lost[key]; was != nil && c.clusters[key] == nil {
		was.full.Store(false)
		was.handler.raised.Add(raise)
		c.clusters[key] = was
		delete(c.lost, key)
	}
}

// APIServer is what a control plane node starts.
type APIServer struct {
	// CA and CAKey are the cluster's, as PEM.
	CA, CAKey []byte
	// Listen is the address and port.
	Listen string
	// SANs are the names and addresses in the serving certificate.
	SANs []string
	// KubernetesVersion is what /version tells, with its "v".
	KubernetesVersion string
}

// Serve starts an API server. stop ends it and all of its connections.
func (c *Clusters) Serve(ctx context.Context, server APIServer) (stop func(), err error) {
	certificate, err := serving(server)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(server.CA) {
		return nil, errors.New("the CA is no certificate")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", server.Listen)
	if err != nil {
		return nil, fmt.Errorf("listening for the API server: %w", err)
	}
	served := c.get(server.CA, true)
	c.count(served, 1)
	const headerTimeout = 10 * time.Second
	httpServer := &http.Server{
		Handler:           guard(refuseWrites(&served.full, served.handler), server.KubernetesVersion),
		ReadHeaderTimeout: headerTimeout,
		ErrorLog:          log.New(io.Discard, "", 0), // Whoever probes hangs up in the middle.
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate},
			ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients,
		},
	}
	go func() { _ = httpServer.ServeTLS(listener, "", "") }()
	var once sync.Once
	return func() {
		once.Do(func() {
			_ = httpServer.Close()
			c.count(served, -1)
		})
	}, nil
}

func (c *Clusters) count(served *cluster, by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	served.servers += by
}

// Pair reads a CA.
func Pair(certificate, key []byte) (*x509.Certificate, any, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, nil, fmt.Errorf("reading a CA: %w", err)
	}
	block, _ := pem.Decode(certificate)
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("reading a CA: %w", err)
	}
	return parsed, pair.PrivateKey, nil
}
