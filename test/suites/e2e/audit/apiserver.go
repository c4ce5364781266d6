package audit

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const (
	// PolicyFile is where the node of an API server has the policy.
	PolicyFile = "/etc/kubernetes/audit/policy.yaml"
	// LogFolder is where the log goes there.
	LogFolder = "/var/log/kubernetes/audit"

	// maxLog is how large a file of the log grows, in megabytes, before another one
	// is begun.
	maxLog = "500"
)

// Policy has every request of these users noted, and nobody else's. Objects are
// not: Secrets are among them. The beginning of a watch is noted, too, since it may
// never end.
func Policy(users []string) string {
	var policy strings.Builder
	policy.WriteString("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n  users:\n")
	for _, user := range users {
		fmt.Fprintf(&policy, "  - %s\n", user)
	}
	policy.WriteString("- level: None\n")
	return policy.String()
}

// Enable makes the API server of a static Pod, as kubeadm writes it, keep an audit
// log.
func Enable(manifest []byte) ([]byte, error) {
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(manifest, pod); err != nil {
		return nil, fmt.Errorf("reading the Pod of the API server: %w", err)
	}
	if len(pod.Spec.Containers) != 1 || !slices.Contains(pod.Spec.Containers[0].Command, "kube-apiserver") {
		return nil, fmt.Errorf("reading the Pod of the API server: Pod %q is none", pod.Name)
	}
	container := &pod.Spec.Containers[0]
	container.Command = append(container.Command,
		"--audit-policy-file="+PolicyFile, "--audit-log-path="+LogFolder+"/audit.log", "--audit-log-maxsize="+maxLog)
	for _, place := range []struct {
		name, path string
		kind       corev1.HostPathType
		readOnly   bool
	}{
		{"audit-policy", PolicyFile, corev1.HostPathFile, true},
		{"audit-log", LogFolder, corev1.HostPathDirectoryOrCreate, false},
	} {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: place.name, MountPath: place.path, ReadOnly: place.readOnly})
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: place.name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: place.path, Type: ptr.To(place.kind)},
		}})
	}
	changed, err := yaml.Marshal(pod)
	if err != nil {
		return nil, fmt.Errorf("writing the Pod of the API server: %w", err)
	}
	return changed, nil
}
