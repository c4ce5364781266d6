package parts

import "strings"

const (
	// KubernetesVersion is the version of all Kubernetes programs of the test bed,
	// in management clusters and in workload clusters.
	KubernetesVersion = "v1.36.3"
	// PreviousKubernetesVersion is that of workload clusters which are then brought
	// to KubernetesVersion: one minor less.
	PreviousKubernetesVersion = "v1.35.4"
	// EtcdVersion is the version of etcd of the test bed.
	EtcdVersion = "v3.6.16"

	// previous ends the names of the parts of PreviousKubernetesVersion.
	previous = "-previous"
)

// kubernetesParts are Kubernetes' own programs and etcd.
func kubernetesParts() []Part {
	current := func(name string) Part { return kubernetesProgram(name, name, "kubernetes", KubernetesVersion) }
	return []Part{
		{
			Name:     "etcd",
			Version:  EtcdVersion,
			Module:   "etcd",
			Commands: []Command{{Package: "go.etcd.io/etcd/server/v3", Binary: "etcd"}},
		},
		current("kube-apiserver"),
		current("kube-controller-manager"),
		current("kubectl"),
		current("kube-scheduler"),
		current("kube-proxy"),
		current("kubelet"),
		current("kubeadm"),
	}
}

// previousKubernetesParts are the programs that a workload cluster of
// PreviousKubernetesVersion runs.
func previousKubernetesParts() []Part {
	var all []Part
	for _, program := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"} {
		all = append(all, kubernetesProgram(program+previous, program, "kubernetes"+previous, PreviousKubernetesVersion))
	}
	return all
}

// kubernetesProgram is a part of one program of Kubernetes, which tells its
// version as a released one does.
func kubernetesProgram(part, program, module, version string) Part {
	const stamp = "k8s.io/component-base/version"
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	return Part{
		Name:     part,
		Version:  version,
		Module:   module,
		Commands: []Command{{Package: "k8s.io/kubernetes/cmd/" + program, Binary: program}},
		LDFlags: "-X " + stamp + ".gitVersion=" + version +
			" -X " + stamp + ".gitMajor=" + major + " -X " + stamp + ".gitMinor=" + minor + " -X " + stamp + ".gitTreeState=clean",
	}
}
