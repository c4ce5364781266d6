// Package s3server starts a real S3 server for the tests of a package. It is built by the
// test bed the first time.
package s3server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"k8s.io/client-go/util/cert"

	"github.com/capi-talos/capi-talos/test/support/apiserver"
)

const (
	// startTimeout is how long the server may take to start.
	startTimeout = 2 * time.Minute
	// AccessKey is that of its administrator.
	AccessKey = "administrator"
	// SecretKey is the secret of AccessKey.
	SecretKey = "only-on-loopback"
)

// loopback is where servers are that nobody else is to reach.
const loopback = "127.0.0.1"

// Server is an S3 server that runs, over TLS.
type Server struct {
	// Client is its administrator.
	*minio.Client
	// Endpoint is its URL, and CA the certificate that it has, in PEM.
	Endpoint string
	CA       []byte
	// PID is the number of its process.
	PID int
	// Stop stops it, and waits for its end.
	Stop func() error
}

// versitygw is the program that Start runs, and its part.
const versitygw = "versitygw"

// Parts are the parts of the test bed that Start needs. It builds what is missing of them,
// which takes minutes.
func Parts() []string { return []string{versitygw} }

// Start starts a server on a loopback address that keeps everything in a folder.
func Start(ctx context.Context, folder string) (*Server, error) {
	return StartAt(ctx, folder, loopback)
}

// StartAt starts a server on an address of this machine.
func StartAt(ctx context.Context, folder, host string) (*Server, error) {
	return start(ctx, folder, host, versitygw, func(program, address string) *exec.Cmd {
		return exec.CommandContext(context.WithoutCancel(ctx), program, "--port", address, "--access", AccessKey, "--secret", SecretKey, //nolint:gosec // G204: it is a part of the test bed.
			"--cert", filepath.Join(folder, certificateFile), "--key", filepath.Join(folder, keyFile), "--quiet",
			"posix", "--versioning-dir", filepath.Join(folder, "versions"), filepath.Join(folder, "objects"))
	})
}

// KMSKey is the name of the key that MinIO has.
const KMSKey = "test-key"

// StartMinIO starts MinIO, which encrypts what it keeps in all three ways, and has a key
// management of its own.
func StartMinIO(ctx context.Context, folder string) (*Server, error) {
	return start(ctx, folder, loopback, "minio", func(program, address string) *exec.Cmd {
		command := exec.CommandContext(context.WithoutCancel(ctx), program, "server", "--quiet", "--address", address, "--certs-dir", folder, filepath.Join(folder, "objects")) //nolint:gosec // G204: it is a part of the test bed.
		key := make([]byte, 32)
		command.Env = append(os.Environ(), "MINIO_ROOT_USER="+AccessKey, "MINIO_ROOT_PASSWORD="+SecretKey, "MINIO_KMS_SECRET_KEY="+KMSKey+":"+base64.StdEncoding.EncodeToString(key))
		return command
	})
}

// Files of the certificate of a server, as MinIO calls them.
const (
	certificateFile = "public.crt"
	keyFile         = "private.key"
)

// start starts a program of the test bed as a server, which keeps everything in a folder.
func start(ctx context.Context, folder, host, part string, run func(program, address string) *exec.Cmd) (*Server, error) {
	built, err := apiserver.Build(ctx, part)
	if err != nil {
		return nil, err
	}
	address, err := freeAddress(ctx, host)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(folder, "objects"), 0o700), os.MkdirAll(filepath.Join(folder, "versions"), 0o700)); err != nil {
		return nil, err
	}
	certificate, err := writeCertificate(folder, host)
	if err != nil {
		return nil, err
	}
	said := &bytes.Buffer{}
	command := run(filepath.Join(built[part], part), address)
	command.Stdout, command.Stderr = said, said
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("starting the S3 server: %w", err)
	}
	server := &Server{Endpoint: "https://" + address, CA: certificate, PID: command.Process.Pid, Stop: func() error {
		return errors.Join(command.Process.Kill(), ended(command.Wait()))
	}}
	if err := server.await(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s", err, said), server.Stop())
	}
	if server.Client, err = minio.New(address, &minio.Options{
		Creds: credentials.NewStaticV4(AccessKey, SecretKey, ""), Secure: true, BucketLookup: minio.BucketLookupPath, Region: "us-east-1", Transport: server.transport(),
	}); err != nil {
		return nil, errors.Join(err, server.Stop())
	}

	return server, nil
}

// Main runs the tests of a package beside a server, and returns their exit code.
func Main(tests *testing.M, into **Server) int {
	folder, err := os.MkdirTemp("", "s3-")
	if err != nil {
		panic(err)
	}
	if *into, err = Start(context.Background(), folder); err != nil {
		panic(err)
	}
	code := tests.Run()
	if err := errors.Join((*into).Stop(), os.RemoveAll(folder)); err != nil {
		panic(err)
	}

	return code
}

// ended drops the error of a program that was killed.
func ended(err error) error {
	var killed *exec.ExitError
	if errors.As(err, &killed) && !killed.Exited() {
		return nil
	}

	return err
}

// await waits until the server answers.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := &http.Client{Transport: s.transport()}
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Endpoint, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err == nil {
			return response.Body.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the S3 server: %w", err)
		case <-again.C:
		}
	}
}

func (s *Server) transport() *http.Transport {
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(s.CA)

	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
}

// Change writes an object anew, as somebody else might.
func (s *Server) Change(ctx context.Context, bucket, key string, change func([]byte) []byte) error {
	object, err := s.GetObject(ctx, bucket, key, minio.GetObjectOptions{})
	if err != nil {
		return err
	}
	data, err := io.ReadAll(object)
	if err := errors.Join(err, object.Close()); err != nil {
		return err
	}
	data = change(data)
	_, err = s.PutObject(ctx, bucket, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{})

	return err
}

func freeAddress(ctx context.Context, host string) (string, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return "", err
	}

	return listener.Addr().String(), listener.Close()
}

// writeCertificate makes a certificate of an address, and returns it with its CA.
func writeCertificate(folder, host string) ([]byte, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey(host, nil, nil)
	if err != nil {
		return nil, err
	}

	return certificate, errors.Join(os.WriteFile(filepath.Join(folder, certificateFile), certificate, 0o600), os.WriteFile(filepath.Join(folder, keyFile), key, 0o600))
}
