package webhooks

import (
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
)

// validate checks a TalosControlPlane by itself; before is nil for a new one.
func (w *TalosControlPlane) validate(before, after *controlplanev1.TalosControlPlane) field.ErrorList {
	stored, spec, path := ptr.Deref(before, controlplanev1.TalosControlPlane{}).Spec, &after.Spec, field.NewPath("spec")
	machines, template := path.Child("machineTemplate"), &spec.MachineTemplate
	errs := validateReplicas(spec.Replicas, path.Child("replicas"))
	errs = append(errs, validateVersion(spec.Version, path.Child("version"))...)
	errs = append(errs, template.ObjectMeta.Validate(machines.Child("metadata"))...)
	errs = append(errs, validateAnnotations(stored.MachineTemplate.ObjectMeta.Annotations, template.ObjectMeta.Annotations, machines.Child("metadata", "annotations"))...)
	errs = append(errs, validateTaints(stored.MachineTemplate.Spec.Taints, template.Spec.Taints, machines.Child("spec", "taints"))...)
	if before == nil || !apiequality.Semantic.DeepEqual(stored.TalosConfigSpec, spec.TalosConfigSpec) {
		errs = append(errs, validateConfig(&spec.TalosConfigSpec, path.Child("talosConfigSpec"))...)
	}
	errs = append(errs, validateRollout(&spec.Rollout, path.Child("rollout"))...)
	if before == nil || stored.MachineNaming != spec.MachineNaming {
		errs = append(errs, validateNaming(spec.MachineNaming.Template, after.Name, path.Child("machineNaming", "template"))...)
	}

	return errs
}

// validateReplicas checks a number of control plane machines, in the object and
// in its scale.
func validateReplicas(replicas *int32, path *field.Path) field.ErrorList {
	switch {
	case replicas == nil:
		return nil
	case *replicas <= 0:
		return field.ErrorList{field.Invalid(path, *replicas, "must be at least 1: use an odd number (1, 3, 5, ...)")}
	case *replicas%2 == 0:
		return field.ErrorList{field.Invalid(path, *replicas,
			fmt.Sprintf("must be odd, because each control plane machine is an etcd member: use %d or %d", *replicas-1, *replicas+1))}
	default:
		return nil
	}
}

func validateVersion(version string, path *field.Path) field.ErrorList {
	if !strings.HasPrefix(version, "v") {
		return field.ErrorList{field.Invalid(path, version, "must be a semantic version with the prefix v, for example v1.36.3")}
	}
	if _, err := semver.Parse(version[1:]); err != nil {
		return field.ErrorList{field.Invalid(path, version, "must be a semantic version with the prefix v, for example v1.36.3: "+err.Error())}
	}

	return nil
}

func validateConfig(spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch spec.GenerateType {
	case "", bootstrapv1.GenerateTypeControlPlane:
	case bootstrapv1.GenerateTypeNone:
		if spec.Data == "" {
			errs = append(errs, field.Required(path.Child("data"), "must hold the configuration of a control plane node when generateType is none"))
		}
	default:
		errs = append(errs, field.Invalid(path.Child("generateType"), spec.GenerateType,
			"must be controlplane, or none with the configuration of a control plane node in data"))
	}
	if spec.Hostname.Source != "" && spec.Hostname.Source != bootstrapv1.HostnameSourceMachineName {
		errs = append(errs, field.Invalid(path.Child("hostname", "source"), spec.Hostname.Source,
			"must be MachineName for a control plane: Talos identifies etcd members by host name when they join"))
	}
	if len(errs) > 0 {
		return errs
	}
	spec = spec.DeepCopy()
	if spec.GenerateType == "" {
		spec.GenerateType = bootstrapv1.GenerateTypeControlPlane
	}

	_, errs = configgen.JudgeTemplate(spec, path, configgen.RoleControlPlane)

	return errs
}

func validateRollout(spec *controlplanev1.TalosControlPlaneRolloutSpec, path *field.Path) field.ErrorList {
	surge := spec.Strategy.RollingUpdate.MaxSurge
	if surge == nil || surge.Type == intstr.Int && (surge.IntVal == 0 || surge.IntVal == 1) {
		return nil
	}

	return field.ErrorList{field.Invalid(path.Child("strategy", "rollingUpdate", "maxSurge"), surge.String(), "must be 0 or 1")}
}

// warnRollout warns of a maxSurge that does not count. It is no refusal: kubectl
// scale takes replicas away without asking here, and what is there must still be
// changed and moved.
func warnRollout(spec *controlplanev1.TalosControlPlaneSpec) admission.Warnings {
	surge := spec.Rollout.Strategy.RollingUpdate.MaxSurge
	if surge == nil || surge.IntVal != 0 || ptr.Deref(spec.Replicas, controlplanev1.DefaultReplicas) >= controlplanev1.MinReplicasWithoutSurge {
		return nil
	}

	return admission.Warnings{fmt.Sprintf("spec.rollout.strategy.rollingUpdate.maxSurge: 0 counts as 1 with fewer than %d replicas: "+
		"otherwise a rollout would begin by removing the quorum of etcd", controlplanev1.MinReplicasWithoutSurge)}
}

// validateNaming checks that a naming template gives names that can be host
// names: Talos cuts a host name at its first dot, and etcd members of one name
// replace each other. The name of the Cluster is not known here; the names that
// come of it are checked when they are made.
func validateNaming(template, controlPlane string, path *field.Path) field.ErrorList {
	if template != "" && !strings.Contains(template, ".random") {
		return field.ErrorList{field.Invalid(path, template, "must contain {{ .random }}")}
	}
	if err := naming.Check(template, "cluster", controlPlane); err != nil {
		return field.ErrorList{field.Invalid(path, template, err.Error())}
	}

	return nil
}
