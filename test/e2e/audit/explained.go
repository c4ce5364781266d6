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
func Explained() []Explanation {
	return []Explanation{
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
		{
			Manager: "*", Group: "*", Resource: "*", Verb: "create", Beside: "patch",
			Reason: "asked for, too, when server-side apply makes an object; the request is a patch",
		},
	}
}
