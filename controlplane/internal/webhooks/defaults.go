// Package webhooks defaults and validates TalosControlPlanes, their scale, and
// TalosControlPlaneTemplates. All of it depends on the object alone.
package webhooks

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
)

// defaultControlPlane fills in what a TalosControlPlane leaves open. Doing it
// again changes nothing.
func defaultControlPlane(spec *controlplanev1.TalosControlPlaneSpec) {
	if spec.Replicas == nil {
		spec.Replicas = ptr.To(controlplanev1.DefaultReplicas)
	}
	defaultConfig(&spec.TalosConfigSpec)
	defaultRollout(&spec.Rollout)
	defaultEtcd(&spec.Etcd)
}

// defaultTemplate does the same for a template.
func defaultTemplate(spec *controlplanev1.TalosControlPlaneTemplateResourceSpec) {
	defaultConfig(&spec.TalosConfigSpec)
	defaultRollout(&spec.Rollout)
	defaultEtcd(&spec.Etcd)
}

func defaultConfig(spec *bootstrapv1.TalosConfigSpec) {
	if spec.GenerateType == "" {
		spec.GenerateType = bootstrapv1.GenerateTypeControlPlane
	}
	if spec.GenerateType == bootstrapv1.GenerateTypeControlPlane && spec.Hostname.Source == "" {
		spec.Hostname.Source = bootstrapv1.HostnameSourceMachineName
	}
}

// defaultRollout also takes away what another type than the strategy's needs: it
// may be what was filled in before the type changed.
func defaultRollout(rollout *controlplanev1.TalosControlPlaneRolloutSpec) {
	strategy := &rollout.Strategy
	if strategy.Type == "" {
		strategy.Type = controlplanev1.RollingUpdateStrategyType
	}
	switch {
	case strategy.Type != controlplanev1.RollingUpdateStrategyType:
		strategy.RollingUpdate = controlplanev1.TalosControlPlaneRolloutStrategyRollingUpdate{}
	case strategy.RollingUpdate.MaxSurge == nil:
		strategy.RollingUpdate.MaxSurge = ptr.To(intstr.FromInt32(1))
	}
}

func defaultEtcd(etcd *controlplanev1.TalosControlPlaneEtcdSpec) {
	if etcd.LeaveTimeoutSeconds == nil {
		etcd.LeaveTimeoutSeconds = ptr.To(controlplanev1.DefaultEtcdLeaveTimeoutSeconds)
	}
}
