package controllers

import (
	"context"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	ctrl "sigs.k8s.io/controller-runtime"

	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/health"
)

// releaseHook tells whether our pre-terminate hook goes from a Machine that is
// being deleted. This release removes no etcd member from a control plane that
// stays, so the hook fails closed: it goes only when a person says so, or when
// the node never had a member.
func (r *Reconciler) releaseHook(ctx context.Context, s *scope, machine *clusterv1.Machine) bool {
	if s.deleting() {
		return true
	}
	if _, override := machine.Annotations[controlplanev1.EtcdPreTerminateHookOverrideAnnotation]; override {
		r.event(s, warning, "EtcdMemberAbandoned", "ReleaseHook", "Letting Machine %s go without care for its etcd member, as its annotation says", machine.Name)
		return true
	}
	if !neverHadMember(s, machine) {
		return false
	}
	ctrl.LoggerFrom(ctx).Info("Letting a Machine go that never had an etcd member", "Machine", machine.Name)

	return true
}

// neverHadMember tells that etcd never ran on a Machine's node: it has got no
// configuration, or nothing was ever bootstrapped. What its node says now does
// not count: one that has a configuration may join in the next moment.
func neverHadMember(s *scope, machine *clusterv1.Machine) bool {
	if machine.Spec.Bootstrap.DataSecretName == nil {
		return true
	}

	return s.intent() == nil && !s.initialized() && s.nodes[machine.Name].EtcdData != health.EtcdDataPresent
}
