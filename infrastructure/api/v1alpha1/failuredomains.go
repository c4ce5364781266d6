package v1alpha1

// Attribute of the failure domains that a TalosCluster publishes, and its
// values.
const (
	// FreeHostsAttribute reports whether a TalosHost is free in a failure domain.
	// A control plane puts no Machine into a domain without free hosts while
	// another has some. It is no number, so that it does not change with each
	// claim.
	FreeHostsAttribute = "infrastructure.cluster.x-k8s.io/free-hosts"

	// FreeHostsSome says that at least one TalosHost of the domain is Available,
	// unclaimed and schedulable.
	FreeHostsSome = "some"

	// FreeHostsNone says that none is.
	FreeHostsNone = "none"
)
