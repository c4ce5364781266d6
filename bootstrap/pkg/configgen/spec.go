package configgen

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"k8s.io/apimachinery/pkg/util/validation/field"

	bootstrapv1 "github.com/capi-talos/capi-talos/bootstrap/api/v1beta1"
)

// FromSpec is what a TalosConfigSpec alone says of a configuration. Its error
// is a *PatchError.
func FromSpec(spec *bootstrapv1.TalosConfigSpec) (Input, error) {
	input := Input{
		Contract:         spec.TalosVersion,
		StrategicPatches: spec.StrategicPatches,
		WithoutFlannel:   spec.CNI == bootstrapv1.CNINone,
	}
	switch spec.GenerateType {
	case bootstrapv1.GenerateTypeControlPlane:
		input.Role = RoleControlPlane
	case bootstrapv1.GenerateTypeWorker:
		input.Role = RoleWorker
	case bootstrapv1.GenerateTypeNone:
		input.Data = []byte(spec.Data)
	}
	for i := range spec.ConfigPatches {
		operation, err := json.Marshal(&spec.ConfigPatches[i])
		if err != nil {
			return Input{}, &PatchError{Kind: KindJSONPatch, Index: i, Err: err}
		}
		input.JSONPatches = append(input.JSONPatches, operation)
	}
	return input, nil
}

// check renders a spec with made-up names and keys, and so finds what is wrong with it
// alone. Errors are those of Render.
func check(spec *bootstrapv1.TalosConfigSpec) (*patching, error) {
	input, err := FromSpec(spec)
	if err != nil {
		return nil, err
	}
	if input.Secrets, err = trialSecrets(spec.TalosVersion); err != nil {
		return nil, &InvalidError{Err: err}
	}
	input.ClusterName = "trial"
	input.Endpoint = "https://192.0.2.1:6443"
	input.KubernetesVersion = constants.DefaultKubernetesVersion
	if spec.GenerateType == bootstrapv1.GenerateTypeControlPlane || spec.Hostname.Source != "" {
		input.Hostname = "trial"
	}
	input.isTrial = true
	patched, _, err := render(input)
	return patched, err
}

// Contracts are the configuration contracts that can be rendered.
func Contracts() []string { return []string{"v1.12", "v1.13", "v1.14"} }

// FieldErrors renders a spec with made-up names and keys, for admission: it says which
// field is at fault, and what to state instead. generateType must have been defaulted.
func FieldErrors(spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
	_, errs := trial(spec, path)
	return errs
}

// trial is FieldErrors, and what was rendered.
func trial(spec *bootstrapv1.TalosConfigSpec, path *field.Path) (*patching, field.ErrorList) {
	if errs := fieldErrors(spec, path); len(errs) > 0 {
		return nil, errs
	}
	patched, err := check(spec)
	var patchError *PatchError
	switch {
	case err == nil:
		return patched, nil
	case errors.As(err, &patchError):
		return nil, field.ErrorList{field.Invalid(path.Child(string(patchError.Kind)).Index(patchError.Index), field.OmitValueType{}, err.Error())}
	case spec.GenerateType == bootstrapv1.GenerateTypeNone:
		return nil, field.ErrorList{field.Invalid(path.Child("data"), field.OmitValueType{}, err.Error())}
	default:
		return nil, field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
	}
}

// JudgeTemplate is FieldErrors and MissingValues for a spec that several machines are made
// from. role is what they are to be; empty where that is not known. A control plane
// of data that names its host is refused: its machines would all have one name,
// and Talos removes an etcd member of the name with which a node joins. Workers of one
// name get a warning.
func JudgeTemplate(spec *bootstrapv1.TalosConfigSpec, path *field.Path, role Role) (warnings []string, errs field.ErrorList) {
	patched, errs := trial(spec, path)
	if errs = append(MissingValues(spec, path), errs...); len(errs) > 0 {
		return nil, errs
	}
	if errs = roleErrors(spec, path, role); len(errs) > 0 {
		return nil, errs
	}
	return sharedName(spec, path, patched), nil
}

// roleErrors refuses a template of another role than wanted, and data that names the host of
// control planes.
func roleErrors(spec *bootstrapv1.TalosConfigSpec, path *field.Path, role Role) field.ErrorList {
	if spec.GenerateType != bootstrapv1.GenerateTypeNone {
		if role != "" && string(role) != string(spec.GenerateType) {
			return field.ErrorList{field.Invalid(path.Child("generateType"), spec.GenerateType, fmt.Sprintf("must be %s, or none with the configuration of a %s in data", role, role))}
		}
		return nil
	}
	described, err := Describe([]byte(spec.Data))
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path.Child("data"), field.OmitValueType{}, err.Error())}
	case role != "" && described.Role != role:
		return field.ErrorList{field.Invalid(path.Child("data"), field.OmitValueType{}, fmt.Sprintf("configures a %s, but the machines are to be a %s: state the configuration of a %s", described.Role, role, role))}
	case described.Role == RoleControlPlane && described.Hostname != "":
		return field.ErrorList{field.Invalid(path.Child("data"), field.OmitValueType{},
			fmt.Sprintf("sets the host name %q of control plane machines, which must be the names of their Machines; remove it", described.Hostname))}
	}
	return nil
}

