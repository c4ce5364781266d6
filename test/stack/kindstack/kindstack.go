// Package kindstack is a management cluster in kind: the providers run in Pods,
// installed by the real clusterctl from the local repository, under the rights
// that their manifests give them.
package kindstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/stack/clusterctl"
	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/kind"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/nodes"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// Options are what a Stack is made of.
type Options struct {
	// Name is the name of the cluster in kind: that which Nodes were told.
	Name string
	// Nodes give the Docker and the network.
	Nodes *nodes.Nodes
	// Dir is the folder for all of its files.
	Dir string
	// Repository is the local repository made by "make local-repository".
	Repository string
	// Built are the parts listed by Parts.
	Built parts.Built
	// Pods prepares it for clusters whose machines run in its Pods. Built has
	// PodParts then, too.
	Pods bool
	// Output is told what goes on, a line each.
	Output io.Writer
	// Clock is the real one when nil.
	Clock clock.PassiveClock
}

// Stack is a management cluster.
type Stack struct {
	// Config is an administrator's, Kubeconfig the file of the same.
	Config     *rest.Config
	Kubeconfig string
	// Clusterctl is the tool that installed the providers.
	Clusterctl *clusterctl.Tool

	cluster *kind.Cluster
	client  client.Client
}

// Parts are the parts that Up needs.
func Parts() []string {
	return slices.Concat([]string{"kind", "kind-node-image", "capi-core-image", "cert-manager-image", "kubectl"}, clusterctl.Parts(), parts.EtcdPrograms())
}

// PodParts are the parts that Up needs besides for clusters in Pods.
func PodParts() []string { return []string{"talos-image"} }

// Up makes the cluster and installs the providers. When it fails, the cluster is
// removed, and its logs are in Dir.
func Up(ctx context.Context, options Options) (_ *Stack, err error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	s := &Stack{}
	defer func() {
		if err != nil {
			late := context.WithoutCancel(ctx)
			err = errors.Join(err, s.CollectLogs(late, filepath.Join(options.Dir, "logs")), s.Down(late))
		}
	}()
	var managers []*images.Image
	type step struct {
		what string
		do   func() error
	}
	steps := []step{
		{"building our managers and their images", func() (err error) {
			managers, err = managerImages(ctx, options.Built, options.Dir)
			return err
		}},
		{"starting kind", func() error { return s.startKind(ctx, options) }},
		{"loading the managers' images", func() error { return s.loadImages(ctx, options, managers) }},
		{"clusterctl init --wait-providers", func() error { return s.init(ctx, options) }},
	}
	if options.Pods {
		steps = append(steps, step{"leading this machine to the Services and Pods of kind", func() error {
			return Reach(ctx, options.Nodes, options.Name)
		}})
	}
	for _, step := range steps {
		fmt.Fprintf(options.Output, "==> %s\n", step.what)
		start := options.Clock.Now()
		if err := step.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", step.what, err)
		}
		fmt.Fprintf(options.Output, "    done (%.1f s)\n", options.Clock.Since(start).Seconds())
	}
	return s, nil
}

// managerImages builds our managers, and an image of each as a release has it.
func managerImages(ctx context.Context, built parts.Built, dir string) ([]*images.Image, error) {
	programs, err := management.BuildManagers(ctx, filepath.Join(dir, "bin"), false)
	if err != nil {
		return nil, err
	}
	var all []*images.Image
	ours, err := parts.Providers()
	if err != nil {
		return nil, err
	}
	for _, provider := range ours {
		folder := filepath.Join(dir, "images", provider.Folder)
		beside, err := built.Beside(provider)
		if err != nil {
			return nil, err
		}
		if err := parts.WriteProgramImage(filepath.Join(programs, provider.Folder), filepath.Join(folder, "root"), folder, provider.Image()+":"+clusterctl.ReleaseVersion, beside...); err != nil {
			return nil, err
		}
		image, err := images.Open(folder)
		if err != nil {
			return nil, err
		}
		all = append(all, image)
	}
	return all, nil
}

func (s *Stack) startKind(ctx context.Context, options Options) error {
	node, err := images.Open(options.Built.Dir("kind-node-image"))
	if err != nil {
		return err
	}
	if err := options.Nodes.Docker.Load(ctx, node); err != nil {
		return err
	}
	s.cluster, err = kind.Create(ctx, kind.Options{
		Name: options.Name, Network: options.Nodes.Network.Name, Program: options.Built.Path("kind"), Docker: options.Nodes.Docker.Path,
		Image: node.Name, Dir: filepath.Join(options.Dir, "kind"),
	})
	if err != nil {
		return err
	}
	s.Kubeconfig = s.cluster.Kubeconfig
	if s.Config, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
		return fmt.Errorf("reading the kubeconfig of the cluster: %w", err)
	}
	if s.client, err = client.New(s.Config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		return fmt.Errorf("making a client of the cluster: %w", err)
	}
	return nil
}

