// Package othervendor is an infrastructure provider as another vendor has it: it knows Cluster API's
// contract and a cloud that takes user data, and nothing of Talos or of our kinds.
package othervendor

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Components are the kinds of this provider, and the rights of Cluster API's managers to them.
//
//go:embed components.yaml
var Components []byte

// version is the API of the provider.
var version = schema.GroupVersion{Group: "example.com", Version: "v1"} //nolint:gochecknoglobals // a constant

const (
	instanceKind = "Instance"
	clusterKind  = "InstanceCluster"
	// finalizer keeps an Instance until the cloud has none of its name.
	finalizer = "example.com/instance"
	// interval is how often an object is looked at that is not as it should be.
	interval = 2 * time.Second
)

// Cloud runs instances.
type Cloud interface {
	// Run starts an instance with user data, unless there is one of that name, and returns it.
	Run(ctx context.Context, name string, userData []byte) (Instance, error)
	// End takes an instance away, with its disks. One that is not there is fine.
	End(ctx context.Context, name string) error
	// Balance returns host and port of a load balancer for the API servers of a cluster.
	Balance(ctx context.Context, cluster string) (string, int32, error)
}

// Instance is one of a cloud.
type Instance struct {
	// ID is its name for the cloud, Address where it is reached.
	ID, Address string
}

// providerID names the instance for Cluster API and Kubernetes.
func (i Instance) providerID() string { return "example://" + i.ID }

// Run runs the controllers of the provider, whose Components are installed, until the context
// ends.
func Run(ctx context.Context, config *rest.Config, cloud Cloud) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, clusterv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("building the scheme: %w", err)
		}
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		return fmt.Errorf("making the manager: %w", err)
	}
	instances := handler.EnqueueRequestsFromMapFunc(util.MachineToInfrastructureMapFunc(version.WithKind(instanceKind)))
	if err := ctrl.NewControllerManagedBy(manager).For(newObject(instanceKind)).Watches(&clusterv1.Machine{}, instances).
		Complete(&instanceReconciler{Client: manager.GetClient(), cloud: cloud}); err != nil {
		return fmt.Errorf("making the controller of instances: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(manager).For(newObject(clusterKind)).
		Complete(&clusterReconciler{Client: manager.GetClient(), cloud: cloud}); err != nil {
		return fmt.Errorf("making the controller of clusters: %w", err)
	}
	return manager.Start(ctx)
}

func newObject(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(version.WithKind(kind))
	return object
}

// patchSpec and patchStatus write some fields.
func patchSpec(ctx context.Context, c client.Client, object *unstructured.Unstructured, fields map[string]any) error {
	return patchFields(object, "spec", fields, func(patch client.Patch) error { return c.Patch(ctx, object, patch) })
}

func patchStatus(ctx context.Context, c client.Client, object *unstructured.Unstructured, fields map[string]any) error {
	return patchFields(object, "status", fields, func(patch client.Patch) error { return c.Status().Patch(ctx, object, patch) })
}

func patchFields(object *unstructured.Unstructured, part string, fields map[string]any, write func(client.Patch) error) error {
	before := object.DeepCopy()
	for name, value := range fields {
		if err := unstructured.SetNestedField(object.Object, value, part, name); err != nil {
			return fmt.Errorf("setting %s.%s: %w", part, name, err)
		}
	}
	return write(client.MergeFrom(before))
}
