package parts

// KubernetesVersion is the version of all Kubernetes programs of the test bed,
// in management clusters and in workload clusters.
const KubernetesVersion = "v1.36.3"

// EtcdVersion is the version of etcd of the test bed.
const EtcdVersion = "v3.6.16"

// kubernetesParts are Kubernetes' own programs and etcd.
func kubernetesParts() []Part {
	const stamp = "k8s.io/component-base/version"
	kubernetes := func(name string) Part {
		return Part{
			Name:     name,
			Version:  KubernetesVersion,
			Module:   "kubernetes",
			Commands: []Command{{Package: "k8s.io/kubernetes/cmd/" + name, Binary: name}},
			LDFlags: "-X " + stamp + ".gitVersion=" + KubernetesVersion +
				" -X " + stamp + ".gitMajor=1 -X " + stamp + ".gitMinor=36 -X " + stamp + ".gitTreeState=clean",
		}
	}
	return []Part{
		{
			Name:     "etcd",
			Version:  EtcdVersion,
			Module:   "etcd",
			Commands: []Command{{Package: "go.etcd.io/etcd/server/v3", Binary: "etcd"}},
		},
		kubernetes("kube-apiserver"),
		kubernetes("kube-controller-manager"),
		kubernetes("kubectl"),
		kubernetes("kube-scheduler"),
		kubernetes("kube-proxy"),
		kubernetes("kubelet"),
		kubernetes("kubeadm"),
	}
}
