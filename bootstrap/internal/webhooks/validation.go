// Package webhooks checks TalosConfigs and TalosConfigTemplates at admission.
package webhooks

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
)

// validateSpec checks all that a spec alone tells.
func validateSpec(trials *configgen.Trials, spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
	if spec.GenerateType == "" {
		return field.ErrorList{field.Required(path.Child("generateType"), "must be controlplane, worker or none")}
	}
	return trials.FieldErrors(spec, path)
}
