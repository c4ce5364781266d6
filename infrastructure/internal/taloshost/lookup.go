package taloshost

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// ListAmbiguousUUIDs finds the UUIDs that several machines tell. That a UUID is worth
// nothing is for the hosts of a namespace alone to say: elsewhere anybody may name it.
func ListAmbiguousUUIDs(ctx context.Context, reader client.Reader, namespace string) (AmbiguousUUID, error) {
	hosts := &infrav1.TalosHostList{}
	if err := reader.List(ctx, hosts, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing TalosHosts: %w", err)
	}

	return AmbiguousUUIDs(hosts.Items), nil
}

// InUse reports which hosts are in use, seen from a namespace. There the records are
// believed. Elsewhere the TalosMachine must exist that they name, with the provider ID
// of the claim: the hosts of one tenant must not keep those of another from their work.
// What the cache does not know is asked live, and where nobody says a host is in use.
func InUse(ctx context.Context, cached, live client.Reader, namespace string) Used {
	return func(host *infrav1.TalosHost) bool {
		ref := host.Spec.ConsumerRef
		switch {
		case !RecordsUse(host):
			return false
		case host.Namespace == namespace:
			return true
		case ref.Name == "" || ref.ProviderID == "":
			return false
		}
		for _, reader := range []client.Reader{cached, live} {
			machine := &infrav1.TalosMachine{}
			err := reader.Get(ctx, client.ObjectKey{Namespace: host.Namespace, Name: ref.Name}, machine)
			if (err != nil && !apierrors.IsNotFound(err)) || (err == nil && machine.Spec.ProviderID == ref.ProviderID) {
				return true
			}
		}
		return false
	}
}
