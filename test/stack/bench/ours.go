package bench

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/test/sim/fleet"
	"github.com/capi-talos/capi-talos/test/stack/demo"
	"github.com/capi-talos/capi-talos/test/stack/management"
)

// testClient is an administrator's client of the management cluster.
type testClient struct{ client.Client }

func newClient(config *rest.Config) (*testClient, error) {
	scheme, err := demo.Scheme()
	if err != nil {
		return nil, err
	}
	made, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client of the management cluster: %w", err)
	}
	return &testClient{made}, nil
}

// ours builds the same control plane through Cluster API. The time begins when the
// Cluster is created: its hosts are known by then.
func (b *Bench) ours(ctx context.Context, name string) (stages, error) {
	hosts, _, err := b.machines(ctx, name)
	if err != nil {
		return stages{}, err
	}
	defer b.destroy(ctx, hosts)
	objects, err := b.generate(ctx, b.Fleet, name, 1)
	if err != nil {
		return stages{}, err
	}
	if err := b.client.addHosts(ctx, name, hosts); err != nil {
		return stages{}, err
	}
	watch := b.observe(ctx, hosts, func(ctx context.Context) (entry, error) {
		bundle, err := secrets.GetBundle(ctx, b.client, client.ObjectKey{Namespace: name, Name: name})
		if err != nil {
			return entry{}, err
		}
		endpoint, err := b.Fleet.Endpoint(ctx, name)
		if err != nil {
			return entry{}, err
		}
		return entryOf(bundle, name, endpoint)
	})
	if err := b.client.createAll(ctx, objects); err != nil {
		return stages{}, err
	}
	if err := watch.first(ctx); err != nil {
		return stages{}, err
	}
	if err := b.client.awaitAvailable(ctx, name, 1); err != nil {
		return stages{}, err
	}
	watch.begin()
	if err := b.client.scale(ctx, name, controlPlanes); err != nil {
		return stages{}, err
	}
	found, err := watch.end(ctx)
	return found, errors.Join(err, b.client.deleteCluster(ctx, name))
}

// generate makes the objects of a cluster without workers.
func (b *Bench) generate(ctx context.Context, machines fleet.Fleet, name string, replicas int) ([]*unstructured.Unstructured, error) {
	manifests, err := b.Stack.Generate(ctx, machines, management.Shape{Namespace: name, ControlPlanes: replicas})
	if err != nil {
		return nil, err
	}
	return management.Objects(manifests)
}

func (c *testClient) createAll(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if err := c.Create(ctx, object); err != nil {
			return fmt.Errorf("creating %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// addHosts makes machines known, and waits until all are Available.
func (c *testClient) addHosts(ctx context.Context, namespace string, hosts []fleet.Host) error {
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); client.IgnoreAlreadyExists(err) != nil {
		return err
	}
	for _, host := range hosts {
		if err := c.Create(ctx, host.Manifest(namespace, nil)); err != nil {
			return err
		}
	}
	return c.awaitHosts(ctx, namespace)
}

func (c *testClient) awaitHosts(ctx context.Context, namespace string) error {
	return poll(ctx, func(ctx context.Context) error {
		list := &infrav1.TalosHostList{}
		if err := c.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Status.State != infrav1.HostAvailable {
				return fmt.Errorf("host %s is %s", list.Items[i].Name, list.Items[i].Status.State)
			}
		}
		return nil
	})
}

// controlPlane is the one of a cluster.
func (c *testClient) controlPlane(ctx context.Context, name string) (*controlplanev1.TalosControlPlane, error) {
	found := &controlplanev1.TalosControlPlane{}
	return found, c.Get(ctx, client.ObjectKey{Namespace: name, Name: name + "-control-plane"}, found)
}

// awaitAvailable waits until all control plane Machines are available and up to
// date, and none is left beyond them.
func (c *testClient) awaitAvailable(ctx context.Context, name string, replicas int32) error {
	return poll(ctx, func(ctx context.Context) error {
		found, err := c.controlPlane(ctx, name)
		if err != nil {
			return err
		}
		status := found.Status
		for _, count := range []*int32{status.Replicas, status.AvailableReplicas, status.UpToDateReplicas} {
			if ptr.Deref(count, 0) != replicas {
				return fmt.Errorf("the control plane has %d replicas, %d available, %d up to date",
					ptr.Deref(status.Replicas, 0), ptr.Deref(status.AvailableReplicas, 0), ptr.Deref(status.UpToDateReplicas, 0))
			}
		}
		return nil
	})
}

func (c *testClient) scale(ctx context.Context, name string, replicas int32) error {
	found, err := c.controlPlane(ctx, name)
	if err != nil {
		return err
	}
	before := client.MergeFrom(found.DeepCopy())
	found.Spec.Replicas = ptr.To(replicas)
	return c.Patch(ctx, found, before)
}

// deleteCluster gives the hosts back, and forgets them.
func (c *testClient) deleteCluster(ctx context.Context, name string) error {
	cluster := &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name}}
	if err := c.Delete(ctx, cluster); err != nil {
		return err
	}
	if err := poll(ctx, func(ctx context.Context) error {
		err := c.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("the Cluster is still there"))
	}); err != nil {
		return err
	}
	if err := c.awaitHosts(ctx, name); err != nil {
		return err
	}
	return c.DeleteAllOf(ctx, &infrav1.TalosHost{}, client.InNamespace(name))
}
