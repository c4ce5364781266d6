package etcdtool

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	// readyInterval and readyTimeout are how often and for how long a server is asked
	// whether it serves. It reads all of its database before.
	readyInterval = 100 * time.Millisecond
	readyTimeout  = 5 * time.Minute
	// stopTimeout is how long it may take to end.
	stopTimeout = 10 * time.Second
	// pageSize is how many keys are read at a time.
	pageSize = 1000
	// quota is more than a database of Talos may have, in bytes.
	quota = 16 << 30
	// loopback is where it serves.
	loopback = "127.0.0.1"
)

// Server is an etcd that serves data on a loopback address, to those who have its client
// certificate.
type Server struct {
	client  *clientv3.Client
	command *exec.Cmd
	ended   chan struct{}
}

// Serve starts an etcd that serves data which Restore has made. It keeps its certificates
// in a folder. It is to be closed.
func (r *Release) Serve(ctx context.Context, dataDir, folder string) (_ *Server, err error) {
	identity, err := newIdentity(folder)
	if err != nil {
		return nil, fmt.Errorf("making certificates for etcd: %w", err)
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, fmt.Errorf("looking for a free port for etcd: %w", err)
	}
	endpoint := "https://" + address
	command := exec.CommandContext(ctx, r.path("etcd"), append(identity.flags(), //nolint:gosec // G204: it is a program of the image.
		"--name=verify", "--data-dir="+dataDir, "--listen-client-urls="+endpoint, "--advertise-client-urls="+endpoint, "--listen-peer-urls=https://"+loopback+":0",
		"--unsafe-no-fsync", "--quota-backend-bytes="+fmt.Sprint(quota), "--log-level=panic")...)
	command.WaitDelay = stopTimeout
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	server := &Server{command: command, ended: make(chan struct{})}
	go func() {
		_ = command.Wait()
		close(server.ended)
	}()
	defer func() {
		if err != nil {
			server.Close()
		}
	}()
	server.client, err = clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: identity.client, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("making a client of etcd: %w", err)
	}

	return server, server.await(ctx, endpoint)
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context, endpoint string) error {
	err := wait.PollUntilContextTimeout(ctx, readyInterval, readyTimeout, true, func(ctx context.Context) (bool, error) {
		select {
		case <-s.ended:
			return false, fmt.Errorf("%w: etcd does not serve it: %s", ErrSnapshot, s.command.ProcessState)
		default:
		}
		asked, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := s.client.Status(asked, endpoint)

		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for etcd to serve the snapshot: %w", err)
	}

	return nil
}

// Close stops the server, and waits for its end.
func (s *Server) Close() {
	if s.client != nil {
		_ = s.client.Close()
	}
	_ = s.command.Process.Kill()
	<-s.ended
}

// Facts are what a server has.
type Facts struct {
	// Revision is its last revision.
	Revision int64
	// Keys is how many keys clients can read, and Resources how many of each resource of
	// Kubernetes.
	Keys      int64
	Resources map[string]int64
}

// unnamedKeys are those that etcdutl writes where it raises a revision: one without a name,
// which stays. It counts that one in snapshots, and no client can read it
// (etcdutl/snapshot/v3_snapshot.go, unsafeBumpBucketsRevision).
const unnamedKeys = 1

// Match reports whether a server has what a snapshot has. Of an etcd that was restored with a
// raised revision, the snapshot counts one key more; whether it was cannot be told, so that
// one key less passes of any.
func (f *Facts) Match(status *Status) bool {
	return f.Revision == status.Revision && (f.Keys == status.TotalKey || f.Keys+unnamedKeys == status.TotalKey)
}

// Facts reads the names of all keys.
func (s *Server) Facts(ctx context.Context) (*Facts, error) {
	facts := &Facts{Resources: map[string]int64{}}
	for next := "\x00"; ; {
		options := []clientv3.OpOption{clientv3.WithFromKey(), clientv3.WithKeysOnly(), clientv3.WithLimit(pageSize), clientv3.WithRev(facts.Revision)}
		page, err := s.client.Get(ctx, next, options...)
		if err != nil {
			return nil, fmt.Errorf("reading the keys of the restored snapshot: %w", err)
		}
		facts.Revision = page.Header.Revision
		for _, found := range page.Kvs {
			facts.Keys++
			facts.Resources[resourceOf(string(found.Key))]++
			next = string(found.Key) + "\x00"
		}
		if !page.More {
			return facts, nil
		}
	}
}

// resourceOf is the resource that a key of Kubernetes is of: pods, or
// cluster.x-k8s.io/machines.
func resourceOf(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, "/registry/"), "/")
	if strings.HasPrefix(key, "/registry/") && len(parts) > 2 && strings.Contains(parts[0], ".") {
		return parts[0] + "/" + parts[1]
	}
	if strings.HasPrefix(key, "/registry/") {
		return parts[0]
	}

	return "other"
}

// identity are the certificates of a server and of its client, which trust each other only.
type identity struct {
	client *tls.Config
	folder string
}

// Files of an identity.
const (
	serverCertFile = "server.crt"
	serverKeyFile  = "server.key"
	clientCertFile = "client.crt"
)

func newIdentity(folder string) (*identity, error) {
	serverCert, serverKey, err := cert.GenerateSelfSignedCertKey(loopback, []net.IP{net.ParseIP(loopback)}, nil)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	clientCert, err := cert.NewSelfSignedCACert(cert.Config{CommonName: "verify"}, key)
	if err != nil {
		return nil, err
	}
	clientPEM, err := cert.EncodeCertificates(clientCert)
	if err != nil {
		return nil, err
	}
	clientKey, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(clientPEM, clientKey)
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(serverCert)
	made := &identity{folder: folder, client: &tls.Config{RootCAs: trusted, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}}

	return made, errors.Join(made.write(serverCertFile, serverCert), made.write(serverKeyFile, serverKey), made.write(clientCertFile, clientPEM))
}

func (i *identity) write(file string, content []byte) error {
	return os.WriteFile(i.path(file), content, 0o600)
}

func (i *identity) path(file string) string { return filepath.Join(i.folder, file) }

// flags have a server use it, for clients and peers alike.
func (i *identity) flags() []string {
	var flags []string
	for _, prefix := range []string{"--", "--peer-"} {
		flags = append(flags,
			prefix+"cert-file="+i.path(serverCertFile), prefix+"key-file="+i.path(serverKeyFile), prefix+"trusted-ca-file="+i.path(clientCertFile), prefix+"client-cert-auth")
	}

	return flags
}

func freeAddress(ctx context.Context) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", loopback+":0")
	if err != nil {
		return "", err
	}

	return listener.Addr().String(), listener.Close()
}