func (s *Stack) loadImages(ctx context.Context, options Options, managers []*images.Image) error {
	others, err := podImages(options.Built, options.Pods)
	if err != nil {
		return err
	}
	return s.cluster.Load(ctx, append(managers, others...)...)
}

func (s *Stack) init(ctx context.Context, options Options) error {
	if options.Pods {
		amended := filepath.Join(options.Dir, "repository")
		if err := options.Nodes.Pods().Repository(options.Repository, amended); err != nil {
			return err
		}
		options.Repository = amended
	}
	var err error
	if s.Clusterctl, err = NewClusterctl(options.Dir, options.Built, s.Kubeconfig, options.Repository); err != nil {
		return err
	}
	if err := s.Clusterctl.Init(ctx, "--wait-providers"); err != nil {
		return err
	}
	return RereadWebhooks(ctx, s.Config)
}

// NewClusterctl configures clusterctl for a management cluster in kind:
// cert-manager is its real controllers, in one image.
func NewClusterctl(dir string, built parts.Built, kubeconfig, repository string) (*clusterctl.Tool, error) {
	kinds, err := os.ReadFile(built.Path("cert-manager-crds", "cert-manager-crds.yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading the kinds of cert-manager: %w", err)
	}
	manifest, err := kind.CertManager(kinds, parts.CertManagerImage)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "cert-manager.yaml")
	if err := os.WriteFile(file, manifest, 0o644); err != nil {
		return nil, fmt.Errorf("writing the manifest of cert-manager: %w", err)
	}
	return clusterctl.New(clusterctl.Options{
		Dir: filepath.Join(dir, "clusterctl"), Built: built, Kubeconfig: kubeconfig, Repository: repository, CertManager: file,
	})
}

// LoadIntoDocker puts the images of parts into Docker, and returns their names.
func LoadIntoDocker(ctx context.Context, around *nodes.Nodes, built parts.Built, names ...string) ([]string, error) {
	loaded := make([]string, 0, len(names))
	for _, name := range names {
		image, err := images.Open(built.Dir(name))
		if err != nil {
			return nil, err
		}
		if err := around.Docker.Load(ctx, image); err != nil {
			return nil, err
		}
		loaded = append(loaded, image.Name)
	}
	return loaded, nil
}

// Check fails when a manager of ours has ended by itself. It is silent when that cannot
// be told.
func (s *Stack) Check(ctx context.Context) error { return CheckManagers(ctx, s.client) }

// CheckManagers does so in a management cluster.
func CheckManagers(ctx context.Context, reader client.Reader) error {
	// Those of others lose their leases when the machine is busy.
	ours, err := parts.Providers()
	if err != nil {
		return err
	}
	pods := &corev1.PodList{}
	if err := reader.List(ctx, pods); err != nil {
		return nil //nolint:nilerr // A busy API server is no end of a manager.
	}
	var failures []error
	for i := range pods.Items {
		pod := &pods.Items[i]
		for _, container := range pod.Status.ContainerStatuses {
			if restarts(container) > 0 && slices.ContainsFunc(ours, func(provider providers.Provider) bool { return provider.Namespace() == pod.Namespace }) {
				failures = append(failures, fmt.Errorf("container %s of Pod %s in %s was started again %d times", container.Name, pod.Name, pod.Namespace, restarts(container)))
			}
		}
	}
	return errors.Join(failures...)
}

// restarts counts how often a container was started again after it had run. One that its
// runtime could not start has not: runc, which cannot always freeze a cgroup of version 1.
func restarts(container corev1.ContainerStatus) int32 {
	if last := container.LastTerminationState.Terminated; last != nil && last.Reason == "StartError" {
		return container.RestartCount - 1
	}
	return container.RestartCount
}

// CollectLogs writes the logs of all containers into a folder.
func (s *Stack) CollectLogs(ctx context.Context, dir string) error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.CollectLogs(ctx, dir)
}

// Down removes the cluster. It may be called twice.
func (s *Stack) Down(ctx context.Context) error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Delete(ctx)
}

// LoadProgram makes an image of a static program that needs no rights and puts it
// into Docker. It is kept in the folder dir.
func LoadProgram(ctx context.Context, around *nodes.Nodes, binary, dir, name string) (string, error) {
	if err := parts.WriteProgramImage(binary, filepath.Join(dir, "root"), dir, name); err != nil {
		return "", err
	}
	image, err := images.Open(dir)
	if err != nil {
		return "", err
	}
	return image.Name, around.Docker.Load(ctx, image)
}
