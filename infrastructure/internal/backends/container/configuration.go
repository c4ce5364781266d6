package container

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/versions"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/backends"
	"github.com/capi-talos/capi-talos/infrastructure/internal/endpoint"
)

const (
	// longestUserData is how long, in bytes, the environment of a container may make
	// user data: Linux takes at most 128 KiB for one variable (MAX_ARG_STRLEN), with
	// its name, "=" and the zero at its end.
	longestUserData = 128<<10 - len(userDataVariable+"=") - 1
	// overlayRoom is kept, in bytes, for what is known after the Pod was made.
	overlayRoom = 4 << 10
)

// noConfigurationYet is why a machine waits at first.
const noConfigurationYet = "Waiting for the bootstrap provider to make the machine configuration"

// configuration reads the machine configuration of the bootstrap provider. Without
// one, missing says what is waited for.
func (m *Backend) configuration(ctx context.Context, scope *backends.Scope) (configuration []byte, missing string, err error) {
	secretName := scope.Machine.Spec.Bootstrap.DataSecretName
	if secretName == nil {
		return nil, noConfigurationYet, nil
	}
	configuration, err = backends.ReadConfiguration(ctx, m.Client, scope.TalosMachine.Namespace, *secretName)
	if err == nil && configuration == nil {
		missing = fmt.Sprintf("Secret %s with the machine configuration is missing", *secretName)
	}

	return configuration, missing, err
}

// userDataName is a file name for the header of user data. That begins at byte 10, and the name
// has to go on to byte 35.
const userDataName = "talos-machine-configuration.yaml"

// userDataOf returns a configuration as Talos takes it from its environment: gzipped,
// then as base64. Talos unzips whatever its platform gives it (acquire.go of
// machined, releases 1.12 to 1.14). It knows what is gzipped by http.DetectContentType, which
// takes whatever has "LP" as its bytes 34 and 35 for a font: one configuration of 65 536 would
// be read as it is, and its machine never boot. The name in the header lies there.
func userDataOf(configuration []byte) []byte {
	var zipped bytes.Buffer
	writer := gzip.NewWriter(&zipped)
	writer.Name = userDataName
	// A buffer takes everything.
	_, _ = writer.Write(configuration)
	_ = writer.Close()

	return []byte(base64.StdEncoding.EncodeToString(zipped.Bytes()))
}

// tooLong returns an error when user data does not fit into the environment of a
// container, with room bytes to spare. There is no other way to hand a configuration to
// a Pod: one in maintenance mode takes the configuration of whoever is first.
func tooLong(userData []byte, room int) error {
	if len(userData)+room <= longestUserData {
		return nil
	}

	return fmt.Errorf("gzipped and as base64 it is %d bytes long, and no more than %d fit into the environment of a container: "+
		"bring manifests and files that are long to the cluster in another way than in the configuration, for instance with a ClusterResourceSet", len(userData), longestUserData-room)
}

// overlaid is the user data with what only the Pod knows; nil, with the reason in a
// condition, when there is none. The node may be nil where the Pod has no limits.
func (m *Backend) overlaid(ctx context.Context, scope *backends.Scope, b podBuilder, node *corev1.Node) ([]byte, ctrl.Result, error) {
	configuration, missing, err := m.configuration(ctx, scope)
	if err != nil {
		return nil, ctrl.Result{}, err
	}
	if missing != "" {
		scope.Observed.Configuration = condition.False(infrav1.WaitingForBootstrapDataReason, missing)
		return nil, m.Pacing.Later(), nil
	}
	overlay := overlayOf(scope.TalosMachine)
	overlay.EtcdAddress = etcdAddress(scope.TalosMachine)
	overlay.SystemReserved = reserved(node, b.spec().Resources.Limits)
	if node != nil {
		if err := m.recordReserved(ctx, scope, overlay.SystemReserved); err != nil {
			return nil, ctrl.Result{}, err
		}
	}
	if b.controlPlane {
		names, found, err := m.endpointNames(ctx, scope)
		if err != nil {
			return nil, ctrl.Result{}, err
		}
		if !found {
			scope.Observed.Configuration = condition.False(infrav1.WaitingForServiceReason, "Waiting for the Service of the control plane, whose names belong into the configuration")
			return nil, m.requeueStarting(), nil
		}
		overlay.EndpointNames = names
	}
	text, err := configgen.Overlay(configuration, overlay)
	userData := userDataOf(text)
	if err == nil {
		err = tooLong(userData, 0)
	}
	if err != nil {
		scope.Observed.Configuration = condition.Falsef(infrav1.OverlayFailedReason, "The machine configuration does not fit a Pod: %v", err)
		return nil, m.Pacing.Later(), nil //nolint:nilerr // It is the user's, and in the condition.
	}

	return userData, ctrl.Result{}, nil
}

