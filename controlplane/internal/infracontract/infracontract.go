// Package infracontract is what the control plane provider knows of our infrastructure
// provider beyond the contract of Cluster API. Its kinds are read without their types,
// because that provider may not be there, or be of another release. Of objects of another
// vendor nothing is known: each answer is the one that keeps to Cluster API's contract.
package infracontract

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Contract answers questions about infrastructure. The zero value is another vendor's.
type Contract struct {
	// Cached reads from the cache of the management cluster, and may be late.
	Cached client.Reader
	// Live reads what is so now.
	Live client.Reader
}

// PeerAddresses are the hosts at which the etcd of a machine may be whose node does not
// say it, and whether they are known to be all of them whatever the node is in. Of a
// machine in a Pod it is the lasting address of its etcd, which is none of the Machine's;
// nil says that nobody knows it yet. Else they are the addresses of the Machine.
func (c Contract) PeerAddresses(infraMachine *unstructured.Unstructured, addresses []string) (hosts []string, sure bool) {
	if !isOurs(infraMachine, infrav1.TalosMachineKind) || !runsInPod(infraMachine, "spec") {
		return addresses, false
	}
	lasting, _, err := unstructured.NestedString(infraMachine.Object, "spec", "pod", "etcdAddress")
	if err != nil || lasting == "" {
		return nil, true
	}

	return append(slices.Clone(addresses), lasting), true
}

// ProvenGone reports whether nothing is left of the machine of a provider ID: its host is
// proven wiped, or its Pod and data are gone. Machines of other vendors do not tell.
func (c Contract) ProvenGone(ctx context.Context, cluster *clusterv1.Cluster, providerID string) (bool, error) {
	if c.Live == nil {
		return false, nil
	}
	wiped, err := c.hostWiped(ctx, cluster, providerID)
	if err != nil {
		return false, fmt.Errorf("looking for the host of machine %s: %w", providerID, err)
	}
	gone, err := c.podGone(ctx, cluster, providerID)
	if err != nil {
		return false, fmt.Errorf("looking for the Pod of machine %s: %w", providerID, err)
	}

	return wiped || gone, nil
}

// hostWiped reports whether a host was proven wiped of a machine.
func (c Contract) hostWiped(ctx context.Context, cluster *clusterv1.Cluster, providerID string) (bool, error) {
	hosts, err := c.list(ctx, cluster, infrav1.TalosHostKind)
	if err != nil {
		return false, err
	}
	wiped := false
	for _, item := range hosts {
		host := &infrav1.TalosHost{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, host); err != nil {
			return false, fmt.Errorf("reading TalosHost %s: %w", item.GetName(), err)
		}
		if host.Spec.Handover.ProviderID == providerID {
			return false, nil
		}
		wiped = wiped || slices.ContainsFunc(host.Spec.Wiped, func(wipe infrav1.HostWipe) bool { return wipe.ProviderID == providerID })
	}

	return wiped, nil
}

// podGone reports whether nothing is left of a machine in a Pod: the infrastructure
// provider has recorded it, and its TalosMachine is gone.
func (c Contract) podGone(ctx context.Context, cluster *clusterv1.Cluster, providerID string) (bool, error) {
	found, err := talosCluster(ctx, c.Live, cluster)
	if err != nil || found == nil {
		return false, err
	}
	if !slices.Contains(infrav1.GoneMachines(found.GetAnnotations()), providerID) {
		return false, nil
	}
	machines, err := c.list(ctx, cluster, infrav1.TalosMachineKind)
	if err != nil {
		return false, err
	}

	return !slices.ContainsFunc(machines, func(machine unstructured.Unstructured) bool {
		id, _, err := unstructured.NestedString(machine.Object, "spec", "providerID")
		return err != nil || id == providerID
	}), nil
}

// list reads all objects of a kind live; there are none where our provider is not
// installed.
func (c Contract) list(ctx context.Context, cluster *clusterv1.Cluster, kind string) ([]unstructured.Unstructured, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(infrav1.GroupVersion.WithKind(kind + "List"))
	err := c.Live.List(ctx, list, client.InNamespace(cluster.Namespace))
	if meta.IsNoMatchError(err) {
		return nil, nil
	}

	return list.Items, err
}

