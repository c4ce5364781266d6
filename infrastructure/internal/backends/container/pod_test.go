package container

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

var update = flag.Bool("update", false, "write what is made to testdata")

// golden compares objects with a file.
func golden(t *testing.T, name string, objects ...client.Object) {
	t.Helper()
	g := NewWithT(t)
	var documents []string
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		g.Expect(err).NotTo(HaveOccurred())
		documents = append(documents, string(text))
	}
	found, path := strings.Join(documents, "---\n"), filepath.Join("testdata", name+".yaml")
	if *update {
		g.Expect(os.WriteFile(path, []byte(found), 0o600)).To(Succeed())
	}
	wanted, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(Equal(string(wanted)), "run this test with -update, and look at the difference")
}

// aWish is for a worker that nothing more is said about.
func aWish(changes ...func(*podBuilder)) podBuilder {
	b := podBuilder{cluster: "demo", machine: &infrav1.TalosMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: "fleet", Name: "demo-a", UID: "7d3f"},
		Spec:       infrav1.TalosMachineSpec{Container: &infrav1.TalosMachineContainerSpec{Talos: infrav1.TalosReleaseSpec{Version: "v1.13.9"}}},
	}}
	for _, change := range changes {
		change(&b)
	}

	return b
}

func controlPlane(b *podBuilder) { b.controlPlane = true }

func withVolume(b *podBuilder) {
	b.spec().Storage = infrav1.ContainerStorage{
		Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{StorageClassName: "fast", Size: resource.MustParse("20Gi")},
	}
}

// withEverything says all that can be said.
func withEverything(b *podBuilder) {
	withVolume(b)
	b.failureDomain = "zone-b"
	b.machine.Labels = map[string]string{clusterv1.WatchLabel: "ours"}
	b.machine.Spec.Pod.EtcdAddress = "172.20.7.11"
	spec := b.spec()
	spec.Talos.Image = "registry.example.com/talos:mine"
	spec.Resources = infrav1.ContainerResources{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("2Gi")},
	}
	spec.NodeSelector = map[string]string{"pool": "talos"}
	spec.Tolerations = []corev1.Toleration{{Key: "talos", Operator: corev1.TolerationOpExists}}
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"ssd"}}}},
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpIn, Values: []string{"nvme"}}}},
		},
	}}}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "rack", WhenUnsatisfiable: corev1.DoNotSchedule}}
	spec.PodMetadata = clusterv1.ObjectMeta{
		Labels:      map[string]string{"team": "a", clusterv1.ClusterNameLabel: "another", infrav1.MachineLabel: "another"},
		Annotations: map[string]string{"note": "x"},
	}
	spec.ImagePullSecrets = []infrav1.ContainerSecretReference{{Name: "pull"}}
	spec.RuntimeClassName = "runc"
}

func TestObjectsOfAMachine(t *testing.T) {
	t.Run("a worker", func(t *testing.T) {
		b := aWish()
		golden(t, "worker", b.pod(), b.userData([]byte("dGFsb3M=")))
	})
	t.Run("a control plane machine", func(t *testing.T) {
		b := aWish(controlPlane)
		golden(t, "control-plane", b.pod(), b.etcdService())
	})
	t.Run("everything that can be said", func(t *testing.T) {
		b := aWish(controlPlane, withEverything)
		before := b.machine.DeepCopy()
		golden(t, "everything", b.pod(), b.etcdService(), b.claim(), b.userData([]byte("dGFsb3M=")))
		NewWithT(t).Expect(b.machine).To(Equal(before), "what is made is no part of what is wished")
	})
	t.Run("a configuration that only its volume has", func(t *testing.T) {
		b := aWish(func(b *podBuilder) { b.fromVolume = true })
		golden(t, "from-volume", b.pod())
		NewWithT(t).Expect(hasUserData(b.pod())).To(BeFalse())
		NewWithT(t).Expect(hasUserData(aWish().pod())).To(BeTrue())
	})
}

// TestThePodGetsNothingOfItsHostButItsPrivilege is about every Pod that can be made.
func TestThePodGetsNothingOfItsHostButItsPrivilege(t *testing.T) {
	for name, b := range map[string]podBuilder{"a worker": aWish(), "everything": aWish(controlPlane, withEverything)} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			spec := b.pod().Spec
			g.Expect(spec.AutomountServiceAccountToken).To(HaveValue(BeFalse()))
			g.Expect(spec.EnableServiceLinks).To(HaveValue(BeFalse()))
			g.Expect([]bool{spec.HostNetwork, spec.HostPID, spec.HostIPC, ptr.Deref(spec.ShareProcessNamespace, false)}).NotTo(ContainElement(true))
			for _, volume := range spec.Volumes {
				g.Expect(volume.HostPath).To(BeNil())
			}
			g.Expect(spec.Containers).To(HaveLen(1))
			g.Expect(spec.Containers[0].LivenessProbe).To(BeNil())
			g.Expect(spec.Containers[0].SecurityContext.ReadOnlyRootFilesystem).To(HaveValue(BeTrue()))
		})
	}
}

func TestTheFailureDomainOfTheMachine(t *testing.T) {
	g := NewWithT(t)
	zone := corev1.NodeSelectorRequirement{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1"}}
	inZone := aWish(func(b *podBuilder) { b.failureDomain = "z1" })
	g.Expect(inZone.affinity().NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms).To(Equal(
		[]corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{zone}}}))
	g.Expect(aWish().affinity()).To(BeNil())
	both := aWish(withEverything, func(b *podBuilder) { b.failureDomain = "z1" })
	for _, term := range both.affinity().NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		g.Expect(term.MatchExpressions).To(ContainElement(zone), "one term is enough for a node")
		g.Expect(term.MatchExpressions).To(HaveLen(2))
	}
}