// unfit says why a configuration cannot be run in the Pod, before there is one;
// empty when it can.
func (m *Backend) unfit(scope *backends.Scope, configuration []byte) string {
	machine := scope.TalosMachine
	text, err := configgen.Overlay(configuration, overlayOf(machine))
	if err == nil {
		err = tooLong(userDataOf(text), overlayRoom)
	}
	if err != nil {
		return fmt.Sprintf("The machine configuration does not fit a Pod of Talos %s: %v", machine.Spec.Container.Talos.Version, err)
	}
	if err := versions.Supports(machine.Spec.Container.Talos.Version, scope.Machine.Spec.Version); err != nil {
		return fmt.Sprintf("The Machine cannot run: %v; choose another version, or another release in a new template", err)
	}

	return ""
}

func overlayOf(machine *infrav1.TalosMachine) configgen.HostOverlay {
	return configgen.HostOverlay{ProviderID: machine.Spec.ProviderID, Container: true, Release: machine.Spec.Container.Talos.Version}
}

// endpointNames are the names by which the endpoint of the cluster is reached, when
// the cluster makes that itself. It reports whether they are known.
func (m *Backend) endpointNames(ctx context.Context, scope *backends.Scope) ([]string, bool, error) {
	if scope.TalosCluster == nil || scope.TalosCluster.Spec.Container == nil {
		return nil, true, nil
	}
	service := &corev1.Service{}
	key := client.ObjectKey{Namespace: scope.TalosCluster.Namespace, Name: endpoint.ServiceName(scope.TalosCluster)}
	if err := m.Client.Get(ctx, key, service); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, false, nil
		}
		return nil, false, fmt.Errorf("reading Service %s: %w", key.Name, err)
	}
	nodes := &corev1.NodeList{}
	if err := m.Client.List(ctx, nodes); err != nil {
		return nil, false, fmt.Errorf("listing Nodes: %w", err)
	}

	return endpoint.Names(service, nodes.Items, m.ClusterDomain), true, nil
}

// needsNode reports whether a configuration depends on the node of the Pod.
func needsNode(machine *infrav1.TalosMachine) bool {
	limits := machine.Spec.Container.Resources.Limits
	_, cpu := limits[corev1.ResourceCPU]
	_, memory := limits[corev1.ResourceMemory]

	return cpu || memory
}

// reserved is what the node inside keeps back, so that it promises its Pods no more
// than the Pod gets: the kubelet in it sees all that the hosting node has.
func reserved(node *corev1.Node, limits corev1.ResourceList) corev1.ResourceList {
	if node == nil {
		return nil
	}
	kept := corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := limits[name]
		all, known := node.Status.Capacity[name]
		if !limited || !known || all.Cmp(limit) <= 0 {
			continue
		}
		rest := all.DeepCopy()
		rest.Sub(limit)
		kept[name] = canonical(name, rest)
	}
	if len(kept) == 0 {
		return nil
	}

	return kept
}

// canonical writes a quantity in the way of the kubelet's configuration.
func canonical(name corev1.ResourceName, quantity resource.Quantity) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(quantity.MilliValue(), resource.DecimalSI)
	}

	return *resource.NewQuantity(quantity.Value(), resource.BinarySI)
}

// recordReserved writes down what the configuration of a machine keeps back, for it
// stays on the volume when the Pod is made again on another node.
func (m *Backend) recordReserved(ctx context.Context, scope *backends.Scope, kept corev1.ResourceList) error {
	machine, text := scope.TalosMachine, reservedText(kept)
	if scope.Observed.Provisioned || !needsNode(machine) || machine.Spec.Pod.SystemReserved == text {
		return nil
	}

	return backends.Record(ctx, m.Client, machine, func(spec *infrav1.TalosMachineSpec) { spec.Pod.SystemReserved = text })
}

// reservedText is what is kept back, as it is recorded.
func reservedText(kept corev1.ResourceList) string {
	var parts []string
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if quantity, given := kept[name]; given {
			parts = append(parts, string(name)+"="+quantity.String())
		}
	}
	if len(parts) == 0 {
		return "none"
	}

	return strings.Join(parts, ",")
}

// running is what the stage of a machine says of whether it runs, and whether what it
// keeps back was computed for another node than the one that it is on.
func running(machine *infrav1.TalosMachine, node *corev1.Node, status talosclient.MachineStatus) condition.Finding {
	found := backends.RunningFinding(status)
	recorded := machine.Spec.Pod.SystemReserved
	if recorded == "" || node == nil {
		return found
	}
	if here := reservedText(reserved(node, machine.Spec.Container.Resources.Limits)); here != recorded {
		found.Message = strings.TrimPrefix(fmt.Sprintf("%s. The systemReserved of the Node inside was computed for another node of the management cluster (%s; for %s it would be %s): "+
			"on a larger one it promises more than the Pod gets, on a smaller one its kubelet may not start. Cordon this node and delete the Pod, so that it is made again elsewhere; or delete the Machine to have it replaced", found.Message, recorded, node.Name, here), ". ")
	}

	return found
}