// KindMismatch says why machines of an infrastructure machine template cannot be the
// control plane of a Cluster: one is for Pods and the other for metal. It is empty when
// they can.
func (c Contract) KindMismatch(ctx context.Context, template *unstructured.Unstructured, cluster *clusterv1.Cluster) (string, error) {
	if c.Cached == nil || !isOurs(template, infrav1.TalosMachineTemplateKind) {
		return "", nil
	}
	found, err := talosCluster(ctx, c.Cached, cluster)
	if err != nil || found == nil {
		return "", err
	}

	return mismatch(template, found), nil
}

func mismatch(template, cluster *unstructured.Unstructured) string {
	const wayOut = " in spec.machineTemplate.spec.infrastructureRef"
	machines, endpoint := runsInPod(template, "spec", "template", "spec"), runsInPod(cluster, "spec")
	switch {
	case machines && !endpoint:
		return "TalosMachineTemplate " + template.GetName() + " makes machines in Pods, and TalosCluster " + cluster.GetName() +
			" has no spec.container: its endpoint does not lead to Pods; name a template with metal" + wayOut
	case endpoint && !machines:
		return "TalosMachineTemplate " + template.GetName() + " makes machines on metal, and TalosCluster " + cluster.GetName() +
			" has spec.container: its endpoint leads to Pods; name a template with container" + wayOut
	default:
		return ""
	}
}

// NoSpareCapacity reports whether a Machine waits for a host, and there is none for it.
func (c Contract) NoSpareCapacity(machine *clusterv1.Machine) bool {
	return conditions.GetReason(machine, clusterv1.MachineInfrastructureReadyCondition) == infrav1.NoHostFitsReason
}

// HasCapacity reports whether a failure domain may have something left to claim.
func (c Contract) HasCapacity(domain clusterv1.FailureDomain) bool {
	return domain.Attributes[infrav1.FreeHostsAttribute] != infrav1.FreeHostsNone
}

// OtherRelease says that a Machine runs another Talos release than its infrastructure
// machine asks for; empty when it does not.
func (c Contract) OtherRelease(machine *clusterv1.Machine) string {
	found := conditions.Get(machine, clusterv1.MachineInfrastructureReadyCondition)
	if found == nil || found.Reason != infrav1.WrongReleaseReason {
		return ""
	}

	return found.Message
}

// TemplatedSpec is the spec of an infrastructure machine without what came after it was made:
// its provider ID and failure domain by Cluster API's contract, and of a TalosMachine the
// host that it claims, or what is known of its Pod.
func (c Contract) TemplatedSpec(infraMachine *unstructured.Unstructured) (map[string]any, error) {
	spec, _, err := unstructured.NestedMap(infraMachine.Object, "spec")
	if err != nil {
		return nil, err
	}
	later := []string{"providerID", "failureDomain"}
	if isOurs(infraMachine, infrav1.TalosMachineKind) {
		later = append(later, "hostRef", "pod")
	}
	for _, field := range later {
		delete(spec, field)
	}

	return spec, nil
}

// isOurs reports whether an object is of a kind of our infrastructure provider.
func isOurs(object *unstructured.Unstructured, kind string) bool {
	return object != nil && object.GetKind() == kind && object.GroupVersionKind().Group == infrav1.GroupVersion.Group
}

// runsInPod reports whether the specification at a path asks for container mode.
func runsInPod(object *unstructured.Unstructured, path ...string) bool {
	value, found, err := unstructured.NestedFieldNoCopy(object.Object, append(slices.Clone(path), "container")...)

	return err == nil && found && value != nil
}

// talosCluster reads the TalosCluster of a Cluster; nil when there is none, or the
// infrastructure is another vendor's.
func talosCluster(ctx context.Context, reader client.Reader, cluster *clusterv1.Cluster) (*unstructured.Unstructured, error) {
	ref := cluster.Spec.InfrastructureRef
	if ref.Kind != infrav1.TalosClusterKind || ref.APIGroup != infrav1.GroupVersion.Group {
		return nil, nil
	}
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(infrav1.GroupVersion.WithKind(infrav1.TalosClusterKind))
	err := reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: ref.Name}, found)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading TalosCluster %s: %w", ref.Name, err)
	default:
		return found, nil
	}
}
