package configgen

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
	"github.com/siderolabs/talos/pkg/machinery/config/types/k8s"
	"github.com/siderolabs/talos/pkg/machinery/config/types/runtime"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
	corev1 "k8s.io/api/core/v1"
)

// HostOverlay is what only the host knows.
type HostOverlay struct {
	// StrategicPatches are the host's own patches, applied first.
	StrategicPatches []string
	// ProviderID is given to the kubelet.
	ProviderID string
	// InstallDisk is a device path, InstallDiskSelector what a disk must be
	// like; at most one of them. With neither the configuration's own stays.
	InstallDisk         string
	InstallDiskSelector *DiskSelector
	// InstallImage is the installer image; empty keeps the configuration's own.
	InstallImage string
	// Network is the host's static network; nil keeps the configuration's own.
	Network *StaticNetwork
	// Container reports whether Talos runs in a container: nothing is installed.
	Container bool
	// EtcdAddress is an address that leads to etcd of the machine for as long as
	// the machine lives, whatever addresses it has in between, such as that of a
	// Service; the zero value is none. It is put on the loopback link, and etcd
	// tells the other members this address alone and listens at all addresses of
	// its family, whatever advertisedSubnets, listenSubnets and subnet of
	// cluster.etcd say. It never is the address of the Node: it is excluded from
	// the subnets that are stated for that, else from those that Talos chooses
	// from by itself. Refused are an address in the cluster's own networks, and
	// arguments of etcd that state its address. Workers ignore it.
	EtcdAddress netip.Addr
	// SystemReserved is what the kubelet keeps back of the node's resources: cpu,
	// memory, ephemeral-storage or pid. What the configuration itself reserves
	// of a resource stays; where it reserves nothing, Talos' defaults hold for
	// what is not named here. Empty changes nothing.
	SystemReserved corev1.ResourceList
	// EndpointNames are the DNS names and addresses by which the control plane
	// endpoint is reached. They are added to the names in the certificate of the
	// API server, not to those of the Talos API. Workers ignore them.
	EndpointNames []string
	// ContactNames are the DNS names and addresses by which the Talos API of the
	// machine is reached: Talos knows the machine's own addresses only, not a name
	// or an address before NAT. They are added to the names in the certificate of
	// the Talos API, for talosctl; the managers need none.
	ContactNames []string
	// Release is the Talos release that will read the configuration, such as
	// v1.13.9: what it does not know is refused. Empty judges by none.
	Release string
}

// DiskSelector says what the install disk must be like; all that is set must
// hold.
type DiskSelector struct {
	MinSizeBytes, MaxSizeBytes         int64
	Model, Serial, WWID, UUID, BusPath string
	// Type is ssd, hdd, nvme or sd.
	Type string
}

// Overlay adds what only the host knows to a rendered configuration, in the
// form that the configuration already uses: a section of the v1alpha1 document
// or a document of its own, because Talos refuses both at once. Errors as of
// Render.
func Overlay(configuration []byte, host HostOverlay) ([]byte, error) {
	reader, err := releaseOf(host.Release)
	if err != nil {
		return nil, &InvalidError{Err: fmt.Errorf("reading the release of the host: %w", err)}
	}
	cfg, err := load(configuration)
	if err != nil {
		return nil, &InvalidError{Err: err}
	}
	patched := &patching{states: []coreconfig.Provider{cfg}, rules: rules{platform: platformAny{}, reader: reader, limit: maxRead}}
	if host.Container {
		patched.rules.platform = platformContainer{}
	}
	if err := patched.applyStrategic(KindHostPatch, host.StrategicPatches); err != nil {
		return nil, err
	}
	cfg = patched.last()
	for _, step := range []func(coreconfig.Provider, HostOverlay) (coreconfig.Provider, error){
		setProviderID, setInstall, setNetwork, setEtcdAddress, setSystemReserved, setEndpointNames, setContactNames,
	} {
		if cfg, err = step(cfg, host); err != nil {
			return nil, &InvalidError{Err: err}
		}
	}
	return patched.finish(cfg)
}

func has[D coreconfigDocument](cfg coreconfig.Provider) bool {
	for _, document := range cfg.Documents() {
		if _, found := document.(D); found {
			return true
		}
	}
	return false
}

// usesDocuments reports whether a configuration states the install as a document:
// it does so from contract 1.14 on.
func usesDocuments(cfg coreconfig.Provider) bool {
	if has[*runtime.UnattendedInstallConfigV1Alpha1](cfg) {
		return true
	}
	return cfg.RawV1Alpha1().MachineConfig.MachineInstall == nil && has[*k8s.KubeletConfigV1Alpha1](cfg) //nolint:staticcheck // The form before 1.14.
}

