// Package configgen renders Talos machine configurations. It is pure.
//
// A configuration is rendered in two steps (design D5): Render makes what the
// cluster and its Machine say, for the bootstrap provider; Overlay adds what
// only the host knows, for the infrastructure provider. Both end with the
// validation that Talos itself would do.
package configgen

import (
	"cmp"
	"errors"
	"fmt"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/yamlsize"
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
	// WithoutFlannel leaves out the CNI that Talos installs by default. Of workers and
	// of Data it means nothing.
	WithoutFlannel bool
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

	// isTrial reports whether names and keys are made up: what is the user's may be like
	// the real ones.
	isTrial bool
}

var (
	// errNoMachineConfiguration says that data is no complete configuration.
	errNoMachineConfiguration = errors.New("it has no v1alpha1 document with a machine type of controlplane or worker")
	// errInit: such a machine bootstraps etcd by itself, perhaps a second time.
	errInit = errors.New("its machine type is init: use controlplane, the control plane provider bootstraps etcd")
)

// Render makes the configuration of a machine without what only its host
// knows. Errors are *PatchError where a patch is at fault, else *InvalidError.
func Render(in Input) ([]byte, error) {
	_, rendered, err := render(in)
	return rendered, err
}

// render is Render, and tells of the patches as well.
func render(in Input) (*patching, []byte, error) {
	contract, err := releaseOf(in.Contract)
	if err != nil {
		return nil, nil, &InvalidError{Err: fmt.Errorf("reading the contract: %w", err)}
	}
	cfg, err := base(in)
	if err != nil {
		return nil, nil, err
	}
	patched := &patching{
		states: []coreconfig.Provider{cfg}, isTrial: in.isTrial, isData: len(in.Data) > 0,
		rules: rules{platform: platformAny{}, reader: contract, limit: maxBytes},
	}
	if err := patched.applyJSON(in.JSONPatches); err != nil {
		return nil, nil, err
	}
	if err := patched.applyStrategic(KindStrategicPatch, in.StrategicPatches); err != nil {
		return nil, nil, err
	}
	cfg = patched.last()
	hostname := in.Hostname
	if in.isTrial && in.Hostname != "" {
		hostname = cmp.Or(sectionHostname(cfg), hostname)
	}
	if hostname != "" {
		if cfg, err = patched.name(hostname); err != nil {
			return nil, nil, err
		}
	}
	rendered, err := patched.finish(cfg)
	return patched, rendered, err
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
	if in.Role != RoleControlPlane {
		return input.Config(machine.TypeWorker)
	}
	cfg, err := input.Config(machine.TypeControlPlane)
	if err != nil || !in.WithoutFlannel {
		return cfg, err
	}
	return withoutFlannel(cfg)
}

func trimV(version string) string {
	if len(version) > 0 && version[0] == 'v' {
		return version[1:]
	}
	return version
}

// load reads a complete configuration and refuses a fragment.
func load(data []byte) (coreconfig.Provider, error) {
	if err := yamlsize.CheckIndented(data, maxRead); err != nil {
		return nil, err
	}
	cfg, err := configloader.NewFromBytes(data)
	if err != nil {
		return nil, err
	}
	if err := checkKeys(cfg); err != nil {
		return nil, err
	}
	if typeOf(cfg) == machine.TypeInit {
		return nil, errInit
	}
	if roleOf(cfg) == "" {
		return nil, errNoMachineConfiguration
	}
	return cfg, nil
}

// typeOf is the type of the machine that a configuration states; TypeUnknown
// when it states none.
func typeOf(cfg coreconfig.Provider) machine.Type {
	v1 := cfg.RawV1Alpha1()
	if v1 == nil || v1.MachineConfig == nil {
		return machine.TypeUnknown
	}
	return v1.MachineConfig.Type()
}

func roleOf(cfg coreconfig.Provider) Role {
	switch typeOf(cfg) {
	case machine.TypeControlPlane:
		return RoleControlPlane
	case machine.TypeWorker:
		return RoleWorker
	case machine.TypeInit, machine.TypeUnknown:
	}
	return ""
}
