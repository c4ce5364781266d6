package management

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/process"
)

// Program is a manager that clusterctl has installed as a Deployment and that
// runs here as a process.
type Program struct {
	// Name is the short name: core, bootstrap, control-plane, infrastructure.
	Name string
	// Deployment is what the manifests make of it. Its first container's
	// arguments and its service account are used.
	Deployment client.ObjectKey
	// Path is the program.
	Path string
	// Args are appended to the Deployment's.
	Args []string
}

// Manager is one manager. It listens on the same ports in all its lives.
type Manager struct {
	// Name is the Program's.
	Name string
	// Namespace is where its Deployment lies.
	Namespace string
	// User is the name under which the API server knows it.
	User string
	// Kubeconfig holds its own token.
	Kubeconfig string
	// Diagnostics is where it serves metrics and profiles.
	Diagnostics string

	command process.Command
	health  string

	mu      sync.Mutex
	process *process.Process
}

// NewManager prepares a manager: its rights, certificate and ports. It does not
// start it.
func (c *Cluster) newManager(ctx context.Context, program Program) (*Manager, int, error) {
	deployment := &appsv1.Deployment{}
	if err := c.Client.Get(ctx, program.Deployment, deployment); err != nil {
		return nil, 0, fmt.Errorf("reading the Deployment of manager %s: %w", program.Name, err)
	}
	ports, err := c.takePorts(ctx, "webhook", "health", "diagnostics")
	if err != nil {
		return nil, 0, err
	}
	account := deployment.Spec.Template.Spec.ServiceAccountName
	m := &Manager{
		Name:       program.Name,
		Namespace:  program.Deployment.Namespace,
		User:       "system:serviceaccount:" + program.Deployment.Namespace + ":" + account,
		Kubeconfig: filepath.Join(c.Dir, "managers", program.Name, "kubeconfig"),
		health:     "http://" + address(ports["health"]) + "/readyz",

		Diagnostics: "https://" + address(ports["diagnostics"]),
	}
	if err := c.writeToken(ctx, m, account); err != nil {
		return nil, 0, err
	}
	certificates := filepath.Join(c.Dir, "managers", program.Name, "serving")
	serving, err := c.authority.server(program.Name)
	if err != nil {
		return nil, 0, err
	}
	if err := write(certificates, map[string][]byte{"tls.crt": serving.certificate, "tls.key": serving.key}); err != nil {
		return nil, 0, err
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	environment := c.environment()
	if program.Name == Core {
		environment = c.upstreamEnvironment()
	}
	m.command = process.Command{
		Name: program.Name + " manager",
		Path: program.Path,
		Log:  filepath.Join(c.LogDir(), program.Name+".log"),
		Env:  append(environment, containerEnv(container, deployment)...),
		Args: append(append(slices.Clip(container.Args),
			"--leader-elect=false",
			"--kubeconfig="+m.Kubeconfig,
			"--webhook-port="+strconv.Itoa(ports["webhook"]),
			"--webhook-cert-dir="+certificates,
			"--health-addr="+address(ports["health"]),
			"--diagnostics-address="+address(ports["diagnostics"]),
		), program.Args...),
	}
	return m, ports["webhook"], nil
}

// writeToken gives the manager a kubeconfig with a token of its own service
// account, so that it has the rights that its manifests give it and no more.
func (c *Cluster) writeToken(ctx context.Context, m *Manager, account string) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To(int64(validity.Seconds())),
	}}
	owner := &corev1.ServiceAccount{}
	owner.Namespace, owner.Name = m.Namespace, account
	if err := c.Client.SubResource("token").Create(ctx, owner, request); err != nil {
		return fmt.Errorf("asking for a token of manager %s: %w", m.Name, err)
	}
	return c.writeKubeconfig(m.Kubeconfig, &clientcmdapi.AuthInfo{Token: request.Status.Token})
}

// containerEnv is the environment of the container as the kubelet would make
// it, as far as managers use it: values and fields of the Pod.
func containerEnv(container corev1.Container, deployment *appsv1.Deployment) []string {
	fields := map[string]string{
		"metadata.namespace":      deployment.Namespace,
		"metadata.name":           deployment.Name + "-0",
		"metadata.uid":            string(uuid.NewUUID()),
		"spec.serviceAccountName": deployment.Spec.Template.Spec.ServiceAccountName,
	}
	env := make([]string, 0, len(container.Env))
	for _, variable := range container.Env {
		value := variable.Value
		if from := variable.ValueFrom; from != nil && from.FieldRef != nil {
			value = fields[from.FieldRef.FieldPath]
		}
		env = append(env, variable.Name+"="+value)
	}
	return env
}

// Start starts the manager and waits until it is ready. It fails when the
// manager runs already.
func (m *Manager) Start(ctx context.Context) error {
	if err := m.Launch(); err != nil {
		return err
	}
	return m.WaitReady(ctx)
}

// Launch starts the manager and does not wait.
func (m *Manager) Launch() error { return m.launch() }

func (m *Manager) launch(further ...string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.process != nil && m.process.Running() {
		return fmt.Errorf("starting manager %s: it runs already", m.Name)
	}
	command := m.command
	command.Args = append(slices.Clip(command.Args), further...)
	started, err := process.Start(command)
	if err != nil {
		return err
	}
	m.process = started
	return nil
}

// WaitReady waits until the manager says that it is ready, and fails at once
// when it has ended.
func (m *Manager) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	httpClient := &http.Client{Timeout: readyTimeout}
	defer httpClient.CloseIdleConnections()
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if err := m.Check(); err != nil {
			return false, err
		}
		if !m.Running() {
			return false, errors.New("it does not run")
		}
		return healthy(ctx, httpClient, m.health), nil
	})
	if err != nil {
		return fmt.Errorf("waiting for manager %s to be ready: %w", m.Name, err)
	}
	return nil
}

// Kill ends the manager with SIGKILL and waits until it is gone.
func (m *Manager) Kill() error {
	if running := m.current(); running != nil {
		return running.Kill()
	}
	return nil
}

// Stop ends the manager with SIGTERM and waits until it is gone.
func (m *Manager) Stop(ctx context.Context) error {
	if running := m.current(); running != nil {
		return running.Stop(ctx, process.DefaultGrace)
	}
	return nil
}

// Restart kills the manager and starts it again.
func (m *Manager) Restart(ctx context.Context) error {
	if err := m.Kill(); err != nil {
		return err
	}
	return m.Start(ctx)
}

// RestartWith kills the manager and starts it again with further arguments,
// which the lives after that do not have.
func (m *Manager) RestartWith(ctx context.Context, args ...string) error {
	if err := m.Kill(); err != nil {
		return err
	}
	if err := m.launch(args...); err != nil {
		return err
	}
	return m.WaitReady(ctx)
}

// PID is the number of the manager's process in its present life, 0 before its
// first.
func (m *Manager) PID() int {
	if running := m.current(); running != nil {
		return running.PID()
	}
	return 0
}

// Running reports whether the manager's process lives.
func (m *Manager) Running() bool {
	running := m.current()
	return running != nil && running.Running()
}

// Log is the file with the output of all lives of the manager.
func (m *Manager) Log() string { return m.command.Log }

// Check fails when the manager has ended by itself. The error carries the end
// of its log.
func (m *Manager) Check() error {
	running := m.current()
	if running == nil {
		return nil
	}
	if err := running.Err(); err != nil {
		return fmt.Errorf("%w\n%s", err, tail(m.Log()))
	}
	return nil
}

func (m *Manager) current() *process.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}
