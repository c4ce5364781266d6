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
	return sectionHostname(cfg)
}

// sectionHostname is the host name of a configuration that setHostname does not replace.
func sectionHostname(cfg coreconfig.Provider) string { return legacyHostname(cfg.RawV1Alpha1()) }

func legacyHostname(document *v1alpha1.Config) string {
	if document == nil || document.MachineConfig == nil || document.MachineConfig.MachineNetwork == nil { //nolint:staticcheck // As below.
		return ""
	}
	return document.MachineConfig.MachineNetwork.NetworkHostname //nolint:staticcheck // Users still state it.
}

// setHostname states the host name in a document of its own: all supported
// contracts have it.
func setHostname(cfg coreconfig.Provider, hostname string) (coreconfig.Provider, error) {
	if legacy := sectionHostname(cfg); legacy != "" && legacy != hostname {
		return nil, fmt.Errorf("machine.network.hostname is %q, but hostname.source decides the name of the machine; remove one of them", legacy)
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
	return container.New(append(documents, stated)...)
}
