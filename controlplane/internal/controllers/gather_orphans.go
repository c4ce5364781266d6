package controllers

import (
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	"github.com/capi-talos/capi-talos/controlplane/internal/nodes"
)

// lasting is for how long members have been as the tracker follows, without a name or
// without a Machine. After a restart of the manager that begins anew: such a member is
// removed later then.
func lasting(tracker *nodes.Since, s *scope, members []etcd.Member) map[uint64]time.Duration {
	var ids []string
	for _, member := range members {
		ids = append(ids, etcd.FormatID(member.ID))
	}
	since := tracker.Observe(client.ObjectKeyFromObject(s.controlPlane), ids)
	known := map[uint64]time.Duration{}
	for _, member := range members {
		known[member.ID] = since[etcd.FormatID(member.ID)]
	}

	return known
}

// named are the members of that name.
func named(members []etcd.Member, name string) []etcd.Member {
	return slices.DeleteFunc(slices.Clone(members), func(member etcd.Member) bool { return member.Name != name })
}
