package dev

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/capi-talos/capi-talos/test/stack/internal/images"
	"github.com/capi-talos/capi-talos/test/stack/internal/kind"
	"github.com/capi-talos/capi-talos/test/stack/kindstack"
	"github.com/capi-talos/capi-talos/test/stack/management"
	"github.com/capi-talos/capi-talos/test/stack/parts"
	"github.com/capi-talos/capi-talos/test/support/providers"
)

// provider is one of ours, whose manager is made anew again and again.
type provider struct{ providers.Provider }

// find finds the provider in a folder.
func find(folder string) (provider, error) {
	ours, err := parts.Providers()
	if err != nil {
		return provider{}, err
	}
	index := slices.IndexFunc(ours, func(p providers.Provider) bool { return p.Folder == folder })
	if index < 0 {
		return provider{}, fmt.Errorf("there is no provider in folder %q", folder)
	}
	return provider{ours[index]}, nil
}

// Deploy puts a manager that was built into the cluster, with the manifests as they
// are in the sources now, and prints its Deployment to output: that is how Tilt
// learns whose Pods to watch. What it does goes to messages.
func Deploy(ctx context.Context, session *Session, folder, binary string, output, messages io.Writer) error {
	provider, err := find(folder)
	if err != nil {
		return err
	}
	built, err := parts.Ensure(ctx, parts.Print(messages), parts.EtcdPrograms()...)
	if err != nil {
		return err
	}
	beside, err := built.Beside(provider.Provider)
	if err != nil {
		return err
	}
	image, remove, err := managerImage(provider, binary, beside...)
	if err != nil {
		return err
	}
	defer remove()
	fmt.Fprintf(messages, "loading %s\n", image.Name)
	if err := session.load(ctx, image); err != nil {
		return err
	}
	rendered, err := session.kubectl(ctx, nil, "kustomize", filepath.Join(session.Source, "config", provider.Folder, "default"))
	if err != nil {
		return err
	}
	manifests, err := provider.amend(rendered, image.Name)
	if err != nil {
		return err
	}
	fmt.Fprintln(messages, "applying the manifests")
	if _, err := session.kubectl(ctx, manifests, "apply", "--server-side", "--force-conflicts", "--field-manager", Name, "-f", "-"); err != nil {
		return err
	}
	deployment, err := session.kubectl(ctx, nil, "--namespace", provider.Namespace(), "get", "deployment", provider.Deployment(), "-o", "yaml")
	if err != nil {
		return err
	}
	if _, err := output.Write(deployment); err != nil {
		return fmt.Errorf("printing the Deployment: %w", err)
	}
	session.removeOthers(ctx, provider, image.Name, messages)
	return nil
}

// managerImage makes the image of a binary. Its tag says what is in it, so that
// another binary is another image. beside are the programs that it runs itself.
func managerImage(p provider, binary string, beside ...string) (_ *images.Image, remove func(), err error) {
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the manager: %w", err)
	}
	sum := sha256.Sum256(content)
	const digits = 6
	folder, err := os.MkdirTemp("", "capi-talos-image-")
	if err != nil {
		return nil, nil, fmt.Errorf("making a folder for the image: %w", err)
	}
	remove = func() { _ = os.RemoveAll(folder) }
	name := p.Image() + ":dev-" + hex.EncodeToString(sum[:digits])
	err = parts.WriteProgramImage(binary, filepath.Join(folder, "root"), filepath.Join(folder, "image"), name, beside...)
	if err != nil {
		remove()
		return nil, nil, err
	}
	image, err := images.Open(filepath.Join(folder, "image"))
	if err != nil {
		remove()
		return nil, nil, err
	}
	return image, remove, nil
}

func (s *Session) load(ctx context.Context, image *images.Image) error {
	folder, err := os.MkdirTemp("", "capi-talos-load-")
	if err != nil {
		return fmt.Errorf("making a folder for the archive: %w", err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	cluster := kind.Existing(kind.Options{Name: Name, Network: s.Network, Program: s.Kind, Docker: s.Docker, Dir: folder})
	return cluster.Load(ctx, image)
}

// amend makes rendered manifests ready for one manager that changes often: with the
// image, without leader election, whose lease the next manager would wait for, and
// with the old manager's end before the new one's start.
func (p provider) amend(rendered []byte, image string) ([]byte, error) {
	objects, err := management.Objects(rendered)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	amended := 0
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			if err := p.amendDeployment(object, image); err != nil {
				return nil, fmt.Errorf("amending Deployment %s: %w", object.GetName(), err)
			}
			amended++
		}
		text, err := yaml.Marshal(object.Object)
		if err != nil {
			return nil, fmt.Errorf("writing %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		fmt.Fprintf(&all, "---\n%s", text)
	}
	if amended != 1 {
		return nil, fmt.Errorf("looking for the manager among the manifests of provider %s: there are %d Deployments", p.Name, amended)
	}
	return all.Bytes(), nil
}

func (p provider) amendDeployment(object *unstructured.Unstructured, image string) error {
	deployment := &appsv1.Deployment{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, deployment); err != nil {
		return err
	}
	containers := deployment.Spec.Template.Spec.Containers
	if len(containers) != 1 || !strings.HasPrefix(containers[0].Image, p.Image()+":") {
		return errors.New("it is not one container with the manager's image")
	}
	containers[0].Image = image
	containers[0].Args = slices.DeleteFunc(containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, "--leader-elect") })
	containers[0].Args = append(containers[0].Args, "--leader-elect=false")
	deployment.Spec.Strategy = appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(deployment)
	if err != nil {
		return err
	}
	unstructured.RemoveNestedField(content, "status")
	object.Object = content
	return nil
}

// removeOthers removes earlier images of the manager from the node: there is one of
// each saved file. What cannot be removed only takes space.
func (s *Session) removeOthers(ctx context.Context, p provider, image string, messages io.Writer) {
	node := kindstack.NodeContainer(Name)
	list, err := s.run(ctx, nil, s.Docker, "exec", node, "crictl", "images", "--output", "yaml", p.Image())
	if err == nil {
		for _, name := range others(list, p.Image(), image) {
			if _, removeErr := s.run(ctx, nil, s.Docker, "exec", node, "crictl", "rmi", name); removeErr != nil {
				err = removeErr
			}
		}
	}
	if err != nil {
		fmt.Fprintf(messages, "earlier images stay in the node: %v\n", err)
	}
}

// others are the names of development images in a list of crictl's but the one that
// is kept.
func others(list []byte, repository, kept string) []string {
	var content struct {
		Images []struct {
			RepoTags []string `json:"repoTags"`
		} `json:"images"`
	}
	if err := yaml.Unmarshal(list, &content); err != nil {
		return nil
	}
	var found []string
	for _, image := range content.Images {
		for _, name := range image.RepoTags {
			if name != kept && strings.HasPrefix(name, repository+":dev-") {
				found = append(found, name)
			}
		}
	}
	return found
}

func (s *Session) kubectl(ctx context.Context, input []byte, args ...string) ([]byte, error) {
	return s.run(ctx, input, filepath.Join(s.Bin, "kubectl"), args...)
}

// run runs a program and returns what it prints. What it says on its error output is
// in the error when it fails.
func (s *Session) run(ctx context.Context, input []byte, program string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the tools of the stack
	var out, messages bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Env(), bytes.NewReader(input), &out, &messages
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running %s %s: %w: %s", filepath.Base(program), args[0], err, strings.TrimSpace(messages.String()))
	}
	return out.Bytes(), nil
}
