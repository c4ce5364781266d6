package capacity

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// resources are CPU and memory, each unless it is empty.
func resources(cpu, memory string) corev1.ResourceList {
	made := corev1.ResourceList{}
	for name, quantity := range map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory} {
		if quantity != "" {
			made[name] = resource.MustParse(quantity)
		}
	}

	return made
}

func expectSame(t *testing.T, found, want corev1.ResourceList) {
	t.Helper()
	NewWithT(t).Expect(apiequality.Semantic.DeepEqual(found, want)).To(BeTrue(), "found %v, want %v", found, want)
}

func TestCapacityOfAContainer(t *testing.T) {
	withStorage := resources("1", "1Gi")
	withStorage[corev1.ResourceEphemeralStorage] = resource.MustParse("5Gi")
	volume := infrav1.ContainerStorage{Type: infrav1.ContainerStorageVolumeClaim, VolumeClaim: infrav1.ContainerVolumeClaim{Size: resource.MustParse("20Gi")}}
	withVolume := resources("1", "1Gi")
	withVolume[corev1.ResourceEphemeralStorage] = resource.MustParse("20Gi")
	for name, tt := range map[string]struct {
		spec infrav1.TalosMachineContainerSpec
		want corev1.ResourceList
	}{
		"the limits go first":                  {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Limits: resources("2", "3Gi"), Requests: resources("1", "1Gi")}}, resources("2", "3Gi")},
		"each by itself":                       {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Limits: resources("", "3Gi"), Requests: resources("500m", "1Gi")}}, resources("500m", "3Gi")},
		"without limits the requests":          {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Requests: resources("1", "")}}, resources("1", "")},
		"without either nothing is known":      {infrav1.TalosMachineContainerSpec{}, nil},
		"a request of nothing says nothing":    {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Requests: resources("0", "1Gi")}}, resources("", "1Gi")},
		"the limit of storage":                 {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Limits: withStorage}}, withStorage},
		"the size of the volume goes before":   {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Limits: withStorage}, Storage: volume}, withVolume},
		"what a Node of ours lacks is no part": {infrav1.TalosMachineContainerSpec{Resources: infrav1.ContainerResources{Limits: corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}}}, nil},
	} {
		t.Run(name, func(t *testing.T) { expectSame(t, OfContainer(&tt.spec), tt.want) })
	}
}

// node is a node of the management cluster.
func node(name, architecture string, changes ...func(*corev1.Node)) corev1.Node {
	made := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": name, "size": "7"}},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: architecture}},
	}
	for _, change := range changes {
		change(&made)
	}

	return made
}

func tainted(key string, effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect}) }
}

func TestPlatformOfAContainerIsThatOfTheNodesItMayLandOn(t *testing.T) {
	requires := func(terms ...corev1.NodeSelectorTerm) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
		}}
	}
	term := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	named := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}
	amd, arm, mixed := platformOf("amd64"), platformOf("arm64"), platformOf("")
	both := []corev1.Node{node("a", "amd64"), node("b", "arm64")}
	for name, tt := range map[string]struct {
		spec  infrav1.TalosMachineContainerSpec
		nodes []corev1.Node
		want  infrav1.TemplateNodeInfo
	}{
		"all agree":                        {infrav1.TalosMachineContainerSpec{}, []corev1.Node{node("a", "amd64"), node("b", "amd64")}, amd},
		"they differ":                      {infrav1.TalosMachineContainerSpec{}, both, mixed},
		"there is none":                    {infrav1.TalosMachineContainerSpec{}, nil, infrav1.TemplateNodeInfo{}},
		"the contract does not know it":    {infrav1.TalosMachineContainerSpec{}, []corev1.Node{node("a", "riscv64")}, mixed},
		"one has another operating system": {infrav1.TalosMachineContainerSpec{}, []corev1.Node{node("a", "amd64"), node("b", "arm64", func(n *corev1.Node) { n.Status.NodeInfo.OperatingSystem = "windows" })}, amd},
		"one is selected":                  {infrav1.TalosMachineContainerSpec{NodeSelector: map[string]string{"pool": "b"}}, both, arm},
		"none is selected":                 {infrav1.TalosMachineContainerSpec{NodeSelector: map[string]string{"pool": "c"}}, both, infrav1.TemplateNodeInfo{}},
		"one is required":                  {infrav1.TalosMachineContainerSpec{Affinity: requires(term("pool", corev1.NodeSelectorOpNotIn, "a"))}, both, arm},
		"one is required by its name":      {infrav1.TalosMachineContainerSpec{Affinity: requires(named)}, both, arm},
		"one of two terms is enough":       {infrav1.TalosMachineContainerSpec{Affinity: requires(term("pool", corev1.NodeSelectorOpIn, "a"), term("size", corev1.NodeSelectorOpGt, "6"))}, both, mixed},
		"a term compares":                  {infrav1.TalosMachineContainerSpec{Affinity: requires(term("size", corev1.NodeSelectorOpGt, "7"))}, both, infrav1.TemplateNodeInfo{}},
		"an empty term fits none":          {infrav1.TalosMachineContainerSpec{Affinity: requires(corev1.NodeSelectorTerm{})}, both, infrav1.TemplateNodeInfo{}},
		"a taint keeps it away":            {infrav1.TalosMachineContainerSpec{}, []corev1.Node{node("a", "amd64", tainted("gpu", corev1.TaintEffectNoSchedule)), node("b", "arm64")}, arm},
		"a taint is tolerated": {
			infrav1.TalosMachineContainerSpec{Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}},
			[]corev1.Node{node("a", "amd64", tainted("gpu", corev1.TaintEffectNoSchedule)), node("b", "arm64")}, mixed,
		},
		"a taint asks only": {infrav1.TalosMachineContainerSpec{}, []corev1.Node{node("a", "amd64", tainted("gpu", corev1.TaintEffectPreferNoSchedule))}, amd},
		"a node that is not ready will be": {
			infrav1.TalosMachineContainerSpec{},
			[]corev1.Node{node("a", "amd64", tainted(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute), tainted(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule))}, amd,
		},
		"a node that goes does not count": {infrav1.TalosMachineContainerSpec{}, []corev1.Node{node("a", "amd64"), node("b", "arm64", func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(metav1.Unix(1, 0)) })}, amd},
	} {
		t.Run(name, func(t *testing.T) {
			NewWithT(t).Expect(PlatformOfContainer(&tt.spec, tt.nodes)).To(Equal(tt.want))
		})
	}
}

