package backends

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// bootstrapDataKey is the key of the machine configuration in the bootstrap
// Secret. It is part of the Cluster API contract.
const bootstrapDataKey = "value"

// Record writes what must not be lost into the spec of a TalosMachine.
func Record(ctx context.Context, c client.Client, machine *infrav1.TalosMachine, change func(*infrav1.TalosMachineSpec)) error {
	if err := objects.Change(ctx, c, machine, func(m *infrav1.TalosMachine) { change(&m.Spec) }); err != nil {
		return fmt.Errorf("recording on TalosMachine %s what must not be lost: %w", machine.Name, err)
	}

	return nil
}

// ReadConfiguration reads a bootstrap Secret; one that does not exist is nil.
func ReadConfiguration(ctx context.Context, reader client.Reader, namespace, name string) ([]byte, error) {
	stored := &corev1.Secret{}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	if err := reader.Get(ctx, key, stored); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}

		return nil, fmt.Errorf("reading Secret %s: %w", key, err)
	}
	if len(stored.Data[bootstrapDataKey]) == 0 {
		return nil, nil
	}

	return stored.Data[bootstrapDataKey], nil
}