// sharedName says which host name a spec of workers sets that hostname.source does not
// replace: with more than one machine they would be one Node.
func sharedName(spec *bootstrapv1.TalosConfigSpec, path *field.Path, patched *patching) []string {
	if roleOf(patched.last()) != RoleWorker {
		return nil
	}
	stated := hostnameOf
	if spec.Hostname.Source != "" {
		stated = sectionHostname
	}
	hostname := stated(patched.last())
	if hostname == "" {
		return nil
	}
	at := path.Child("data")
	if name, isPatch := patched.by(stated); isPatch {
		at = path.Child(string(name.kind)).Index(name.index)
	}
	return []string{fmt.Sprintf("%s: sets the host name %q of every machine made from the template: more than one would be one Node; "+
		"remove it, and set hostname.source, or name the host in the TalosHost's strategicPatches", at, hostname)}
}

// fieldErrors are what the fields tell without rendering. Most of it the schema
// of the kind refuses before.
func fieldErrors(spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	supported := strings.Join(Contracts(), ", ")
	contract, err := coreconfig.ParseContractFromVersion(spec.TalosVersion)
	switch {
	case spec.TalosVersion == "":
		errs = append(errs, field.Required(path.Child("talosVersion"), "must be the configuration contract: one of "+supported))
	case err != nil || !slices.Contains(Contracts(), contract.String()):
		errs = append(errs, field.NotSupported(path.Child("talosVersion"), spec.TalosVersion, Contracts()))
	}
	types := []bootstrapv1.GenerateType{bootstrapv1.GenerateTypeControlPlane, bootstrapv1.GenerateTypeWorker, bootstrapv1.GenerateTypeNone}
	switch {
	case spec.GenerateType == "":
		errs = append(errs, field.Required(path.Child("generateType"), "must be controlplane, worker or none"))
	case !slices.Contains(types, spec.GenerateType):
		errs = append(errs, field.NotSupported(path.Child("generateType"), spec.GenerateType, types))
	case spec.GenerateType == bootstrapv1.GenerateTypeNone && spec.Data == "":
		errs = append(errs, field.Required(path.Child("data"), "must be a complete machine configuration when generateType is none"))
	case spec.GenerateType != bootstrapv1.GenerateTypeNone && spec.Data != "":
		errs = append(errs, field.Forbidden(path.Child("data"), "is for generateType none alone"))
	}
	if spec.CNI != "" && spec.GenerateType != bootstrapv1.GenerateTypeControlPlane {
		errs = append(errs, field.Forbidden(path.Child("cni"), "is for generateType controlplane alone: only control plane machines install a CNI"))
	}
	if spec.GenerateType == bootstrapv1.GenerateTypeControlPlane && spec.Hostname.Source == bootstrapv1.HostnameSourceInfrastructureName {
		errs = append(errs, field.Invalid(path.Child("hostname", "source"), spec.Hostname.Source,
			"must be MachineName for a control plane: Talos removes an etcd member of the name with which a node joins"))
	}
	return errs
}

// MissingValues refuses JSON patches that need a value and have none: it would count as null,
// which empties the field. A null that is meant cannot be told from one that is missing.
func MissingValues(spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, patch := range spec.ConfigPatches {
		needed := slices.Contains([]string{"add", "replace", "test"}, patch.Op)
		if needed && (patch.Value == nil || len(patch.Value.Raw) == 0 || string(patch.Value.Raw) == "null") {
			errs = append(errs, field.Required(path.Child("configPatches").Index(i).Child("value"), "add, replace and test need one, and none is null; to take a field away use op: remove"))
		}
	}
	return errs
}

// trialSecrets are keys of a cluster that there is not. That of service accounts is an ECDSA
// key: an RSA key takes seconds to make, and more than the ten that an API server waits for a
// webhook where the processor is short.
func trialSecrets(version string) (*secrets.Bundle, error) {
	contract, err := coreconfig.ParseContractFromVersion(version)
	if err != nil {
		return nil, err
	}
	return secrets.NewBundle(secrets.NewFixedClock(time.Unix(0, 0)), contract, secrets.WithECDSAServiceAccountKey())
}
