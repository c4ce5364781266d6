package container

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/labels/format"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

const (
	// containerName is the name of the only container of a Pod.
	containerName = "talos"
	// officialImage is the repository of Talos' own images.
	officialImage = "ghcr.io/siderolabs/talos"
	// userDataVariable is where Talos looks for its configuration.
	userDataVariable = "USERDATA"
	// gracePeriodSeconds is how long Talos may take to end what runs on the node;
	// releasedGracePeriodSeconds is how long it may where nothing is wanted of the
	// machine any more. Connections to an API server without etcd would stay open
	// until then.
	gracePeriodSeconds         = int64(30)
	releasedGracePeriodSeconds = int64(1)

	portTalos, portTrustd, portKubernetes = int32(talosclient.Port), int32(50001), int32(6443)
	portEtcdClient, portEtcdPeer          = int32(2379), int32(2380)
)

// dataPaths are the directories of Talos that must outlive the container, each
// with its folder on the volume. All begin empty; /opt must not be among them,
// because the image has the CNI plugins there.
var dataPaths = []struct{ path, folder string }{
	{"/var", "var"},
	{"/system/state", "state"},
	{"/etc/cni", "etc-cni"},
	{"/etc/kubernetes", "etc-kubernetes"},
	{"/usr/libexec/kubernetes", "libexec-kubernetes"},
}

// podBuilder is what the objects of a machine are made from.
type podBuilder struct {
	machine *infrav1.TalosMachine
	// cluster is the name of the Cluster.
	cluster string
	// controlPlane tells a control plane machine.
	controlPlane bool
	// failureDomain is the zone that the Machine is to be in; empty for any.
	failureDomain string
	// fromVolume reports whether the machine starts with the configuration on its
	// volume alone, because that of the bootstrap provider is gone.
	fromVolume bool
}

func (b podBuilder) spec() *infrav1.TalosMachineContainerSpec {
	return b.machine.Spec.Container
}

// labels are on every object of a machine.
func (b podBuilder) labels() map[string]string {
	meta := metav1.ObjectMeta{Labels: map[string]string{clusterv1.ClusterNameLabel: b.cluster, infrav1.MachineLabel: format.MustFormatValue(b.machine.Name)}}
	if b.controlPlane {
		meta.Labels[clusterv1.MachineControlPlaneLabel] = ""
	}
	objects.WatchAs(b.machine, &meta)

	return meta.Labels
}

// meta is the metadata of an object of a machine.
func (b podBuilder) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: b.machine.Namespace, Name: name, Labels: b.labels(),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(b.machine, infrav1.GroupVersion.WithKind(infrav1.TalosMachineKind))},
	}
}

// pod is the Pod of a machine: the Talos image, as Talos wants to be run in a
// container. It needs to be privileged, because cgroups are read-only else; it
// gets nothing else of its host.
func (b podBuilder) pod() *corev1.Pod {
	spec := b.spec()
	pod := &corev1.Pod{ObjectMeta: b.meta(b.machine.Name)}
	pod.Labels = b.podLabels(spec.PodMetadata.Labels)
	pod.Annotations = union(spec.PodMetadata.Annotations, nil)
	pod.Finalizers = []string{infrav1.TalosPodFinalizer}
	pod.Spec = corev1.PodSpec{
		Hostname:                      b.machine.Name,
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		RestartPolicy:                 corev1.RestartPolicyAlways,
		TerminationGracePeriodSeconds: ptr.To(gracePeriodSeconds),
		// The node inside serves the names of its own cluster, not of this one.
		DNSPolicy:                 corev1.DNSDefault,
		NodeSelector:              spec.NodeSelector,
		Tolerations:               spec.Tolerations,
		Affinity:                  b.affinity(),
		TopologySpreadConstraints: b.spread(),
		Containers:                []corev1.Container{b.container()},
		Volumes:                   b.volumes(),
	}
	if len(validation.IsDNS1123Label(b.machine.Name)) > 0 {
		// The name in the configuration counts.
		pod.Spec.Hostname = ""
	}
	if spec.RuntimeClassName != "" {
		pod.Spec.RuntimeClassName = ptr.To(spec.RuntimeClassName)
	}
	for _, secret := range spec.ImagePullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	}

	return pod
}

// podLabels are the labels of a Pod that has some already. By them its Services find
// it, and the cache.
func (b podBuilder) podLabels(given map[string]string) map[string]string {
	labels := union(given, b.labels())
	if !b.controlPlane {
		// The Service of the control plane would lead to it.
		delete(labels, clusterv1.MachineControlPlaneLabel)
	}

	return labels
}

