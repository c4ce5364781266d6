// Package configgen renders Talos machine configurations. It is pure.
//
// A configuration is rendered in two steps (design D5): Render makes what the
// cluster and its Machine say, for the bootstrap provider; Overlay adds what
// only the host knows, for the infrastructure provider. Both end with the
// validation that Talos itself would do.
package configgen

import (
	"encoding/json"
	"errors"
	"fmt"

	jsonpatch "github.com/evanphx/json-patch"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// Role is the role of a machine.
type Role string

const (
	// RoleControlPlane is a control plane machine.
	RoleControlPlane Role = "controlplane"
	// RoleWorker is a worker.
	RoleWorker Role = "worker"
)

// Input is everything a machine configuration is rendered from.
type Input struct {
	// Role is the role of the machine. With Data it is ignored.
	Role Role
	// Contract is the configuration contract, such as v1.13.
	Contract string
	// Data is a complete configuration to pass through instead of generating.
	Data []byte

	// ClusterName is the name of the cluster.
	ClusterName string
	// Endpoint is the control plane endpoint, such as https://10.0.0.1:6443.
	Endpoint string
	// KubernetesVersion is the Machine's version, with or without its "v".
	KubernetesVersion string
	// APIServerPort is the port at which API servers listen; 0 means 6443.
	APIServerPort int32
	// PodCIDRs and ServiceCIDRs are the networks of the cluster; empty means
	// Talos' defaults.
	PodCIDRs, ServiceCIDRs []string
	// ServiceDomain is the DNS domain of the cluster; empty means cluster.local.
	ServiceDomain string
	// Secrets is the key material of the cluster.
	Secrets *secrets.Bundle

	// JSONPatches are RFC 6902 operations on the v1alpha1 document, each the
	// JSON of one operation.
	JSONPatches [][]byte
	// StrategicPatches are Talos strategic merge patches.
	StrategicPatches []string
	// Hostname is the host name to set; empty leaves it to patches and
	// platform. A control plane machine must have one.
	Hostname string
}

// errNoMachineConfiguration says that data is no complete configuration.
var errNoMachineConfiguration = errors.New("it has no v1alpha1 document with a machine type of controlplane or worker")

// Render makes the configuration of a machine without what only its host
// knows. Errors are *PatchError where a patch is at fault, else *InvalidError.
func Render(in Input) ([]byte, error) {
	cfg, err := base(in)
	if err != nil {
		return nil, err
	}
	if cfg, err = applyJSON(cfg, in.JSONPatches); err != nil {
		return nil, err
	}
	for i, patch := range in.StrategicPatches {
		if cfg, err = applyStrategic(cfg, KindStrategicPatch, i, patch); err != nil {
			return nil, err
		}
	}
	if in.Hostname != "" {
		if cfg, err = setHostname(cfg, in.Hostname); err != nil {
			return nil, err
		}
	}
	return finish(cfg, platformAny{})
}

// base is the configuration before any patch.
func base(in Input) (coreconfig.Provider, error) {
	if len(in.Data) > 0 {
		cfg, err := load(in.Data)
		if err != nil {
			return nil, &InvalidError{Err: fmt.Errorf("data is no machine configuration: %w", err)}
		}
		return cfg, nil
	}
	cfg, err := generated(in)
	if err != nil {
		return nil, &InvalidError{Err: fmt.Errorf("generating the configuration: %w", err)}
	}
	return cfg, nil
}

func generated(in Input) (coreconfig.Provider, error) {
	contract, err := coreconfig.ParseContractFromVersion(in.Contract)
	if err != nil {
		return nil, err
	}
	options := []generate.Option{
		generate.WithVersionContract(contract),
		generate.WithSecretsBundle(in.Secrets),
		// A disk is never guessed, and the installer follows the release of
		// the host (design D4, D5).
		generate.WithInstallDisk(""),
		generate.WithInstallImage(""),
	}
	if in.APIServerPort != 0 {
		options = append(options, generate.WithLocalAPIServerPort(int(in.APIServerPort)))
	}
	if in.ServiceDomain != "" {
		options = append(options, generate.WithDNSDomain(in.ServiceDomain))
	}
	input, err := generate.NewInput(in.ClusterName, in.Endpoint, trimV(in.KubernetesVersion), options...)
	if err != nil {
		return nil, err
	}
	if len(in.PodCIDRs) > 0 {
		input.PodNet = in.PodCIDRs
	}
	if len(in.ServiceCIDRs) > 0 {
		input.ServiceNet = in.ServiceCIDRs
	}
	role := machine.TypeWorker
	if in.Role == RoleControlPlane {
		role = machine.TypeControlPlane
	}
	return input.Config(role)
}

func trimV(version string) string {
	if len(version) > 0 && version[0] == 'v' {
		return version[1:]
	}
	return version
}

// load reads a complete configuration and refuses a fragment.
func load(data []byte) (coreconfig.Provider, error) {
	cfg, err := configloader.NewFromBytes(data)
	if err != nil {
		return nil, err
	}
	if v1 := cfg.RawV1Alpha1(); v1 == nil || v1.MachineConfig == nil || roleOf(cfg) == "" {
		return nil, errNoMachineConfiguration
	}
	return cfg, nil
}

func roleOf(cfg coreconfig.Provider) Role {
	switch cfg.Machine().Type() {
	case machine.TypeControlPlane, machine.TypeInit:
		return RoleControlPlane
	case machine.TypeWorker:
		return RoleWorker
	case machine.TypeUnknown:
	}
	return ""
}

// applyJSON applies RFC 6902 operations to the v1alpha1 document alone: Talos
// takes them on configurations of one document only, and every generated one
// has several.
func applyJSON(cfg coreconfig.Provider, operations [][]byte) (coreconfig.Provider, error) {
	if len(operations) == 0 {
		return cfg, nil
	}
	document, err := container.NewV1Alpha1(cfg.RawV1Alpha1()).EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	for i, operation := range operations {
		patch, err := jsonpatch.DecodePatch(fmt.Appendf(nil, "[%s]", operation))
		if err != nil {
			return nil, &PatchError{Kind: KindJSONPatch, Index: i, Err: err}
		}
		if document, err = configpatcher.JSON6902(document, patch); err != nil {
			return nil, &PatchError{Kind: KindJSONPatch, Index: i, Path: pathOf(operation), Err: err}
		}
		if _, err := configloader.NewFromBytes(document); err != nil {
			return nil, &PatchError{Kind: KindJSONPatch, Index: i, Path: pathOf(operation), Err: err}
		}
	}
	patched, err := configloader.NewFromBytes(document)
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	return replaceV1Alpha1(cfg, patched.RawV1Alpha1())
}

func pathOf(operation []byte) string {
	var fields struct {
		Path string `json:"path"`
	}
	if json.Unmarshal(operation, &fields) != nil {
		return ""
	}
	return fields.Path
}

func replaceV1Alpha1(cfg coreconfig.Provider, document *v1alpha1.Config) (coreconfig.Provider, error) {
	documents := cfg.Clone().Documents()
	for i := range documents {
		if documents[i].Kind() == v1alpha1.Version {
			documents[i] = document
		}
	}
	return container.New(documents...)
}

func applyStrategic(cfg coreconfig.Provider, kind PatchKind, index int, text string) (coreconfig.Provider, error) {
	patch, err := configpatcher.LoadPatch([]byte(text))
	if err != nil {
		return nil, &PatchError{Kind: kind, Index: index, Err: err}
	}
	strategic, ok := patch.(configpatcher.StrategicMergePatch)
	if !ok {
		return nil, &PatchError{Kind: kind, Index: index, Err: errors.New("it is a JSON patch; use configPatches for those")}
	}
	hostname := hostnameOf(cfg)
	patched, err := configpatcher.StrategicMerge(cfg, strategic)
	if err != nil {
		return nil, &PatchError{Kind: kind, Index: index, Err: err}
	}
	if roleOf(patched) == RoleControlPlane && hostnameOf(patched) != hostname {
		return nil, &PatchError{Kind: kind, Index: index, Err: errHostnameOfControlPlane}
	}
	return patched, nil
}

// errHostnameOfControlPlane: Talos removes an etcd member of the name with
// which a node joins, so these names are ours alone (design D3).
var errHostnameOfControlPlane = errors.New("it sets the host name of a control plane machine, which must be the name of its Machine; remove it from the patch")

// hostnameOf is the host name that a configuration states, empty if none.
func hostnameOf(cfg coreconfig.Provider) string {
	for _, document := range cfg.Documents() {
		if hostname, ok := document.(*network.HostnameConfigV1Alpha1); ok && hostname.ConfigHostname != "" {
			return hostname.ConfigHostname
		}
	}
	if legacy := legacyHostname(cfg.RawV1Alpha1()); legacy != "" {
		return legacy
	}
	return ""
}

func legacyHostname(document *v1alpha1.Config) string {
	if document == nil || document.MachineConfig == nil || document.MachineConfig.MachineNetwork == nil { //nolint:staticcheck // As below.
		return ""
	}
	return document.MachineConfig.MachineNetwork.NetworkHostname //nolint:staticcheck // Users still state it.
}

// setHostname states the host name in a document of its own: all supported
// contracts have it.
func setHostname(cfg coreconfig.Provider, hostname string) (coreconfig.Provider, error) {
	if legacy := legacyHostname(cfg.RawV1Alpha1()); legacy != "" && legacy != hostname {
		return nil, &InvalidError{Err: fmt.Errorf("machine.network.hostname is %q, but the machine is to be named %q: remove it from the configuration", legacy, hostname)}
	}
	stated := network.NewHostnameConfigV1Alpha1()
	stated.ConfigHostname = hostname

	var documents []coreconfigDocument
	for _, document := range cfg.Clone().Documents() {
		if _, isHostname := document.(*network.HostnameConfigV1Alpha1); isHostname {
			continue
		}
		if v1, isV1 := document.(*v1alpha1.Config); isV1 && legacyHostname(v1) != "" {
			v1.MachineConfig.MachineNetwork.NetworkHostname = "" //nolint:staticcheck // Replaced by the document.
		}
		documents = append(documents, document)
	}
	named, err := container.New(append(documents, stated)...)
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	return named, nil
}

// finish validates as Talos does and encodes.
func finish(cfg coreconfig.Provider, platform platform) ([]byte, error) {
	encoded, err := cfg.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	// What is handed over is what must be valid: read it back, as Talos will.
	read, err := load(encoded)
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	if _, err := read.ValidateAsClient(platform); err != nil {
		return nil, &InvalidError{Err: err}
	}
	return encoded, nil
}
