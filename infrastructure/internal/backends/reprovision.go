package backends

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/objects"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/secrets"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/credentials"
	"github.com/capi-talos/capi-talos/infrastructure/internal/quorum"
	"github.com/capi-talos/capi-talos/infrastructure/internal/reprovision"
)

// Etcd is how the control plane machines of a Cluster are asked about their etcd.
type Etcd struct {
	// Live reads the TalosMachines of the Cluster.
	Live client.Reader
	// Dialer opens connections to them.
	Dialer talosclient.Dialer
	// Credentials gives out the client certificates.
	Credentials *credentials.Store
}

// Refuse says what etcd has against the wipe of a control plane machine that is
// re-provisioned, by what the other ones of its Cluster say now. Before the API server of
// a cluster has ever answered there is nothing to lose.
func (e Etcd) Refuse(ctx context.Context, of *clusterv1.Cluster, machine *infrav1.TalosMachine) (reprovision.Refusal, error) {
	if !ptr.Deref(of.Status.Initialization.ControlPlaneInitialized, false) || reprovision.IsDespiteOthers(machine) {
		return reprovision.Refusal{}, nil
	}
	cluster := client.ObjectKeyFromObject(of)
	creds, err := e.Credentials.OfCluster(ctx, cluster)
	if errors.Is(err, secrets.ErrBundleMissing) {
		return reprovision.RefuseForEtcd(etcd.Health{}), nil // Nobody can be asked.
	}
	if err != nil {
		return reprovision.Refusal{}, err
	}
	others, err := quorum.Without(ctx, e.Live, e.Dialer, creds, cluster, machine.Spec.ProviderID)
	if err != nil {
		return reprovision.Refusal{}, err
	}

	return reprovision.RefuseForEtcd(others), nil
}

// Reprovisioner begins to re-provision machines. The zero value is ready for use.
type Reprovisioner struct{ locks clusterLocks }

// Begin begins to re-provision the machine of a scope, unless judge, which reads live,
// or etcd speaks against it. Of a Cluster one TalosMachine at a time is judged and begun,
// so that no two begin in one moment; those of other Clusters do not wait for its nodes.
func (r *Reprovisioner) Begin(
	ctx context.Context, scope *Scope, others Etcd, judge func() (reprovision.Refusal, error), begin func() error,
) (begun bool, err error) {
	defer r.locks.lock(client.ObjectKeyFromObject(scope.Cluster))()

	refusal, err := judge()
	if err == nil && refusal.Reason == "" && util.IsControlPlaneMachine(scope.Machine) {
		refusal, err = others.Refuse(ctx, scope.Cluster, scope.TalosMachine)
	}
	if err != nil {
		return false, err
	}
	if refusal.Reason != "" {
		scope.Observed.Reprovisioning = condition.False(refusal.Reason, refusal.Message)
		return false, nil
	}

	return true, begin()
}

// IsReprovisionFromTemplate reports whether the annotation comes from a MachineDeployment
// or a control plane, which keep it on the Machine and on the TalosMachine alike.
func IsReprovisionFromTemplate(scope *Scope) bool {
	return metav1.HasAnnotation(scope.Machine.ObjectMeta, infrav1.ReprovisionAnnotation)
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
