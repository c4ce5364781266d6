package controllers

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// peerAddresses are the hosts of peer URLs that can only be a Machine's. Its node says
// them itself: etcd may be in another network than the address of the Node is. Of a
// machine in a Pod it is the lasting address of its etcd, which is none of the Machine's.
// One that does not answer is looked for at all addresses that it has; nil says that
// nobody knows.
func peerAddresses(machine *clusterv1.Machine, infraMachine *unstructured.Unstructured, node health.Facts) []string {
	if len(node.EtcdAddresses) > 0 {
		return node.EtcdAddresses
	}
	if isOurs(infraMachine, infrav1.TalosMachineKind) && runsInPod(infraMachine, "spec") {
		lasting, _, err := unstructured.NestedString(infraMachine.Object, "spec", "pod", "etcdAddress")
		if err != nil || lasting == "" {
			return nil
		}

		return append(nodeAddresses(machine), lasting)
	}
	if node.Err == nil {
		return nil
	}

	return nodeAddresses(machine)
}

// isOurs tells that an object is of a kind of our infrastructure provider. Its kinds
// are read without their types, because that provider may not be there, or be of
// another release.
func isOurs(object *unstructured.Unstructured, kind string) bool {
	return object != nil && object.GetKind() == kind && object.GroupVersionKind().Group == infrav1.GroupVersion.Group
}

// runsInPod tells that the specification at a path asks for container mode.
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

// reconcileKinds finds out whether there is a template, and, while a Machine may have to
// be made, whether it and the TalosCluster are of one kind: in Pods, or on metal. Those
// of other vendors are their own matter. A Machine that would get no configuration, or no
// name, is none that fits either.
func (r *Reconciler) reconcileKinds(ctx context.Context, s *scope) error {
	s.misfit, s.templateMissing = s.networkProblem, ""
	if s.template == nil {
		s.templateMissing = missingTemplate(s)
	}
	if err := naming.Check(s.controlPlane.Spec.MachineNaming.Template, s.cluster.Name, s.controlPlane.Name); err != nil && len(s.machines) > 0 {
		s.misfit = "spec.machineNaming.template " + err.Error()
	}
	complete := len(stayingNames(s)) >= int(ptr.Deref(s.controlPlane.Spec.Replicas, controlplanev1.DefaultReplicas)) && len(s.outdated) == 0
	if complete || !isOurs(s.template, infrav1.TalosMachineTemplateKind) {
		return nil
	}
	cluster, err := talosCluster(ctx, r.Client, s.cluster)
	if err != nil || cluster == nil {
		return err
	}
	if problem := misfit(s.template, cluster); problem != "" {
		s.misfit = problem
	}

	return nil
}

// missingTemplate says that there is no infrastructure machine template.
func missingTemplate(s *scope) string {
	ref := s.controlPlane.Spec.MachineTemplate.Spec.InfrastructureRef

	return ref.Kind + " " + ref.Name + " does not exist; create it, or name another one in spec.machineTemplate.spec.infrastructureRef"
}

// misfit says why machines of a TalosMachineTemplate cannot be the control plane of a
// TalosCluster; empty when they can.
func misfit(template, cluster *unstructured.Unstructured) string {
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
