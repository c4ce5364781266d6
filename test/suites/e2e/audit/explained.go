package audit

// Explanation tells why rights are there that a run need not use.
type Explanation struct {
	// Manager, Group, Resource and Verb are the rights, as patterns of path.Match.
	// A manager is a provider, such as "bootstrap-talos".
	Manager, Group, Resource, Verb string
	// Beside is a verb on the same resource: the explanation holds only where that
	// was used. Empty means that it always holds.
	Beside string
	// Reason is why the rights are there.
	Reason string
}

// Explained are the rights that a run need not use. Who adds a line says here when
// the right is used after all; a line that fits no right fails the test.
func Explained() []Explanation { return append(ofRequests(), ofRareMoments()...) }

// ofRequests are the rights that no request of the log is about, or only another one.
func ofRequests() []Explanation {
	const ownerMended = "asked for by admission (OwnerReferencesPermissionEnforcement) when the owners of a Secret that exists are mended, for example after a restore; no request has it"
	return []Explanation{
		{Manager: "bootstrap-talos", Resource: "secrets", Verb: "delete", Reason: ownerMended},
		{Manager: "control-plane-talos", Resource: "secrets", Verb: "delete", Reason: ownerMended},
		{
			Manager: "*", Group: "*", Resource: "*/finalizers", Verb: "update",
			Reason: "asked for by admission (OwnerReferencesPermissionEnforcement) when an owner reference blocks the owner's deletion; no request has it",
		},
		{
			Manager: "*", Group: "*", Resource: "events", Verb: "patch",
			Reason: "an event that comes again soon is patched into a series",
		},
		{
			Manager: "*", Group: "authentication.k8s.io", Resource: "tokenreviews", Verb: "create",
			Reason: "asked when somebody reads the metrics",
		},
		{
			Manager: "*", Group: "authorization.k8s.io", Resource: "subjectaccessreviews", Verb: "create",
			Reason: "asked when somebody reads the metrics",
		},
		{
			Manager: "*", Group: "*", Resource: "*", Verb: "list", Beside: "watch",
			Reason: "a watch that begins with a list is one request (watch-list); an API server that has none is asked to list",
		},
	}
}

// ofRareMoments are the rights that are used when something happens that happens in
// no scenario of the suite.
func ofRareMoments() []Explanation {
	const (
		addon, backup, bootstrap, controlPlane, infrastructure = "addon-talos", "addon-talos-backup", "bootstrap-talos", "control-plane-talos", "infrastructure-talos"
		backupGroup, infraGroup                                = "backup.cluster.x-k8s.io", "infrastructure.cluster.x-k8s.io"
	)
	return []Explanation{
		{
			Manager: addon, Group: "addons.cluster.x-k8s.io", Resource: "talosclusteraddonreleases", Verb: "get",
			Reason: "read live when one of the name is there, and not in the cache or somebody else's",
		},
		{
			Manager: addon, Group: "addons.cluster.x-k8s.io", Resource: "talosclusteraddons", Verb: "get",
			Reason: "read live after a conflict",
		},
		{
			Manager: backup, Group: backupGroup, Resource: "talosetcdbackups", Verb: "get",
			Reason: "read live when a pause begins or ends",
		},
		{
			Manager: backup, Resource: "secrets", Verb: "create",
			Reason: "the secrets of a cluster that is made of a backup",
		},
		{
			Manager: bootstrap, Resource: "secrets", Verb: "patch",
			Reason: "owners and labels of a cluster's Secrets are mended, for example after a move",
		},
		{
			Manager: controlPlane, Group: backupGroup, Resource: "talosetcdbackups", Verb: "get",
			Reason: "asked while a change waits for its backup, where spec.backup is set",
		},
		{
			Manager: controlPlane, Group: backupGroup, Resource: "talosetcdbackups", Verb: "create",
			Reason: "made before a change, where spec.backup is set",
		},
		{
			Manager: controlPlane, Group: backupGroup, Resource: "talosetcdbackupschedules", Verb: "get",
			Reason: "tells how a backup is made, where spec.backup is set",
		},
		{
			Manager: controlPlane, Group: "bootstrap.cluster.x-k8s.io", Resource: "talosconfigs", Verb: "delete",
			Reason: "made for a Machine that was then not created, because the manager died in between",
		},
		{
			Manager: controlPlane, Group: infraGroup, Resource: "*", Verb: "delete",
			Reason: "made for a Machine that was then not created, because the manager died in between",
		},
		{
			Manager: infrastructure, Resource: "secrets", Verb: "update",
			Reason: "the client certificate of a host is replaced when half of its year is over",
		},
		{
			Manager: infrastructure, Resource: "services", Verb: "patch",
			Reason: "the Service of a control plane is mended when somebody has changed it",
		},
		{
			Manager: infrastructure, Resource: "persistentvolumeclaims", Verb: "create",
			Reason: "made for a machine whose data is on a volume; those of the scenarios have it in their Pods",
		},
		{
			Manager: infrastructure, Resource: "persistentvolumeclaims", Verb: "delete",
			Reason: "goes with a machine whose data is on a volume; those of the scenarios have it in their Pods",
		},
		{
			Manager: infrastructure, Group: "storage.k8s.io", Resource: "storageclasses", Verb: "get",
			Reason: "asked while a volume claim is not bound, to say why",
		},
		{
			Manager: infrastructure, Resource: "namespaces", Verb: "get",
			Reason: "asked when somebody deletes a host in use: its namespace may be going",
		},
		{
			Manager: infrastructure, Group: infraGroup, Resource: "talosclusters", Verb: "get",
			Reason: "read live when a pause begins or ends",
		},
	}
}