// TestAWorkerIsNeverBehindTheServiceOfTheControlPlane, whatever labels a user wants.
func TestAWorkerIsNeverBehindTheServiceOfTheControlPlane(t *testing.T) {
	b := aWish(func(b *podBuilder) {
		b.spec().PodMetadata.Labels = map[string]string{clusterv1.MachineControlPlaneLabel: "", "mine": "x"}
	})
	NewWithT(t).Expect(b.pod().Labels).To(And(Not(HaveKey(clusterv1.MachineControlPlaneLabel)), HaveKeyWithValue("mine", "x")))
}

// TestNamesThatAreTooLong: the API server takes what is made of them.
func TestNamesThatAreTooLong(t *testing.T) {
	for name, machine := range map[string]string{
		"as long as a host name may be": strings.Repeat("m", 63),
		"longer than a label":           strings.Repeat("m", 200),
		"with a dot":                    "demo.a",
		"with a digit first":            "1demo",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			b := aWish(controlPlane, func(b *podBuilder) { b.machine.Name = machine })
			service, pod := b.etcdService(), b.pod()
			g.Expect(validation.IsDNS1035Label(service.Name)).To(BeEmpty())
			g.Expect(service.Name).To(HaveSuffix(infrav1.EtcdServiceSuffix))
			for _, label := range pod.Labels {
				g.Expect(validation.IsValidLabelValue(label)).To(BeEmpty())
			}
			for key, value := range service.Spec.Selector {
				g.Expect(pod.Labels).To(HaveKeyWithValue(key, value))
			}
			if pod.Spec.Hostname != "" {
				g.Expect(validation.IsDNS1123Label(pod.Spec.Hostname)).To(BeEmpty())
			}
		})
	}
}

func TestReserved(t *testing.T) {
	node := &corev1.Node{Status: corev1.NodeStatus{Capacity: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16380120Ki"),
	}}}
	list := func(cpu, memory string) corev1.ResourceList {
		made := corev1.ResourceList{}
		if cpu != "" {
			made[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		if memory != "" {
			made[corev1.ResourceMemory] = resource.MustParse(memory)
		}
		return made
	}
	for name, tt := range map[string]struct {
		node        *corev1.Node
		limits      corev1.ResourceList
		cpu, memory string
	}{
		"keeps back all but the limits":                   {node: node, limits: list("2", "4Gi"), cpu: "6", memory: "12185816Ki"},
		"keeps back parts of a CPU":                       {node: node, limits: list("1500m", ""), cpu: "6500m"},
		"keeps back nothing without limits":               {node: node, limits: list("", "")},
		"keeps back nothing of what the limit does allow": {node: node, limits: list("8", "64Gi")},
		"keeps back nothing of a node that tells nothing": {node: &corev1.Node{}, limits: list("2", "4Gi")},
		"keeps back nothing without a node":               {limits: list("2", "4Gi")},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			kept := reserved(tt.node, tt.limits)
			cpu, memory := kept[corev1.ResourceCPU], kept[corev1.ResourceMemory]
			g.Expect([]string{cpu.String(), memory.String()}).To(Equal([]string{zeroOr(tt.cpu), zeroOr(tt.memory)}))
			if tt.cpu == "" && tt.memory == "" {
				g.Expect(kept).To(BeNil())
			}
		})
	}
}

func zeroOr(quantity string) string {
	if quantity == "" {
		return "0"
	}

	return quantity
}

func TestWhatTheKubeletSays(t *testing.T) {
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 137}}
	for name, tt := range map[string]struct {
		state, last     corev1.ContainerState
		reason, message string
	}{
		"an image that cannot be pulled":           {state: waiting("ImagePullBackOff", "no such host"), reason: infrav1.ImageUnavailableReason, message: "The kubelet says: ImagePullBackOff: no such host"},
		"an image whose name is none":              {state: waiting("InvalidImageName", "bad"), reason: infrav1.ImageUnavailableReason, message: "InvalidImageName"},
		"a container that has just ended":          {state: ended, reason: infrav1.ContainerRestartingReason, message: "Error, exit code 137"},
		"a container that ends again and again":    {state: waiting("CrashLoopBackOff", "back-off 10s"), last: ended, reason: infrav1.ContainerRestartingReason, message: "(CrashLoopBackOff): Error, exit code 137"},
		"a container that cannot be made":          {state: waiting("CreateContainerConfigError", "secret not found"), reason: infrav1.ContainerNotStartedReason, message: "secret not found"},
		"a container that is being made":           {state: waiting("ContainerCreating", ""), reason: infrav1.ContainerNotStartedReason, message: "Waiting for the kubelet"},
		"a container that runs":                    {state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
		"a container that runs after it had ended": {state: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, last: ended},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			pod := aWish().pod()
			pod.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "injected", State: waiting("ImagePullBackOff", "a sidecar's")},
				{Name: containerName, Image: "talos", State: tt.state, LastTerminationState: tt.last},
			}
			found := starting(pod)
			g.Expect(found.Reason).To(Equal(tt.reason))
			g.Expect(found.Message).To(ContainSubstring(tt.message))
		})
	}
	NewWithT(t).Expect(starting(aWish().pod()).Reason).To(Equal(infrav1.ContainerNotStartedReason), "nothing is known yet")
}

// TestTheProbeIsForAPIServers: a worker has none, a control plane machine one that
// asks for a connection only.
func TestTheProbeIsForAPIServers(t *testing.T) {
	g := NewWithT(t)
	g.Expect(aWish().pod().Spec.Containers[0].ReadinessProbe).To(BeNil())
	g.Expect(aWish(controlPlane).pod().Spec.Containers[0].ReadinessProbe.TCPSocket.Port).To(Equal(intstr.FromInt32(6443)))
}
