package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TalosHostStatus defines the observed state of a TalosHost.
// +kubebuilder:validation:MinProperties=1
type TalosHostStatus struct {
	// state is the state of the host.
	// +optional
	State HostState `json:"state,omitempty"`

	// conditions are the observations of the host's present state. Known types
	// are Available, Reachable, IdentityVerified, ConsumerPresent, Released,
	// Deleting and Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// address is the address at which the machine answered last.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address,omitempty"`

	// maintenanceCertFingerprint is the fingerprint of the certificate that the
	// machine's maintenance service presented last. It is anonymous: compare it
	// with the machine's console before you trust it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	MaintenanceCertFingerprint string `json:"maintenanceCertFingerprint,omitempty"`

	// hardware is what the machine has told about itself in maintenance mode.
	// +optional
	Hardware HostHardware `json:"hardware,omitempty,omitzero"`
}

// HostHardware is what a machine has told about itself.
// +kubebuilder:validation:MinProperties=1
type HostHardware struct {
	// talosVersion is the Talos release that the machine runs.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	TalosVersion string `json:"talosVersion,omitempty"`

	// platform is the Talos platform, for example metal or container.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Platform string `json:"platform,omitempty"`

	// architecture is the processor architecture, for example amd64.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Architecture string `json:"architecture,omitempty"`

	// systemUUID is the SMBIOS system UUID, also when it identifies nothing.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	SystemUUID string `json:"systemUUID,omitempty"`

	// serialNumber is the SMBIOS serial number.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	SerialNumber string `json:"serialNumber,omitempty"`

	// manufacturer is the SMBIOS manufacturer.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Manufacturer string `json:"manufacturer,omitempty"`

	// productName is the SMBIOS product name.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	ProductName string `json:"productName,omitempty"`

	// cpus is the number of processor cores.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CPUs *int32 `json:"cpus,omitempty"`

	// memoryBytes is the main memory, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MemoryBytes *int64 `json:"memoryBytes,omitempty"`

	// schematic is the ID of the Image Factory schematic of the image that the
	// machine has booted. The default installer image is of the same.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Schematic string `json:"schematic,omitempty"`

	// imageFactory is the host, and the port if any, of the factory that made that
	// image, where the image names it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ImageFactory string `json:"imageFactory,omitempty"`

	// secureBoot reports whether the firmware has verified what it booted.
	// +optional
	SecureBoot *bool `json:"secureBoot,omitempty"`

	// installed reports whether Talos is installed on a disk. It keeps its release then:
	// Talos installs nothing over an installation.
	// +optional
	Installed *bool `json:"installed,omitempty"`

	// disksOmitted is how many more disks the machine has than are listed in disks.
	// Listed are those first that install of the host names, then the smallest.
	// +optional
	// +kubebuilder:validation:Minimum=1
	DisksOmitted *int32 `json:"disksOmitted,omitempty"`

	// linksOmitted is how many more links the machine has than are listed in links.
	// Listed are those first by which it is identified.
	// +optional
	// +kubebuilder:validation:Minimum=1
	LinksOmitted *int32 `json:"linksOmitted,omitempty"`

	// disks are the disks, without those that cannot be written.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Disks []HostDisk `json:"disks,omitempty"`

	// links are the physical network links.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Links []HostLink `json:"links,omitempty"`
}

// HostDisk is a disk of a machine.
type HostDisk struct {
	// devPath is the path of the disk, for example /dev/sda.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	DevPath string `json:"devPath,omitempty"`

	// sizeBytes is the capacity, in bytes.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SizeBytes *int64 `json:"sizeBytes,omitempty"`

	// model is the model of the disk.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model,omitempty"`

	// serial is the serial number of the disk.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Serial string `json:"serial,omitempty"`

	// wwid is the WWID of the disk.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	WWID string `json:"wwid,omitempty"`

	// transport is how the disk is attached, for example nvme or sata.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Transport string `json:"transport,omitempty"`

	// busPath is where the disk is attached.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	BusPath string `json:"busPath,omitempty"`

	// rotational reports whether the disk rotates.
	// +optional
	Rotational *bool `json:"rotational,omitempty"`

	// symlinks are the links below /dev/disk that lead to the disk.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Symlinks []string `json:"symlinks,omitempty"`
}

// HostLink is a physical network link of a machine.
type HostLink struct {
	// name is the name of the link.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name,omitempty"`

	// hardwareAddress is the hardware address, in lower case.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	HardwareAddress string `json:"hardwareAddress,omitempty"`
}
