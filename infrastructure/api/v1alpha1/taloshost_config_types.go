package v1alpha1

// HostIdentity tells a machine from all others.
// +kubebuilder:validation:MinProperties=1
type HostIdentity struct {
	// uuid is the SMBIOS system UUID. Where it is set, and no placeholder, it
	// decides. By default the hardware addresses do.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$')",message="must be a UUID"
	// +kubebuilder:validation:MinLength=36
	// +kubebuilder:validation:MaxLength=36
	UUID string `json:"uuid,omitempty"`

	// serialNumber is the SMBIOS serial number. Where it is set the machine must
	// have the same; it does not identify a machine by itself. By default it is
	// not looked at.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	SerialNumber string `json:"serialNumber,omitempty"`

	// macAddresses are hardware addresses of the machine's links. They identify
	// a machine without a usable UUID, which must have all of them. By default there
	// are none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=17
	// +kubebuilder:validation:items:MaxLength=17
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.matches('^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$'))",message="must be hardware addresses such as 52:54:00:12:34:56"
	MACAddresses []string `json:"macAddresses,omitempty"`
}

// HostNetwork is the static network configuration of one link of a machine,
// which is named or found by its hardware address. More than one link, bonds
// and VLANs belong into strategicPatches.
// +kubebuilder:validation:XValidation:rule="has(self.interface) != has(self.macAddress)",message="exactly one of interface and macAddress must be set"
type HostNetwork struct {
	// interface is the name of the link, for example eno1. Exactly one of interface
	// and macAddress is set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface,omitempty"`

	// macAddress is the permanent hardware address of the link, for example
	// 52:54:00:12:34:56.
	// +optional
	// +kubebuilder:validation:MinLength=17
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}$')",message="must be a hardware address such as 52:54:00:12:34:56"
	MACAddress string `json:"macAddress,omitempty"`

	// addresses are the addresses of the link in CIDR notation, for example
	// 192.0.2.10/24.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=4
	// +kubebuilder:validation:items:MaxLength=49
	Addresses []string `json:"addresses,omitempty"`

	// gateway is the IP address of the default gateway. By default there is none
	// on this link.
	// +optional
	// +kubebuilder:validation:MinLength=2
	// +kubebuilder:validation:MaxLength=45
	Gateway string `json:"gateway,omitempty"`

	// nameservers are the IP addresses of the DNS servers. By default the
	// machine configuration, DHCP or Talos says them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=2
	// +kubebuilder:validation:items:MaxLength=45
	Nameservers []string `json:"nameservers,omitempty"`
}

// HostInstall says where and what is installed.
// +kubebuilder:validation:MinProperties=1
// +kubebuilder:validation:XValidation:rule="!(has(self.disk) && has(self.diskSelector))",message="disk and diskSelector exclude each other"
type HostInstall struct {
	// disk is the path of the disk to install on, for example /dev/nvme0n1 or a
	// link below /dev/disk. By default the machine configuration names it; a
	// host with disks and none named is not claimed.
	// +optional
	// +kubebuilder:validation:MinLength=6
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/dev/')",message="must be a path below /dev"
	Disk string `json:"disk,omitempty"`

	// diskSelector selects the disk to install on by what it is; exactly one disk must
	// fit. By default there is none.
	// +optional
	DiskSelector HostDiskSelector `json:"diskSelector,omitempty,omitzero"`

	// image is the installer image. By default it is the one of the TalosMachine,
	// else of the machine configuration, else the one of the release, the platform
	// and the schematic that the machine has booted.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`
}

// HostDiskType is a kind of disk.
// +kubebuilder:validation:Enum=HDD;SSD;NVMe;SD
type HostDiskType string

// Kinds of disks.
const (
	// HostDiskHDD is a rotating disk.
	HostDiskHDD HostDiskType = "HDD"
	// HostDiskSSD is a solid state disk that is no NVMe disk. Before contract v1.14
	// Talos counts NVMe disks too.
	HostDiskSSD HostDiskType = "SSD"
	// HostDiskNVMe is an NVMe disk.
	HostDiskNVMe HostDiskType = "NVMe"
	// HostDiskSD is an SD card.
	HostDiskSD HostDiskType = "SD"
)

// HostDiskSelector selects a disk by what it is: all that is set must match.
// +kubebuilder:validation:MinProperties=1
type HostDiskSelector struct {
	// model is a pattern of the disk's model, in which * stands for anything. By
	// default any fits.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Model string `json:"model,omitempty"`

	// serial is a pattern of the disk's serial number. By default any fits.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Serial string `json:"serial,omitempty"`

	// wwid is a pattern of the disk's WWID. By default any fits.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	WWID string `json:"wwid,omitempty"`

	// busPath is a pattern of the disk's bus path. By default any fits.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	BusPath string `json:"busPath,omitempty"`

	// type is the kind of the disk: HDD, SSD, NVMe or SD. Before contract v1.14 SSD
	// fits NVMe disks as well. By default any fits.
	// +optional
	Type HostDiskType `json:"type,omitempty"`

	// minSizeGiB is the smallest size of the disk, in GiB. Before contract v1.14 it
	// excludes maxSizeGiB. By default there is no limit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinSizeGiB *int32 `json:"minSizeGiB,omitempty"`

	// maxSizeGiB is the largest size of the disk, in GiB. By default there is no
	// limit.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxSizeGiB *int32 `json:"maxSizeGiB,omitempty"`
}

// SecretReference names a Secret of the same namespace.
type SecretReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}
