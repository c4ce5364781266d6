package webhooks

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
	"github.com/capi-talos/capi-talos/infrastructure/internal/installdisk"
	"github.com/capi-talos/capi-talos/infrastructure/internal/taloshost"
)

var (
	// release is the name of a Talos release. Names of images have no place for build
	// metadata.
	release = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$`)
	// image is the name of an image, as the CNCF Distribution project has it.
	image = regexp.MustCompile(`^(([a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]+)?/)?` +
		`[a-z0-9]+(([.]|__?|-+)[a-z0-9]+)*(/[a-z0-9]+(([.]|__?|-+)[a-z0-9]+)*)*` +
		`(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha(256:[0-9a-f]{64}|512:[0-9a-f]{128}))?$`)
)

// validateMachine checks what the kind's own rules cannot.
func validateMachine(spec *infrav1.TalosMachineSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Metal != nil {
		selector := spec.Metal.HostSelector
		errs = metav1validation.ValidateLabelSelector(&selector, metav1validation.LabelSelectorValidationOptions{}, path.Child("metal", "hostSelector"))
		errs = append(errs, validateTalos(spec.Metal.Talos, path.Child("metal", "talos"))...)
	}
	if spec.Container != nil {
		errs = append(errs, validateContainer(spec.Container, path.Child("container"))...)
		errs = append(errs, validateTalos(spec.Container.Talos, path.Child("container", "talos"))...)
	}

	return errs
}

// validateTalos checks the names of a release and of its image.
func validateTalos(talos infrav1.TalosReleaseSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if talos.Version != "" && !release.MatchString(talos.Version) {
		errs = append(errs, field.Invalid(path.Child("version"), talos.Version, "must be a semantic version with the prefix v and without build metadata, for example v1.13.9"))
	}

	return append(errs, validateImage("", talos.Image, path.Child("image"))...)
}

// validateImage checks the name of an image, if there is one, unless it was there before.
func validateImage(before, name string, path *field.Path) field.ErrorList {
	if name == before || image.MatchString(name) {
		return nil
	}

	return field.ErrorList{field.Invalid(path, name, "must be an image without scheme and white space, for example factory.talos.dev/metal-installer/<schematic>:v1.13.9")}
}

// validateContainer checks what would else be found out when the Pod is made.
func validateContainer(spec *infrav1.TalosMachineContainerSpec, path *field.Path) field.ErrorList {
	errs := append(metav1validation.ValidateLabels(spec.NodeSelector, path.Child("nodeSelector")), spec.PodMetadata.Validate(path.Child("podMetadata"))...)
	resources := path.Child("resources")
	for _, name := range slices.Sorted(maps.Keys(spec.Resources.Limits)) {
		if limit := spec.Resources.Limits[name]; limit.Sign() <= 0 {
			errs = append(errs, field.Invalid(resources.Child("limits").Key(string(name)), limit.String(), "must be more than nothing"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Resources.Requests)) {
		request := spec.Resources.Requests[name]
		limit, limited := spec.Resources.Limits[name]
		if request.Sign() < 0 || (limited && request.Cmp(limit) > 0) {
			errs = append(errs, field.Invalid(resources.Child("requests").Key(string(name)), request.String(), "must not be negative, nor more than the limit"))
		}
	}
	if claim := spec.Storage.VolumeClaim; spec.Storage.Type == infrav1.ContainerStorageVolumeClaim && claim.Size.Sign() <= 0 {
		errs = append(errs, field.Invalid(path.Child("storage", "volumeClaim", "size"), claim.Size.String(), "must be more than nothing, for example 20Gi"))
	}

	return errs
}

func validateCluster(spec *infrav1.TalosClusterSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if spec.Container != nil {
		errs = apivalidation.ValidateAnnotations(spec.Container.ControlPlaneService.Annotations, path.Child("container", "controlPlaneService", "annotations"))
	}
	if endpoint := spec.ControlPlaneEndpoint; !endpoint.IsZero() {
		errs = append(errs, validateAddress(endpoint.Host, path.Child("controlPlaneEndpoint", "host"))...)
	}

	return errs
}

// validateAddress takes an IP address that one machine can have, or a DNS name.
func validateAddress(address string, path *field.Path) field.ErrorList {
	const wanted = "must be an IP address or a DNS name, without scheme, port, prefix length and zone"
	if ip, err := netip.ParseAddr(address); err == nil {
		if ip.Zone() != "" || ip.IsUnspecified() || ip.IsMulticast() {
			return field.ErrorList{field.Invalid(path, address, wanted+", that one machine can have")}
		}
		return nil
	}
	onlyDigits := strings.Trim(address, "0123456789.") == ""
	if problems := validation.IsDNS1123Subdomain(address); len(problems) > 0 || onlyDigits {
		return field.ErrorList{field.Invalid(path, address, wanted)}
	}

	return nil
}

// validateHost checks a TalosHost by itself, and beside what it was before.
func validateHost(before, spec *infrav1.TalosHostSpec) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("spec")
	for i, address := range spec.Addresses {
		errs = append(errs, validateAddress(address, path.Child("addresses").Index(i))...)
	}
	if !apiequality.Semantic.DeepEqual(before.Identity, spec.Identity) {
		errs = append(errs, validateIdentity(&spec.Identity, path.Child("identity"))...)
	}
	errs = append(errs, validateImage(before.Install.Image, spec.Install.Image, path.Child("install", "image"))...)
	errs = append(errs, validateSelector(spec.Install.DiskSelector, path.Child("install", "diskSelector"))...)
	errs = append(errs, validatePatches(before.StrategicPatches, spec.StrategicPatches, path.Child("strategicPatches"))...)

	return append(errs, validateNetwork(&before.Network, &spec.Network, path.Child("network"))...)
}

// validateIdentity refuses what identifies no machine.
func validateIdentity(named *infrav1.HostIdentity, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if named.SerialNumber != "" && named.UUID == "" && len(named.MACAddresses) == 0 {
		errs = append(errs, field.Invalid(path, named.SerialNumber, "serialNumber tells no machine from others by itself: name uuid or macAddresses, too"))
	}
	if named.UUID != "" && !taloshost.UsableUUID(named.UUID) && len(named.MACAddresses) == 0 {
		errs = append(errs, field.Invalid(path.Child("uuid"), named.UUID,
			"is a placeholder that many machines share, and identifies none; name identity.macAddresses instead"))
	}
	for i, mac := range named.MACAddresses {
		if !taloshost.UsableMAC(mac) {
			errs = append(errs, field.Invalid(path.Child("macAddresses").Index(i), mac, "is a placeholder, and identifies no link; name the address that is printed on the card"))
		}
	}

	return errs
}

// validateSelector refuses a selector that no disk can be like.
func validateSelector(selector infrav1.HostDiskSelector, path *field.Path) field.ErrorList {
	if least, most := selector.MinSizeGiB, selector.MaxSizeGiB; least != nil && most != nil && *least > *most {
		return field.ErrorList{field.Invalid(path.Child("minSizeGiB"), *least, fmt.Sprintf("must not be more than maxSizeGiB (%d)", *most))}
	}
	if _, err := installdisk.OfHost(infrav1.HostInstall{DiskSelector: selector}, configgen.InstallDocument); err != nil {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
	}

	return nil
}

// validatePatches checks what a patch alone tells; whether it fits is known once
// there is a machine configuration. What was there before stays.
func validatePatches(before, patches []string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, text := range patches {
		if slices.Contains(before, text) {
			continue
		}
		if err := configgen.CheckPatch(text); err != nil {
			errs = append(errs, field.Invalid(path.Index(i), "", err.Error()))
			continue
		}
		patch, err := configpatcher.LoadPatch([]byte(text))
		if err != nil {
			errs = append(errs, field.Invalid(path.Index(i), "", err.Error()))
			continue
		}
		if _, ok := patch.(configpatcher.StrategicMergePatch); !ok {
			errs = append(errs, field.Invalid(path.Index(i), "", "must be a strategic merge patch, not a JSON patch"))
		}
	}

	return errs
}

// validateNetwork refuses what no machine can have. What was there before stays.
func validateNetwork(before, network *infrav1.HostNetwork, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, address := range network.Addresses {
		if problem := problemOfStatic(address); problem != "" && !slices.Contains(before.Addresses, address) {
			errs = append(errs, field.Invalid(path.Child("addresses").Index(i), address, problem))
		}
	}
	isKept := network.Gateway == before.Gateway && slices.Equal(network.Addresses, before.Addresses)
	if problem := problemOfGateway(network); problem != "" && !isKept {
		errs = append(errs, field.Invalid(path.Child("gateway"), network.Gateway, problem))
	}
	for i, address := range network.Nameservers {
		if _, err := netip.ParseAddr(address); err != nil {
			errs = append(errs, field.Invalid(path.Child("nameservers").Index(i), address, "must be an IP address"))
		}
	}

	return errs
}

const ofNoMachine = "must be an address that one machine can have"

// problemOfStatic says why a machine cannot have a static address; empty where it can.
func problemOfStatic(address string) string {
	prefix, err := netip.ParsePrefix(address)
	switch {
	case err != nil:
		return "must be an IP address with its prefix length, for example 192.0.2.10/24"
	case isOfNoMachine(prefix.Addr()):
		return ofNoMachine
	case isOfNetwork(prefix):
		return "is the address of a network, not of a machine: name the machine's own, for example 192.0.2.10/24"
	}

	return ""
}

// problemOfGateway says why the gateway of a network cannot be one; empty where it can, or
// there is none. One outside the network can, and so can a link-local router of IPv6.
func problemOfGateway(network *infrav1.HostNetwork) string {
	if network.Gateway == "" {
		return ""
	}
	gateway, err := netip.ParseAddr(network.Gateway)
	if err != nil {
		return "must be an IP address"
	}
	if isOfNoMachine(gateway) {
		return ofNoMachine
	}
	isReached := gateway.Is6() && gateway.IsLinkLocalUnicast()
	for _, address := range network.Addresses {
		prefix, err := netip.ParsePrefix(address)
		if err == nil && prefix.Addr() == gateway {
			return "is the machine's own address"
		}
		// An address that is none is told by itself.
		isReached = isReached || err != nil || prefix.Addr().Is4() == gateway.Is4()
	}
	if !isReached {
		return "is of a family of which no address is stated"
	}

	return ""
}

func isOfNoMachine(address netip.Addr) bool {
	return address.IsUnspecified() || address.IsLoopback() || address.IsMulticast()
}

// isOfNetwork reports whether an address is the first or the last one of its network, which
// no machine has in IPv4 but where there are two or one.
func isOfNetwork(prefix netip.Prefix) bool {
	const pointToPoint = 31
	address := prefix.Addr()
	if !address.Is4() || prefix.Bits() >= pointToPoint {
		return false
	}

	return address == prefix.Masked().Addr() || !prefix.Contains(address.Next())
}
