package configgen

import (
	"encoding/json"
	"errors"
	"sync"
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

// Trials renders specs with made-up names and keys, and so finds what is wrong
// with a spec alone. It keeps the made-up keys, because making them takes a
// second. The zero value is ready; it is safe for concurrent use.
type Trials struct {
	mu   sync.Mutex
	made map[string]*secrets.Bundle
}

// Check renders the spec. Errors are those of Render.
func (t *Trials) Check(spec *bootstrapv1.TalosConfigSpec) error {
	input, err := FromSpec(spec)
	if err != nil {
		return err
	}
	if input.Secrets, err = t.secrets(spec.TalosVersion); err != nil {
		return &InvalidError{Err: err}
	}
	input.ClusterName = "trial"
	input.Endpoint = "https://192.0.2.1:6443"
	input.KubernetesVersion = constants.DefaultKubernetesVersion
	if spec.GenerateType == bootstrapv1.GenerateTypeControlPlane {
		input.Hostname = "trial"
	}
	_, err = Render(input)
	return err
}

// FieldErrors is Check for admission: it says which field is at fault when Talos would refuse
// what comes of it.
func (t *Trials) FieldErrors(spec *bootstrapv1.TalosConfigSpec, path *field.Path) field.ErrorList {
	err := t.Check(spec)
	var patchError *PatchError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &patchError):
		return field.ErrorList{field.Invalid(path.Child(string(patchError.Kind)).Index(patchError.Index), field.OmitValueType{}, err.Error())}
	case spec.GenerateType == bootstrapv1.GenerateTypeNone:
		return field.ErrorList{field.Invalid(path.Child("data"), field.OmitValueType{}, err.Error())}
	default:
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
	}
}

func (t *Trials) secrets(version string) (*secrets.Bundle, error) {
	contract, err := coreconfig.ParseContractFromVersion(version)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if made := t.made[contract.String()]; made != nil {
		return made, nil
	}
	made, err := secrets.NewBundle(secrets.NewFixedClock(time.Unix(0, 0)), contract)
	if err != nil {
		return nil, err
	}
	if t.made == nil {
		t.made = map[string]*secrets.Bundle{}
	}
	t.made[contract.String()] = made
	return made, nil
}
