package kube

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	inmemoryclient "sigs.k8s.io/cluster-api/test/infrastructure/inmemory/pkg/runtime/client"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrNoAPIServer says that no API server of a cluster serves.
var ErrNoAPIServer = errors.New("no API server of the cluster serves")

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

// Join registers a node, or makes it ready again.
func (c *Clusters) Join(ctx context.Context, node Node) error {
	writer, err := c.client(node.CA)
	if err != nil {
		return err
	}
	found := &corev1.Node{}
	err = writer.Get(ctx, client.ObjectKey{Name: node.Name}, found)
	switch {
	case apierrors.IsNotFound(err):
		made := object(node)
		setReady(made, corev1.ConditionTrue, "KubeletReady")
		if err := writer.Create(ctx, made); err != nil {
			return fmt.Errorf("registering node %s: %w", node.Name, err)
		}
	case err != nil:
		return fmt.Errorf("reading node %s: %w", node.Name, err)
	default:
		setReady(found, corev1.ConditionTrue, "KubeletReady")
		if err := writer.Update(ctx, found); err != nil {
			return fmt.Errorf("renewing node %s: %w", node.Name, err)
		}
	}
	return nil
}

// Leave is what the node lifecycle controller does once a kubelet is silent.
func (c *Clusters) Leave(ctx context.Context, ca []byte, name string) {
	writer, err := c.client(ca)
	if err != nil {
		return
	}
	found := &corev1.Node{}
	if err := writer.Get(ctx, client.ObjectKey{Name: name}, found); err != nil {
		return
	}
	setReady(found, corev1.ConditionUnknown, "NodeStatusUnknown")
	_ = writer.Update(ctx, found) // It may be deleted meanwhile.
}

func (c *Clusters) client(ca []byte) (inmemoryclient.Client, error) {
	served := c.get(ca, false)
	if served == nil {
		return nil, ErrNoAPIServer
	}
	c.mu.Lock()
	serving := served.servers > 0
	c.mu.Unlock()
	if !serving {
		return nil, ErrNoAPIServer
	}
	return c.manager.GetResourceGroup(served.key).GetClient(), nil
}

func object(node Node) *corev1.Node {
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: map[string]string{
			corev1.LabelHostname: node.Name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
		Spec: corev1.NodeSpec{ProviderID: node.ProviderID, Taints: node.Taints},
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
	for key, value := range node.Labels {
		made.Labels[key] = value
	}
	if node.ControlPlane {
		made.Labels["node-role.kubernetes.io/control-plane"] = ""
		made.Spec.Taints = append(made.Spec.Taints, corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule})
	}
	for _, address := range node.Addresses {
		made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	made.Status.Addresses = append(made.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node.Name})
	return made
}

func setReady(node *corev1.Node, status corev1.ConditionStatus, reason string) {
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: status, Reason: reason, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now(),
	}}
	if status == corev1.ConditionTrue {
		for _, pressure := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: pressure, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now(),
			})
		}
	}
}
