package v1alpha1

// Finalizers, labels and annotations of the add-on provider.
const (
	// AddonFinalizer keeps a TalosClusterAddon until its releases are gone.
	AddonFinalizer = "addons.cluster.x-k8s.io/talosclusteraddon"
	// ReleaseFinalizer keeps a TalosClusterAddonRelease until what it installed is
	// uninstalled, or left in place as its deletionPolicy says.
	ReleaseFinalizer = "addons.cluster.x-k8s.io/talosclusteraddonrelease"

	// AddonNameLabel on a TalosClusterAddonRelease is the name of its
	// TalosClusterAddon, or a digest of it where the name is too long for a label.
	AddonNameLabel = "addons.cluster.x-k8s.io/addon-name"

	// OwnerLabel on the Secrets in which Helm stores a release, in the workload
	// cluster, names who installed it: a digest of the namespace and name of the
	// Cluster and the name of the TalosClusterAddon. A release without it, or with
	// another one, is somebody else's. No UID is part of it: clusterctl move gives
	// every object a new one.
	OwnerLabel = "addons.cluster.x-k8s.io/owner"
	// DigestLabel beside it is the digest of what was asked for: chart, values and
	// options.
	DigestLabel = "addons.cluster.x-k8s.io/digest"

	// ForceAnnotation on a TalosClusterAddon or TalosClusterAddonRelease has a release
	// tried again whose retries are used up. Each new value does so once; the last one
	// is in status.lastForced.
	ForceAnnotation = "addons.cluster.x-k8s.io/force"
	// PlanAnnotation on a TalosClusterAddon has what would be done written into the
	// status of its releases, and nothing is done while it is there. Its value does not
	// matter.
	PlanAnnotation = "addons.cluster.x-k8s.io/plan"
	// ForceDeleteAnnotation on a TalosClusterAddonRelease that is being deleted lets it
	// go without uninstalling anything. Its value does not matter.
	ForceDeleteAnnotation = "addons.cluster.x-k8s.io/force-delete"
)