func setInstall(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if host.Container || (host.InstallDisk == "" && host.InstallDiskSelector == nil && host.InstallImage == "") {
		return cfg, nil
	}
	if host.InstallDisk != "" && host.InstallDiskSelector != nil {
		return nil, errors.New("the host states both an install disk and a disk selector")
	}
	if usesDocuments(cfg) {
		return setInstallDocument(cfg, host)
	}
	return cfg.PatchV1Alpha1(func(document *v1alpha1.Config) error {
		if document.MachineConfig.MachineInstall == nil { //nolint:staticcheck // The form before 1.14.
			document.MachineConfig.MachineInstall = &v1alpha1.InstallConfig{} //nolint:staticcheck // As above.
		}
		install := document.MachineConfig.MachineInstall //nolint:staticcheck // As above.
		if host.InstallImage != "" {
			install.InstallImage = host.InstallImage
		}
		switch {
		case host.InstallDisk != "":
			install.InstallDisk, install.InstallDiskSelector = host.InstallDisk, nil
		case host.InstallDiskSelector != nil:
			selector, err := host.InstallDiskSelector.section()
			if err != nil {
				return err
			}
			install.InstallDisk, install.InstallDiskSelector = "", selector
		}
		return nil
	})
}

// errNoDisk: the document of an installer image must say where to install.
var errNoDisk = errors.New("the host names an installer image, but neither the host nor UnattendedInstallConfig or machine.install of the configuration names the disk to install to: set install.disk or install.diskSelector of the host")

func setInstallDocument(cfg coreconfig.Provider, host HostOverlay) (coreconfig.Provider, error) {
	if !has[*runtime.UnattendedInstallConfigV1Alpha1](cfg) {
		extended, err := container.New(append(cfg.Clone().Documents(), runtime.NewUnattendedInstallConfigV1Alpha1())...)
		if err != nil {
			return nil, err
		}
		cfg = extended
	}
	return container.PatchDocument(cfg, func(document *runtime.UnattendedInstallConfigV1Alpha1) error {
		if host.InstallImage != "" {
			document.Installer.Image = host.InstallImage
		}
		expression := ""
		switch {
		case host.InstallDisk != "":
			expression = fmt.Sprintf("disk.dev_path == %q || %q in disk.symlinks", host.InstallDisk, host.InstallDisk)
		case host.InstallDiskSelector != nil:
			expression = host.InstallDiskSelector.expression()
		case document.ProvisioningSpec.IsZero():
			return errNoDisk
		default:
			return nil
		}
		match, err := cel.ParseBooleanExpression(expression, celenv.DiskLocator())
		if err != nil {
			return fmt.Errorf("building the disk selector: %w", err)
		}
		document.ProvisioningSpec.DiskSelector.Match = match
		return nil
	})
}

// section is the selector in the form of the v1alpha1 document.
func (s *DiskSelector) section() (*v1alpha1.InstallDiskSelector, error) {
	selector := &v1alpha1.InstallDiskSelector{
		Model: s.Model, Serial: s.Serial, WWID: s.WWID, UUID: s.UUID, BusPath: s.BusPath,
		Type: v1alpha1.InstallDiskType(s.Type),
	}
	switch {
	case s.MinSizeBytes > 0 && s.MaxSizeBytes > 0:
		return nil, errors.New("machine.install.diskSelector, in which this contract states the disk, takes one bound of the size, not two: leave one out; UnattendedInstallConfig, from contract v1.14 on, takes both")
	case s.MinSizeBytes > 0:
		return selector, sized(selector, fmt.Sprintf(">= %d", s.MinSizeBytes))
	case s.MaxSizeBytes > 0:
		return selector, sized(selector, fmt.Sprintf("<= %d", s.MaxSizeBytes))
	}
	return selector, nil
}

func sized(selector *v1alpha1.InstallDiskSelector, condition string) error {
	selector.Size = &v1alpha1.InstallDiskSizeMatcher{}
	return selector.Size.UnmarshalYAML(func(into any) error { *into.(*string) = condition; return nil }) //nolint:forcetypeassert // It decodes a string.
}

// expression is the selector as CEL over a disk.
func (s *DiskSelector) expression() string {
	terms := []string{"!disk.readonly", "!disk.cdrom"}
	for _, term := range []struct{ field, value string }{
		{"model", s.Model}, {"serial", s.Serial}, {"wwid", s.WWID}, {"uuid", s.UUID}, {"bus_path", s.BusPath},
	} {
		if term.value != "" {
			terms = append(terms, fmt.Sprintf("glob(%q, disk.%s)", term.value, term.field))
		}
	}
	if s.MinSizeBytes > 0 {
		terms = append(terms, fmt.Sprintf("disk.size >= %du", s.MinSizeBytes))
	}
	if s.MaxSizeBytes > 0 {
		terms = append(terms, fmt.Sprintf("disk.size <= %du", s.MaxSizeBytes))
	}
	switch s.Type {
	case "ssd":
		terms = append(terms, "!disk.rotational", `disk.transport != "nvme"`, `disk.transport != "mmc"`)
	case "hdd":
		terms = append(terms, "disk.rotational")
	case "nvme":
		terms = append(terms, `disk.transport == "nvme"`)
	case "sd":
		terms = append(terms, `disk.transport == "mmc"`)
	}
	return strings.Join(terms, " && ")
}
