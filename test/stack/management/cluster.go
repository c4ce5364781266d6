// Package management runs a management cluster as plain processes, without root
// and without containers: etcd, kube-apiserver, kube-controller-manager, and
// the managers of Cluster API and of our providers, installed by the real
// clusterctl and running under the rights that their manifests give them.
package management

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/stack/process"
)

// Parts are the parts that Start needs.
func Parts() []string {
	return []string{"etcd", "kube-apiserver", controllerManager}
}

// PodParts are the parts that Start needs besides where Pods are to run.
func PodParts() []string { return []string{scheduler} }

const (
	// controllerManager and scheduler are Kubernetes' programs, by which also their
	// users are called.
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"

	loopback = "127.0.0.1"
	// readyTimeout is how long the control plane may take to be ready. It is
	// ready within 4 seconds on an idle machine.
	readyTimeout = 2 * time.Minute
	// pollInterval is how often readiness is asked for.
	pollInterval = 100 * time.Millisecond
	// logTail is how much of a process' log is in the error when it fails.
	logTail = 1500
)

// Cluster is a running control plane.
type Cluster struct {
	// Dir holds everything: certificates, data, kubeconfigs, logs/.
	Dir string
	// Kubeconfig is the file for an administrator.
	Kubeconfig string
	// Config is the same as Kubeconfig, for clients in Go.
	Config *rest.Config
	// Client talks to the API server as an administrator, without a cache. It
	// knows the kinds of Kubernetes and CustomResourceDefinition.
	Client client.Client

	built     parts.Built
	pods      bool
	gcPercent int
	clock     clock.Clock
	ports     process.Ports
	authority *authority
	server    string
	processes []*process.Process
}

// Options are what a control plane is started with.
type Options struct {
	// Dir is the folder for all files of the cluster. Start makes it; who calls
	// Start removes it after Stop.
	Dir string
	// Built are the parts listed by Parts.
	Built parts.Built
	// Audit writes down who has asked the API server for what: AuditLog is the
	// file.
	Audit bool
	// Pods adds what Kubernetes needs to run Pods besides kubelets and kube-proxy:
	// the scheduler, and the controllers of volumes, quotas, disruption budgets and
	// nodes that are gone. It needs the parts listed by PodParts.
	Pods bool
	// GCPercent is the GOGC of Kubernetes' programs and Cluster API's manager, in percent;
	// 0 is Go's default, 100. With more they take more memory and less of the processor.
	GCPercent int
	// Clock is the real one when nil.
	Clock clock.Clock
}

// Start starts a control plane and waits until it is ready. When it fails, all
// is stopped again.
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the stack's folder: %w", err)
	}
	c := &Cluster{Dir: dir, Kubeconfig: filepath.Join(dir, "kubeconfig"), built: options.Built, clock: options.Clock}
	c.pods, c.gcPercent = options.Pods, options.GCPercent
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()

	ports, err := c.takePorts(ctx, "etcd", "etcd-peer", "kube-apiserver")
	if err != nil {
		return nil, err
	}
	c.server = "https://" + address(ports["kube-apiserver"])
	if err := c.makeFiles(); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ports); err != nil {
		return nil, err
	}
	audit, err := c.auditArgs(options.Audit)
	if err != nil {
		return nil, err
	}
	if err := c.startAPIServer(ctx, ports, audit); err != nil {
		return nil, err
	}
	if err := c.startControllerManager(ctx); err != nil {
		return nil, err
	}
	if err := c.startScheduler(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cluster) takePorts(ctx context.Context, names ...string) (map[string]int, error) {
	ports := map[string]int{}
	for _, name := range names {
		port, err := c.ports.Take(ctx)
		if err != nil {
			return nil, fmt.Errorf("taking a port for %s: %w", name, err)
		}
		ports[name] = port
	}
	return ports, nil
}

func address(port int) string { return loopback + ":" + strconv.Itoa(port) }

func (c *Cluster) pki(name string) string { return filepath.Join(c.Dir, "pki", name) }

// LogDir is the folder of the logs of all processes, one file each.
func (c *Cluster) LogDir() string { return filepath.Join(c.Dir, "logs") }

// makeFiles writes certificates and kubeconfigs and makes the client.
func (c *Cluster) makeFiles() error {
	var err error
	if c.authority, err = newAuthority("capi-talos-stack", c.clock.Now()); err != nil {
		return err
	}
	serving, err := c.authority.server("kube-apiserver", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	private, public, err := tokenKeys()
	if err != nil {
		return err
	}
	err = write(filepath.Join(c.Dir, "pki"), map[string][]byte{
		"ca.crt": c.authority.pem, "apiserver.crt": serving.certificate, "apiserver.key": serving.key,
		"sa.key": private, "sa.pub": public,
	})
	if err != nil {
		return err
	}
	admin, err := c.authority.client("admin", "system:masters")
	if err != nil {
		return err
	}
	if err := c.writeKubeconfig(c.Kubeconfig, user(admin)); err != nil {
		return err
	}
	for _, program := range []string{controllerManager, scheduler} {
		known, err := c.authority.client("system:" + program)
		if err != nil {
			return err
		}
		if err := c.writeKubeconfig(c.pki(program+".kubeconfig"), user(known)); err != nil {
			return err
		}
	}
	return c.makeClient()
}

func user(pair pair) *clientcmdapi.AuthInfo {
	return &clientcmdapi.AuthInfo{ClientCertificateData: pair.certificate, ClientKeyData: pair.key}
}

func (c *Cluster) writeKubeconfig(path string, user *clientcmdapi.AuthInfo) error {
	const name = "management"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.server, CertificateAuthorityData: c.authority.pem}
	config.AuthInfos[name] = user
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding a kubeconfig: %w", err)
	}
	return write(filepath.Dir(path), map[string][]byte{filepath.Base(path): content})
}