func platformOf(architecture infrav1.Architecture) infrav1.TemplateNodeInfo {
	return infrav1.TemplateNodeInfo{Architecture: architecture, OperatingSystem: "linux"}
}

// host is a host that has told what it is.
func host(size, architecture string, cpus int32, memory int64) infrav1.TalosHost {
	return infrav1.TalosHost{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"size": size}},
		Status:     infrav1.TalosHostStatus{Hardware: infrav1.HostHardware{CPUs: &cpus, MemoryBytes: &memory, Architecture: architecture}},
	}
}

func TestCapacityAndPlatformOfMetal(t *testing.T) {
	const gi = 1 << 30
	large := infrav1.TalosMachineMetalSpec{HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{"size": "large"}}}
	going := host("large", "arm64", 1, gi)
	going.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	taken := host("large", "amd64", 4, 8*gi)
	taken.Spec.ConsumerRef.Name = "a"
	for name, tt := range map[string]struct {
		spec     infrav1.TalosMachineMetalSpec
		hosts    []infrav1.TalosHost
		capacity corev1.ResourceList
		platform infrav1.TemplateNodeInfo
	}{
		"the least of each":                 {infrav1.TalosMachineMetalSpec{}, []infrav1.TalosHost{host("", "amd64", 8, 16*gi), host("", "amd64", 4, 32*gi)}, resources("4", "16Gi"), platformOf("amd64")},
		"the selected hosts only":           {large, []infrav1.TalosHost{host("large", "amd64", 8, 16*gi), host("small", "arm64", 2, gi)}, resources("8", "16Gi"), platformOf("amd64")},
		"claimed ones too":                  {large, []infrav1.TalosHost{host("large", "amd64", 8, 16*gi), taken}, resources("4", "8Gi"), platformOf("amd64")},
		"but not those that go":             {large, []infrav1.TalosHost{host("large", "amd64", 8, 16*gi), going}, resources("8", "16Gi"), platformOf("amd64")},
		"architectures that differ":         {large, []infrav1.TalosHost{host("large", "amd64", 8, 16*gi), host("large", "arm64", 8, 16*gi)}, resources("8", "16Gi"), platformOf("")},
		"no host is selected":               {large, []infrav1.TalosHost{host("small", "arm64", 2, gi)}, nil, infrav1.TemplateNodeInfo{}},
		"a host that has told nothing yet":  {infrav1.TalosMachineMetalSpec{}, []infrav1.TalosHost{{}, host("", "amd64", 8, 16*gi)}, resources("8", "16Gi"), platformOf("amd64")},
		"a host that does not know its CPU": {infrav1.TalosMachineMetalSpec{}, []infrav1.TalosHost{host("", "amd64", 0, 16*gi)}, resources("", "16Gi"), platformOf("amd64")},
		"a selector that is none": {
			infrav1.TalosMachineMetalSpec{HostSelector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "size", Operator: "Like"}}}},
			[]infrav1.TalosHost{host("large", "amd64", 8, 16*gi)}, nil, infrav1.TemplateNodeInfo{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expectSame(t, OfMetal(&tt.spec, tt.hosts), tt.capacity)
			NewWithT(t).Expect(PlatformOfMetal(&tt.spec, tt.hosts)).To(Equal(tt.platform))
		})
	}
}
