package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/retry"
	inmemoryclient "sigs.k8s.io/cluster-api/test/infrastructure/inmemory/pkg/runtime/client"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// controlPlaneRole is the label and the taint of a control plane node.
const controlPlaneRole = rolePrefix + "control-plane"

// ErrNoAPIServer says that no API server of a cluster serves, and ErrFull that
// its etcd refuses writes.
var (
	ErrNoAPIServer = errors.New("no API server of the cluster serves")
	ErrFull        = errors.New(errNoSpace)
)

// Node is what a kubelet registers.
type Node struct {
	// CA is the certificate of the cluster's CA.
	CA []byte
	// Name is the host name.
	Name string
	// ProviderID is what the kubelet was given.
	ProviderID string
	// KubeletVersion and TalosVersion have their "v".
	KubeletVersion, TalosVersion string
	// ControlPlane adds what Talos adds to a control plane node.
	ControlPlane bool
	// Addresses are IP addresses.
	Addresses []string
	// Labels and Taints are those that the kubelet registers with.
	Labels map[string]string
	Taints []corev1.Taint
}

// Join registers a node, or makes it ready again. As with a real kubelet the
// labels, taints and provider ID of a node that is there already stay, and its
// status is told anew. It returns ErrNoAPIServer while none serves, and ErrFull
// while writes are refused.
func (c *Clusters) Join(ctx context.Context, node Node) error {
	storage, err := c.client(node.CA)
	if err != nil {
		return err
	}
	if node.Name == "" {
		return errors.New("registering a node: it has no name")
	}
	made := object(node)
	setReady(made, corev1.ConditionTrue, "KubeletReady")
	err = storage.Create(ctx, made)
	if apierrors.IsAlreadyExists(err) {
		err = changeNode(ctx, storage, node.Name, func(found *corev1.Node) {
			before := found.Status.Conditions
			made.Status.DeepCopyInto(&found.Status)
			found.Status.Conditions = before
			setReady(found, corev1.ConditionTrue, "KubeletReady")
		})
	}
	if err != nil {
		return fmt.Errorf("registering node %s: %w", node.Name, err)
	}
	if !node.ControlPlane {
		return nil
	}
	return mirrorStaticPods(ctx, storage, node)
}

// Leave is what the node lifecycle controller does once a kubelet is silent. A node
// that is not there is none to be told of. Of a cluster whose etcd is gone it is told
// now what would be found once that is restored. It fails as Join does.
func (c *Clusters) Leave(ctx context.Context, ca []byte, name string) error {
	c.mu.Lock()
	present, lost := c.clusters[keyOf(ca)], c.lost[keyOf(ca)]
	c.mu.Unlock()
	if present == nil && lost == nil {
		return nil
	}
	storage, err := c.client(ca)
	if present == nil {
		storage, err = c.storage(lost), nil
	}
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(changeNode(ctx, storage, name, func(found *corev1.Node) {
		setReady(found, corev1.ConditionUnknown, "NodeStatusUnknown")
	}))
}

func changeNode(ctx context.Context, storage inmemoryclient.Client, name string, change func(*corev1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		found := &corev1.Node{}
		if err := storage.Get(ctx, client.ObjectKey{Name: name}, found); err != nil {
			return err
		}
		change(found)
		return storage.Update(ctx, found)
	})
}

func (c *Clusters) client(ca []byte) (inmemoryclient.Client, error) {
	served := c.get(ca, false)
	if served == nil {
		return nil, ErrNoAPIServer
	}
	c.mu.Lock()
	serving := served.servers > 0
	c.mu.Unlock()
	switch {
	case !serving:
		return nil, ErrNoAPIServer
	case served.full.Load():
		return nil, ErrFull
	}
	return c.storage(served), nil
}

func (c *Clusters) storage(of *cluster) inmemoryclient.Client {
	return c.manager.GetResourceGroup(of.group).GetClient()
}

func object(node Node) *corev1.Node {
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: uuid.NewUUID(), Labels: map[string]string{
			corev1.LabelHostname: node.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec: corev1.NodeSpec{ProviderID: node.ProviderID, Taints: slices.Clone(node.Taints)},
		Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: node.KubeletVersion, OSImage: "Talos (" + node.TalosVersion + ")", OperatingSystem: "linux", Architecture: "amd64",
				KernelVersion: "6.18.0-talos", ContainerRuntimeVersion: "containerd://2.2.0",
			},
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
			},
		},
	}
	made.Status.Allocatable = made.Status.Capacity
	maps.Copy(made.Labels, node.Labels)
	if node.ControlPlane {
		made.Labels[controlPlaneRole] = ""
		taint := corev1.Taint{Key: controlPlaneRole, Effect: corev1.TaintEffectNoSchedule}
		if !slices.Contains(made.Spec.Taints, taint) { // Talos' own configuration has it.
			made.Spec.Taints = append(made.Spec.Taints, taint)
		}
	}
	for _, address := range node.Addresses {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})
	return made
}

// setReady sets the conditions that a kubelet tells, and keeps since when they
// are as they are.
func setReady(node *corev1.Node, ready corev1.ConditionStatus, reason string) {
	now := metav1.Now()
	set := func(of corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
		condition := corev1.NodeCondition{Type: of, Status: status, Reason: reason, LastTransitionTime: now, LastHeartbeatTime: now}
		for i, present := range node.Status.Conditions {
			if present.Type != of {
				continue
			}
			if present.Status == status {
				condition.LastTransitionTime = present.LastTransitionTime
			}
			node.Status.Conditions[i] = condition
			return
		}
		node.Status.Conditions = append(node.Status.Conditions, condition)
	}
	pressure, of := corev1.ConditionFalse, "KubeletHasSufficientResources"
	if ready != corev1.ConditionTrue {
		pressure, of = corev1.ConditionUnknown, reason
	}
	set(corev1.NodeMemoryPressure, pressure, of)
	set(corev1.NodeDiskPressure, pressure, of)
	set(corev1.NodePIDPressure, pressure, of)
	set(corev1.NodeReady, ready, reason)
}
