package configgen

import (
	"fmt"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/network"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

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
