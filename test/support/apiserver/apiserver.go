// Package apiserver starts a real kube-apiserver on a real etcd for the tests of a package.
// Both are built by the test bed the first time.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/capi-talos/capi-talos/test/support/audit"
)

// startTimeout is how long the programs may take to start and to stop. On a machine that
// builds something else meanwhile an API server takes minutes.
const startTimeout = 10 * time.Minute

// Options say what an API server has beside the kinds of Kubernetes.
type Options struct {
	// CRDs are files and folders with CustomResourceDefinitions: of the repository, or
	// absolute paths.
	CRDs []string
	// Webhooks are files with configurations of webhooks, of the repository. They are
	// served where Server.Webhooks says.
	Webhooks []string
	// Flags are further ones of the API server, and EtcdFlags of its etcd, by name.
	Flags, EtcdFlags map[string]string
	// Audit is a folder for the logs of who has asked this API server, and those beside it,
	// for what; empty means there are none.
	Audit string
}

// Server is an API server that runs.
type Server struct {
	// Config is how it is reached as administrator.
	Config *rest.Config
	// Webhooks is where it asks webhooks, and with which certificate.
	Webhooks envtest.WebhookInstallOptions
	// AuditLog is the log that package audit reads, where Options.Audit asks for it.
	AuditLog string
	// Stop stops it, and its etcd if that is its own.
	Stop func() error

	program string
	etcd    *url.URL
	audit   string
}

// Start starts an API server and its etcd.
func Start(ctx context.Context, options Options) (*Server, error) {
	root := Repository()
	folders, err := Build(ctx, "kube-apiserver", "etcd")
	if err != nil {
		return nil, err
	}
	environment := &envtest.Environment{ControlPlaneStartTimeout: startTimeout, ControlPlaneStopTimeout: startTimeout, ErrorIfCRDPathMissing: true}
	environment.CRDDirectoryPaths = below(root, options.CRDs)
	environment.WebhookInstallOptions.Paths = below(root, options.Webhooks)
	environment.ControlPlane.GetAPIServer().Path = filepath.Join(folders["kube-apiserver"], "kube-apiserver")
	environment.ControlPlane.Etcd = &envtest.Etcd{Path: filepath.Join(folders["etcd"], "etcd")}
	for name, value := range options.Flags {
		environment.ControlPlane.GetAPIServer().Configure().Set(name, value)
	}
	for name, value := range options.EtcdFlags {
		environment.ControlPlane.Etcd.Configure().Set(name, value)
	}
	log, err := audited(environment.ControlPlane.APIServer, options.Audit, "own")
	if err != nil {
		return nil, err
	}
	config, err := environment.Start()
	if err != nil {
		return nil, fmt.Errorf("starting the API server: %w", err)
	}

	return &Server{
		Config: config, Webhooks: environment.WebhookInstallOptions, AuditLog: log, Stop: environment.Stop,
		program: environment.ControlPlane.APIServer.Path, etcd: environment.ControlPlane.Etcd.URL, audit: options.Audit,
	}, nil
}

// Etcd is where its etcd is.
func (s *Server) Etcd() string { return s.etcd.String() }

// audited has an API server write a log below the folder of all audit logs, and returns the
// log.
func audited(server *envtest.APIServer, folder, name string) (string, error) {
	if folder == "" {
		return "", nil
	}
	// Several are started at the same time, and each writes its policy.
	folder = filepath.Join(folder, name)
	log := filepath.Join(folder, "audit.log")
	flags, err := audit.Flags(folder, log)
	if err != nil {
		return "", err
	}
	for flag, value := range flags {
		server.Configure().Set(flag, value)
	}

	return log, nil
}

// Beside starts another API server on the etcd of this one, under a prefix that is unique
// there. It is to be stopped before this one.
func (s *Server) Beside(prefix string) (*Server, error) {
	other := &envtest.ControlPlane{APIServer: &envtest.APIServer{
		Path: s.program, EtcdURL: s.etcd, StartTimeout: startTimeout, StopTimeout: startTimeout,
	}}
	other.APIServer.Configure().Set("etcd-prefix", "/"+prefix)
	log, err := audited(other.APIServer, s.audit, prefix)
	if err != nil {
		return nil, err
	}
	if err := other.APIServer.Start(); err != nil {
		return nil, fmt.Errorf("starting API server %s: %w", prefix, err)
	}
	// No limit of the client: tests wait for the server as it is.
	admin, err := other.AddUser(envtest.User{Name: "admin", Groups: []string{"system:masters"}}, &rest.Config{QPS: -1})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making the administrator of API server %s: %w", prefix, err), other.APIServer.Stop())
	}

	return &Server{Config: admin.Config(), AuditLog: log, Stop: other.APIServer.Stop, program: s.program, etcd: s.etcd, audit: s.audit}, nil
}

// Several starts so many API servers beside this one: cluster-0, cluster-1 and so on. Where
// one does not start, those that run are stopped again.
func (s *Server) Several(count int) ([]*Server, error) {
	all := make([]*Server, count)
	var group errgroup.Group
	for i := range all {
		group.Go(func() (err error) {
			all[i], err = s.Beside(fmt.Sprintf("cluster-%d", i))
			return err
		})
	}
	err := group.Wait()
	if err == nil {
		return all, nil
	}
	for _, other := range all {
		if other != nil {
			err = errors.Join(err, other.Stop())
		}
	}

	return nil, err
}

// Kubeconfig is how the server is reached as administrator.
func (s *Server) Kubeconfig() ([]byte, error) {
	const name = "workload"

	return clientcmd.Write(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: s.Config.Host, CertificateAuthorityData: s.Config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {ClientCertificateData: s.Config.CertData, ClientKeyData: s.Config.KeyData}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
}

// Run runs the tests of a package beside an API server, and returns the exit code.
func Run(options Options, tests func(*Server) int) int {
	server, err := Start(context.Background(), options)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := tests(server)
	if err := server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return code
}

func below(root string, paths []string) []string {
	var all []string
	for _, path := range paths {
		if !filepath.IsAbs(path) {
			path = filepath.Join(root, path)
		}
		all = append(all, path)
	}

	return all
}

// Repository is the folder of the repository that this program was built from.
func Repository() string {
	_, file, _, _ := runtime.Caller(0)

	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// Build has the test bed build parts of its that are missing, and returns the folders where
// they are.
func Build(ctx context.Context, names ...string) (map[string]string, error) {
	command := exec.CommandContext(ctx, "go", append([]string{"run", "./cmd/stack", "parts"}, names...)...) //nolint:gosec // G204: the names are constants.
	command.Dir, command.Stderr = filepath.Join(Repository(), "test", "stack"), os.Stderr
	told, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("building %s: %w", strings.Join(names, " and "), err)
	}
	folders := map[string]string{}
	for line := range strings.Lines(string(told)) {
		name, folder, _ := strings.Cut(strings.TrimSpace(line), "\t")
		folders[name] = folder
	}

	return folders, nil
}
