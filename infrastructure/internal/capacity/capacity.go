// Package capacity tells what a Node made from a TalosMachineTemplate will be like,
// which an autoscaler must know while there is none (rule IM8). It is pure.
package capacity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// known are the resources that a Node of ours is known to have.
var known = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}

// architectures are those that the contract knows.
var architectures = []infrav1.Architecture{
	infrav1.ArchitectureAmd64, infrav1.ArchitectureArm64, infrav1.ArchitectureS390x, infrav1.ArchitecturePpc64le,
}

// OfContainer is the capacity of a machine in a Pod: the limits of its resources,
// else the requests; its storage is its volume where it has one.
func OfContainer(spec *infrav1.TalosMachineContainerSpec) corev1.ResourceList {
	found := corev1.ResourceList{}
	for _, name := range known {
		for _, from := range []corev1.ResourceList{spec.Resources.Limits, spec.Resources.Requests} {
			if quantity, given := from[name]; given && quantity.Sign() > 0 {
				found[name] = quantity
				break
			}
		}
	}
	if size := spec.Storage.VolumeClaim.Size; size.Sign() > 0 {
		found[corev1.ResourceEphemeralStorage] = size
	}

	return orNone(found)
}

// PlatformOfContainer is the platform of a machine in a Pod: that of the nodes of the
// management cluster onto which the Pod may be scheduled.
func PlatformOfContainer(spec *infrav1.TalosMachineContainerSpec, nodes []corev1.Node) infrav1.TemplateNodeInfo {
	var told []string
	for i := range nodes {
		if maySchedule(spec, &nodes[i]) {
			told = append(told, nodes[i].Status.NodeInfo.Architecture)
		}
	}

	return platform(told)
}

// OfMetal is the capacity of a machine on a host: the least CPU and the least memory
// that any of the selected hosts has, free or not, so that it does not change with
// each claim.
func OfMetal(spec *infrav1.TalosMachineMetalSpec, hosts []infrav1.TalosHost) corev1.ResourceList {
	found := corev1.ResourceList{}
	for _, host := range selected(spec, hosts) {
		if cpus := host.Status.Hardware.CPUs; cpus != nil {
			atMost(found, corev1.ResourceCPU, *resource.NewQuantity(int64(*cpus), resource.DecimalSI))
		}
		if memory := host.Status.Hardware.MemoryBytes; memory != nil {
			atMost(found, corev1.ResourceMemory, *resource.NewQuantity(*memory, resource.BinarySI))
		}
	}

	return orNone(found)
}

// PlatformOfMetal is the platform of a machine on a host: that of the selected hosts.
func PlatformOfMetal(spec *infrav1.TalosMachineMetalSpec, hosts []infrav1.TalosHost) infrav1.TemplateNodeInfo {
	var told []string
	for _, host := range selected(spec, hosts) {
		if architecture := host.Status.Hardware.Architecture; architecture != "" {
			told = append(told, architecture)
		}
	}

	return platform(told)
}

// selected are the hosts that a machine may claim at some time. A selector that is
// not valid selects none.
func selected(spec *infrav1.TalosMachineMetalSpec, hosts []infrav1.TalosHost) []*infrav1.TalosHost {
	selector, err := metav1.LabelSelectorAsSelector(&spec.HostSelector)
	if err != nil {
		return nil
	}
	var found []*infrav1.TalosHost
	for i := range hosts {
		if hosts[i].DeletionTimestamp.IsZero() && selector.Matches(labels.Set(hosts[i].Labels)) {
			found = append(found, &hosts[i])
		}
	}

	return found
}

// atMost lowers a resource to a quantity. What is none is not known.
func atMost(found corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
	if least, given := found[name]; quantity.Sign() > 0 && (!given || quantity.Cmp(least) < 0) {
		found[name] = quantity
	}
}

// platform is what hosts or nodes have in common that told their architecture.
func platform(told []string) infrav1.TemplateNodeInfo {
	if len(told) == 0 {
		return infrav1.TemplateNodeInfo{}
	}
	common := infrav1.TemplateNodeInfo{OperatingSystem: infrav1.OperatingSystemLinux}
	slices.Sort(told)
	if all := slices.Compact(told); len(all) == 1 && slices.Contains(architectures, infrav1.Architecture(all[0])) {
		common.Architecture = infrav1.Architecture(all[0])
	}

	return common
}

func orNone(found corev1.ResourceList) corev1.ResourceList {
	if len(found) == 0 {
		return nil
	}

	return found
}