func (b podBuilder) container() corev1.Container {
	spec := b.spec()
	container := corev1.Container{
		Name:  containerName,
		Image: cmp.Or(spec.Talos.Image, officialImage+":"+spec.Talos.Version),
		// Without a registry only what is there can be run; tags of releases do not move.
		ImagePullPolicy: corev1.PullIfNotPresent,
		Env:             []corev1.EnvVar{{Name: "PLATFORM", Value: "container"}},
		Ports:           []corev1.ContainerPort{{Name: "talos", ContainerPort: portTalos}},
		Resources:       corev1.ResourceRequirements{Requests: spec.Resources.Requests, Limits: spec.Resources.Limits},
		SecurityContext: &corev1.SecurityContext{
			Privileged: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "run", MountPath: "/run"}, {Name: "system", MountPath: "/system"}, {Name: "tmp", MountPath: "/tmp"}},
	}
	for _, data := range dataPaths {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: "data", MountPath: data.path, SubPath: data.folder})
	}
	if !b.fromVolume {
		container.Env = append(container.Env, corev1.EnvVar{Name: userDataVariable, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: b.machine.Name + infrav1.UserDataSecretSuffix}, Key: infrav1.UserDataKey,
		}}})
	}
	if b.controlPlane {
		container.Ports = append(container.Ports,
			corev1.ContainerPort{Name: "trustd", ContainerPort: portTrustd}, corev1.ContainerPort{Name: "kubernetes", ContainerPort: portKubernetes})
		// It tells the Service whether an API server answers; a GET would be
		// refused. There is no liveness probe: one at the Talos API would end workers
		// again and again while no control plane machine answers.
		container.ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portKubernetes)}},
			PeriodSeconds: 2, TimeoutSeconds: 3, FailureThreshold: 3,
		}
	}

	return container
}

func (b podBuilder) volumes() []corev1.Volume {
	volumes := []corev1.Volume{}
	for _, name := range []string{"run", "system", "tmp"} {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	}
	data := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	if !isEphemeral(b.machine) {
		data.VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: b.machine.Name + infrav1.DataClaimSuffix}}
	}

	return append(volumes, data)
}

// affinity is the user's, with the failure domain of the Machine in each of its
// terms: a node fits that fits one term.
func (b podBuilder) affinity() *corev1.Affinity {
	affinity := b.spec().Affinity.DeepCopy()
	if b.failureDomain == "" {
		return affinity
	}
	if affinity == nil {
		affinity = &corev1.Affinity{}
	}
	if affinity.NodeAffinity == nil {
		affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		required = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}
	}
	for i := range required.NodeSelectorTerms {
		required.NodeSelectorTerms[i].MatchExpressions = append(required.NodeSelectorTerms[i].MatchExpressions,
			corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{b.failureDomain}})
	}
	affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = required

	return affinity
}

// spread is the user's; else a control plane is spread over nodes where it can be.
func (b podBuilder) spread() []corev1.TopologySpreadConstraint {
	if given := b.spec().TopologySpreadConstraints; len(given) > 0 || !b.controlPlane {
		return given
	}

	return []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway,
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{
			clusterv1.ClusterNameLabel: b.cluster, clusterv1.MachineControlPlaneLabel: "",
		}},
	}}
}

func (b podBuilder) etcdServiceName() string {
	return endpoint.NameOf(b.machine.Name, infrav1.EtcdServiceSuffix)
}

// etcdService gives etcd of a control plane machine an address for life, ready or
// not: the Pod gets another one with each sandbox, and once all members have,
// etcd never finds together again. Made again it asks for the address that the other
// members know.
func (b podBuilder) etcdService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: b.meta(b.etcdServiceName()),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			ClusterIP:                b.machine.Spec.Pod.EtcdAddress,
			Selector:                 map[string]string{infrav1.MachineLabel: format.MustFormatValue(b.machine.Name), clusterv1.ClusterNameLabel: b.cluster},
			PublishNotReadyAddresses: true,
			Ports: []corev1.ServicePort{
				servicePort("client", portEtcdClient),
				servicePort("peer", portEtcdPeer),
				// With discovery the address is told to workers, which ask it for certificates.
				servicePort("trustd", portTrustd),
			},
		},
	}
}

func servicePort(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, TargetPort: intstr.FromInt32(port), Protocol: corev1.ProtocolTCP}
}

// claim is the claim for the volume of a machine.
func (b podBuilder) claim() *corev1.PersistentVolumeClaim {
	wanted := b.spec().Storage.VolumeClaim
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: b.meta(b.machine.Name + infrav1.DataClaimSuffix),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: wanted.Size}},
		},
	}
	if wanted.StorageClassName != "" {
		claim.Spec.StorageClassName = ptr.To(wanted.StorageClassName)
	}

	return claim
}

// userData is the Secret with the configuration that the Pod starts with.
func (b podBuilder) userData(text []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: b.meta(b.machine.Name + infrav1.UserDataSecretSuffix),
		Type:       clusterv1.ClusterSecretType,
		Data:       map[string][]byte{infrav1.UserDataKey: text},
	}
}

// union is the union of two maps; of a key in both the second one wins.
func union(first, second map[string]string) map[string]string {
	if len(first) == 0 && len(second) == 0 {
		return nil
	}
	both := maps.Clone(first)
	if both == nil {
		both = map[string]string{}
	}
	maps.Copy(both, second)

	return both
}

// isEphemeral reports whether with the Pod the machine is lost.
func isEphemeral(machine *infrav1.TalosMachine) bool {
	return machine.Spec.Container.Storage.Type != infrav1.ContainerStorageVolumeClaim
}
