// Package backends is what the TalosMachine controller needs of a way of
// getting machines.
package backends

import (
	"context"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Backend is a way of getting machines.
type Backend interface {
	// Reconcile brings the machine closer to running, and fills in what was
	// observed of it.
	Reconcile(ctx context.Context, scope *Scope) (ctrl.Result, error)
	// Delete gives the machine back. It tells Released once nothing is left to
	// wait for.
	Delete(ctx context.Context, scope *Scope) (Deletion, ctrl.Result, error)
	// Gone ends what is open for a TalosMachine that does not exist any more.
	Gone(ctx context.Context, key client.ObjectKey) error
}

// Deletion tells how far a deletion is.
type Deletion string

const (
	// Releasing says that the machine is still being given back.
	Releasing Deletion = "Releasing"
	// Released says that the TalosMachine may go.
	Released Deletion = "Released"
)

// Scope is the reconciliation of one TalosMachine.
type Scope struct {
	// Cluster is the Cluster of the TalosMachine; nil only in a deletion.
	Cluster *clusterv1.Cluster
	// TalosCluster is the infrastructure of the Cluster; nil when that is of another
	// kind, or not there.
	TalosCluster *infrav1.TalosCluster
	// Machine is the owner of the TalosMachine; nil only in a deletion.
	Machine *clusterv1.Machine
	// TalosMachine is what is reconciled.
	TalosMachine *infrav1.TalosMachine
	// Observed is what this reconciliation has found.
	Observed Observed
}

// Observed is what a reconciliation has found about a machine.
type Observed struct {
	// Claim, Configuration, Running, Identity, Reprovisioning and Deleting are the
	// conditions Allocated, ConfigurationApplied, Running,
	// IdentityVerified, Reprovisioning and Deleting. One without status was not
	// observed in this reconciliation.
	Claim, Configuration, Running, Identity, Reprovisioning, Deleting condition.Finding
	// Released reports whether nothing holds a TalosMachine that is being deleted.
	Released bool
	// Provisioned reports whether the machine has run with its configuration.
	Provisioned bool
	// Addresses are the addresses of the machine; nil when not observed.
	Addresses clusterv1.MachineAddresses
	// FailureDomain is the failure domain of the host.
	FailureDomain string
	// TalosVersion is the release that the machine runs; empty when not
	// observed.
	TalosVersion string
	// InstallerImage is the image with which Talos was installed; empty when it was
	// there before.
	InstallerImage string
}
