package backends

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/quorum"
	"github.com/capi-talos/capi-talos/infrastructure/internal/reprovision"
)

// RefuseForEtcd says what etcd has against the wipe of a machine, by what the other
// control plane machines of its Cluster say now. Before the API server of a cluster
// has ever answered there is nothing to lose.
func RefuseForEtcd(ctx context.Context, live client.Reader, dialer talosclient.Dialer, store *credentials.Store, scope *Scope) (reprovision.Refusal, error) {
	if !util.IsControlPlaneMachine(scope.Machine) || !ptr.Deref(scope.Cluster.Status.Initialization.ControlPlaneInitialized, false) ||
		reprovision.IsDespiteOthers(scope.TalosMachine) {
		return reprovision.Refusal{}, nil
	}
	cluster := client.ObjectKeyFromObject(scope.Cluster)
	creds, err := store.OfCluster(ctx, cluster)
	if errors.Is(err, secrets.ErrBundleMissing) {
		return reprovision.RefuseForEtcd(etcd.Health{}), nil // Nobody can be asked.
	}
	if err != nil {
		return reprovision.Refusal{}, err
	}
	others, err := quorum.Without(ctx, live, dialer, creds, cluster, scope.TalosMachine.Spec.ProviderID)
	if err != nil {
		return reprovision.Refusal{}, err
	}

	return reprovision.RefuseForEtcd(others), nil
}

// RemoveReprovisionAnnotation takes ReprovisionAnnotation off a TalosMachine: what it asks
// for has been done.
func RemoveReprovisionAnnotation(ctx context.Context, c client.Client, machine *infrav1.TalosMachine) error {
	if !reprovision.IsWanted(machine) {
		return nil
	}
	err := objects.Change(ctx, c, machine, func(m *infrav1.TalosMachine) { delete(m.Annotations, infrav1.ReprovisionAnnotation) })
	if err != nil {
		return fmt.Errorf("removing the annotation of TalosMachine %s: %w", machine.Name, err)
	}

	return nil
}
