package controllers

import (
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/etcd"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// memberGrace is for how long the grace period of a type has run for members, by their ID.
func (r *Reconciler) memberGrace(s *scope, kind controlplanev1.GracePeriodType, members []etcd.Member) map[uint64]time.Duration {
	var ids []string
	for _, member := range members {
		ids = append(ids, etcd.FormatID(member.ID))
	}
	durations := r.grace.Observe(client.ObjectKeyFromObject(s.controlPlane), kind, ids)
	known := map[uint64]time.Duration{}
	for _, member := range members {
		known[member.ID] = durations[etcd.FormatID(member.ID)]
	}

	return known
}

// named are the members of that name.
func named(members []etcd.Member, name string) []etcd.Member {
	return slices.DeleteFunc(slices.Clone(members), func(member etcd.Member) bool { return member.Hostname != name })
}