func (c *Cluster) makeClient() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	// No limit on the side of the tests: they wait for the server as it is.
	config.QPS = -1
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("building the scheme: %w", err)
		}
	}
	c.Config = config
	if c.Client, err = client.New(config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making the client: %w", err)
	}
	return nil
}

func (c *Cluster) startEtcd(ports map[string]int) error {
	clients, peers := "http://"+address(ports["etcd"]), "http://"+address(ports["etcd-peer"])
	return c.run("etcd",
		"--name=stack",
		"--data-dir="+filepath.Join(c.Dir, "etcd"),
		"--listen-client-urls="+clients,
		"--advertise-client-urls="+clients,
		"--listen-peer-urls="+peers,
		"--initial-advertise-peer-urls="+peers,
		"--initial-cluster=stack="+peers,
		"--unsafe-no-fsync",
		"--log-level=warn",
	)
}

func (c *Cluster) startAPIServer(ctx context.Context, ports map[string]int, further []string) error {
	err := c.run("kube-apiserver", append(further,
		"--etcd-servers=http://"+address(ports["etcd"]),
		"--bind-address="+loopback,
		"--advertise-address="+loopback,
		"--secure-port="+strconv.Itoa(ports["kube-apiserver"]),
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=true",
		"--authorization-mode=RBAC",
		// OpenShift has it on: who blocks the deletion of an owner must have a right to it.
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
		"--client-ca-file="+c.pki("ca.crt"),
		"--tls-cert-file="+c.pki("apiserver.crt"),
		"--tls-private-key-file="+c.pki("apiserver.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+c.pki("sa.pub"),
		"--service-account-signing-key-file="+c.pki("sa.key"),
	)...)
	if err != nil {
		return err
	}
	httpClient, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		return fmt.Errorf("making a client for the API server's health: %w", err)
	}
	return c.await(ctx, "kube-apiserver to be ready", func(ctx context.Context) (bool, error) {
		return healthy(ctx, httpClient, c.server+"/readyz"), nil
	})
}

func (c *Cluster) startControllerManager(ctx context.Context) error {
	err := c.run(controllerManager,
		"--kubeconfig="+c.pki(controllerManager+".kubeconfig"),
		"--secure-port=0",
		"--leader-elect=false",
		"--use-service-account-credentials",
		"--root-ca-file="+c.pki("ca.crt"),
		"--service-account-private-key-file="+c.pki("sa.key"),
		"--controllers="+strings.Join(c.controllers(), ","),
		"--pvclaimbinder-sync-period=2s",
	)
	if err != nil {
		return err
	}
	return c.await(ctx, "kube-controller-manager to make the default service account", func(ctx context.Context) (bool, error) {
		err := c.Client.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceDefault, Name: "default"}, &corev1.ServiceAccount{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// controllers are those that run.
func (c *Cluster) controllers() []string {
	names := []string{
		"garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
		"serviceaccount-token-controller", "clusterrole-aggregation-controller",
	}
	if !c.pods {
		return names
	}
	return append(names,
		"persistentvolume-binder-controller", "persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller",
		"resourcequota-controller", "disruption-controller", "pod-garbage-collector-controller",
	)
}

func (c *Cluster) startScheduler() error {
	if !c.pods {
		return nil
	}
	return c.run(scheduler, "--kubeconfig="+c.pki(scheduler+".kubeconfig"), "--secure-port=0", "--leader-elect=false")
}

// run starts one of the parts.
func (c *Cluster) run(name string, args ...string) error {
	started, err := process.Start(process.Command{
		Name: name,
		Path: c.built.Path(name),
		Args: args,
		Env:  c.upstreamEnvironment(),
		Log:  filepath.Join(c.LogDir(), name+".log"),
	})
	if err != nil {
		return err
	}
	c.processes = append(c.processes, started)
	return nil
}

// environment is what all programs of the stack see: nothing of the user's
// own configuration, and no proxy on the way to loopback addresses.
func (c *Cluster) environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(c.Dir, "home"), "NO_PROXY=*"}
}

// upstreamEnvironment is what programs see that are not ours.
func (c *Cluster) upstreamEnvironment() []string {
	if c.gcPercent == 0 {
		return c.environment()
	}
	return append(c.environment(), "GOGC="+strconv.Itoa(c.gcPercent))
}

// await polls until the condition holds, and fails at once when a process of
// the control plane has ended.
func (c *Cluster) await(ctx context.Context, what string, condition wait.ConditionWithContextFunc) error {
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := c.Check(); err != nil {
			return false, err
		}
		return condition(ctx)
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// Check fails when a process of the control plane has ended by itself. The
// error carries the end of its log.
func (c *Cluster) Check() error {
	for _, process := range c.processes {
		if err := process.Err(); err != nil {
			return fmt.Errorf("%w\n%s", err, tail(process.Log()))
		}
	}
	return nil
}

func tail(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	if len(content) > logTail {
		content = content[len(content)-logTail:]
	}
	return string(content)
}

func healthy(ctx context.Context, httpClient *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// Stop ends the control plane, the last started process first, and waits until
// all are gone. It may be called more than once. Logs and data stay.
func (c *Cluster) Stop(ctx context.Context) error {
	var failures []error
	for len(c.processes) > 0 {
		last := len(c.processes) - 1
		failures = append(failures, c.processes[last].Stop(ctx, process.DefaultGrace))
		c.processes = c.processes[:last]
	}
	c.ports.Release()
	return errors.Join(failures...)
}
