package podhost

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// officialImage is the repository of the Talos image; its tags are releases.
const officialImage = "ghcr.io/siderolabs/talos:"

// maxEnvironment is the longest string of an environment that Linux takes
// (MAX_ARG_STRLEN).
const maxEnvironment = 128 << 10

// Image is what a name of an image leads to.
type Image struct {
	// Refusal are the words of the runtime that cannot pull it; empty means that it
	// can.
	Refusal string
	// Release is the Talos release in it; empty means that it is no Talos.
	Release string
}

// SetImage tells what an image is. Tags of the official one are the releases that
// they name; others cannot be pulled.
func (h *Host) SetImage(name string, image Image) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.images[name] = image
}

func (h *Host) image(name string) Image {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known, ok := h.images[name]; ok {
		return known
	}
	if release, ok := strings.CutPrefix(name, officialImage); ok {
		return Image{Release: release}
	}
	return Image{Refusal: fmt.Sprintf("failed to pull and unpack image %q: failed to resolve reference %q: %s: not found", name, name, name)}
}

// notStarted is why a container does not start, with the kubelet's reason.
type notStarted struct {
	reason, message string
}

func (e *notStarted) Error() string { return e.message }

func reasonOf(err error) string {
	if failure, ok := errors.AsType[*notStarted](err); ok {
		return failure.reason
	}
	return "CreateContainerError"
}

// startContainer starts the container, with a sandbox where there is none.
func (h *Host) startContainer(ctx context.Context, pod *corev1.Pod, w *worker) error {
	container := &pod.Spec.Containers[0]
	volume, err := h.dataVolume(ctx, pod)
	if err != nil {
		return err
	}
	if w.ip == "" {
		if w.ip, w.last, err = h.takeAddress(h.numberOf(pod.Spec.NodeName)); err != nil {
			return err
		}
	}
	image := h.image(container.Image)
	if err := pull(w, container.Image, image); err != nil {
		return err
	}
	environment, err := h.environment(ctx, pod, container)
	if err != nil {
		return err
	}
	if err := execute(container, environment); err != nil {
		return err
	}
	if image.Release == "" {
		w.ended = make(chan struct{})
	} else if err := h.boot(pod, w, volume, image.Release, environment["USERDATA"]); err != nil {
		return err
	}
	w.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	return nil
}

// pullInterval is how often an image is asked for that cannot be pulled.
const pullInterval = time.Second

// pull asks for the image. Between two times it is the kubelet that says why not.
func pull(w *worker, name string, image Image) error {
	if image.Refusal == "" {
		return nil
	}
	if time.Since(w.pulled) < pullInterval {
		return &notStarted{"ImagePullBackOff", fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %s", name, image.Refusal)}
	}
	w.pulled = time.Now()
	return &notStarted{"ErrImagePull", image.Refusal}
}

// environment is that of the container.
func (h *Host) environment(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (map[string]string, error) {
	made := map[string]string{}
	for _, variable := range container.Env {
		if variable.ValueFrom == nil {
			made[variable.Name] = variable.Value
			continue
		}
		ref := variable.ValueFrom.SecretKeyRef
		if ref == nil {
			return nil, &notStarted{"CreateContainerConfigError", "podhost knows no source of variable " + variable.Name}
		}
		secret := &corev1.Secret{}
		err := h.live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: ref.Name}, secret)
		value, has := secret.Data[ref.Key]
		switch {
		case ptr.Deref(ref.Optional, false) && (apierrors.IsNotFound(err) || err == nil && !has):
		case apierrors.IsNotFound(err):
			return nil, &notStarted{"CreateContainerConfigError", fmt.Sprintf("secret %q not found", ref.Name)}
		case err != nil:
			return nil, err
		case !has:
			return nil, &notStarted{"CreateContainerConfigError", fmt.Sprintf("couldn't find key %s in Secret %s/%s", ref.Key, pod.Namespace, ref.Name)}
		default:
			made[variable.Name] = string(value)
		}
	}
	return made, nil
}

// execute is what the kernel and machined refuse at the start of the process.
func execute(container *corev1.Container, environment map[string]string) error {
	for name, value := range environment {
		if len(name)+len("=")+len(value)+1 > maxEnvironment {
			return &notStarted{"CrashLoopBackOff", fmt.Sprintf("exec: variable %s: argument list too long", name)}
		}
	}
	switch {
	case container.SecurityContext == nil || !ptr.Deref(container.SecurityContext.Privileged, false):
		return &notStarted{"CrashLoopBackOff", "machined cannot write to /sys/fs/cgroup: the container is not privileged"}
	case environment["PLATFORM"] != "container":
		return &notStarted{"CrashLoopBackOff", "machined ended: no platform"}
	}
	return nil
}

// dataVolume is the volume on which the machine keeps its data; empty means one
// that goes with the Pod. All that Talos keeps must be on one volume, empty at
// the start.
func (h *Host) dataVolume(ctx context.Context, pod *corev1.Pod) (string, error) {
	mounted := map[string]string{}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		mounted[mount.MountPath] = mount.Name
	}
	name := mounted["/var"]
	for _, path := range []string{"/var", "/system/state", "/etc/cni", "/etc/kubernetes", "/usr/libexec/kubernetes"} {
		if mounted[path] == "" || mounted[path] != name {
			return "", &notStarted{"CrashLoopBackOff", "machined ended: " + path + " is not on the volume of /var"}
		}
	}
	for _, volume := range pod.Spec.Volumes {
		switch {
		case volume.Name != name:
		case volume.EmptyDir != nil:
			return "", nil
		case volume.PersistentVolumeClaim != nil:
			claim := &corev1.PersistentVolumeClaim{}
			if err := h.live.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: volume.PersistentVolumeClaim.ClaimName}, claim); err != nil {
				return "", err
			}
			if claim.Status.Phase != corev1.ClaimBound {
				return "", &notStarted{"ContainerCreating", ""}
			}
			return claim.Spec.VolumeName, nil
		}
	}
	return "", &notStarted{"ContainerCreating", "podhost knows no such volume"}
}

// boot starts the machine on its volume.
func (h *Host) boot(pod *corev1.Pod, w *worker, volume, release, userData string) error {
	configuration, err := base64.StdEncoding.DecodeString(userData)
	if err != nil {
		return &notStarted{"CrashLoopBackOff", "machined ended: USERDATA is not base64"}
	}
	if w.machine == nil {
		if w.machine, err = h.machineOn(pod, volume); err != nil {
			return err
		}
		w.data = volume
	}
	ended, err := w.machine.Start(talossim.Run{Address: w.ip, Hostname: pod.Name, TalosVersion: release, UserData: configuration})
	if err != nil {
		return err
	}
	w.ended = ended
	key := client.ObjectKeyFromObject(pod)
	h.running.Go(func() {
		<-ended
		h.look(h.ctx, key)
	})
	return nil
}

// machineOn is the machine whose data lies on a volume, or a new one.
func (h *Host) machineOn(pod *corev1.Pod, volume string) (*talossim.Machine, error) {
	if volume == "" {
		return h.newMachine(pod.Namespace + "/" + pod.Name + "/" + string(pod.UID))
	}
	h.mu.Lock()
	found := h.volumes[volume]
	h.mu.Unlock()
	if found != nil {
		return found, nil
	}
	made, err := h.newMachine(pod.Namespace + "/" + volume)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.volumes[volume] = made
	return made, nil
}
