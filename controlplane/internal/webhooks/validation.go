package webhooks

import (
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	controlplanev1 "github.com/capi-talos/capi-talos/controlplane/api/v1beta1"
	"github.com/capi-talos/capi-talos/controlplane/internal/naming"
)

// validate checks a TalosControlPlane by itself.
func (w *TalosControlPlane) validate(controlPlane *controlplanev1.TalosControlPlane) field.ErrorList {
	spec, path := &controlPlane.Spec, field.NewPath("spec")
	errs := validateReplicas(spec.Replicas, path.Child("replicas"))
	errs = append(errs, validateVersion(spec.Version, path.Child("version"))...)
	errs = append(errs, spec.MachineTemplate.ObjectMeta.Validate(path.Child("machineTemplate", "metadata"))...)
	errs = append(errs, validateConfig(w.Trials, &spec.TalosConfigSpec, path.Child("talosConfigSpec"))...)
	errs = append(errs, validateRollout(&spec.Rollout, ptr.Deref(spec.Replicas, controlplanev1.DefaultReplicas), path.Child("rollout"))...)
	errs = append(errs, validateNaming(spec.MachineNaming.Template, controlPlane.Name, path.Child("machineNaming", "template"))...)

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

func validateConfig(trials *configgen.Trials, spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
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

	return trials.TemplateErrors(spec, path, configgen.RoleControlPlane)
}

func validateRollout(spec *controlplanev1.TalosControlPlaneRolloutSpec, replicas int32, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	strategy, strategyPath := &spec.Strategy, path.Child("strategy")
	surge := strategy.RollingUpdate.MaxSurge
	switch {
	case surge == nil:
	case strategy.Type != controlplanev1.RollingUpdateStrategyType:
		errs = append(errs, field.Forbidden(strategyPath.Child("rollingUpdate"), "may only be set with type RollingUpdate"))
	case surge.Type != intstr.Int || (surge.IntVal != 0 && surge.IntVal != 1):
		errs = append(errs, field.Invalid(strategyPath.Child("rollingUpdate", "maxSurge"), surge.String(), "must be 0 or 1"))
	case surge.IntVal == 0 && replicas < 3:
		errs = append(errs, field.Invalid(strategyPath.Child("rollingUpdate", "maxSurge"), surge.String(),
			"must be 1 with fewer than 3 replicas: otherwise a rollout would begin by removing the quorum of etcd"))
	}

	return errs
}

// validateNaming checks that a naming template gives names that can be host
// names: Talos cuts a host name at its first dot, and etcd members of one name
// replace each other.
func validateNaming(template, controlPlane string, path *field.Path) field.ErrorList {
	if template != "" && !strings.Contains(template, ".random") {
		return field.ErrorList{field.Invalid(path, template, "must contain {{ .random }}")}
	}
	name, err := naming.Example(template, "cluster", controlPlane)
	if err != nil {
		return field.ErrorList{field.Invalid(path, template, err.Error())}
	}
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return field.ErrorList{field.Invalid(path, template,
			fmt.Sprintf("gives names like %q, which cannot be host names of nodes: %s", name, strings.Join(problems, "; ")))}
	}

	return nil
}
