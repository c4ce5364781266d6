// Package talosclient is the one door of the managers to the Talos API.
//
// A connection reaches exactly one node: the Talos SDK shuffles several
// endpoints, so a call for one node would answer for another (design D12).
package talosclient

import (
	"context"
	"errors"
	"io"
	"net/url"
	"slices"
	"time"
)

// Port is the TCP port of the Talos API (apid, and the maintenance service).
const Port = 50000

// DefaultCallTimeout bounds every unary call that the caller has not bounded
// itself.
const DefaultCallTimeout = 10 * time.Second

// DefaultEtcdQuota is etcd's own limit of a database in bytes (etcd v3.6,
// server/storage/quota.go, DefaultQuotaBytes).
const DefaultEtcdQuota = 2 << 30

// Errors that callers tell apart. Everything else a Node returns is a
// transport or server error and means "unknown", never "absent".
var (
	// ErrNotInMaintenance says that a node answered, but not with the
	// anonymous maintenance service: it has a machine configuration.
	ErrNotInMaintenance = errors.New("node is not in maintenance mode")
	// ErrFingerprintMismatch says that the certificate of the maintenance
	// service is not the one the caller demanded. Nothing was sent.
	ErrFingerprintMismatch = errors.New("maintenance certificate does not match the expected fingerprint")
	// ErrUntrusted says that a node answered with a certificate, or refused
	// ours, under another CA: it belongs to another cluster, or is in
	// maintenance mode.
	ErrUntrusted = errors.New("node does not belong to the expected cluster")
	// ErrClock says that a node of the expected cluster answered, but that its
	// certificate is not valid now, or ours is not by the clock of the node: the
	// clocks differ by more than ClockLeeway, or one of them stood while a
	// certificate should have been renewed.
	ErrClock = errors.New("the clocks of the node and of the manager differ too much")
	// ErrAlreadyBootstrapped says that etcd on that node has data already.
	ErrAlreadyBootstrapped = errors.New("etcd is already bootstrapped on this node")
	// ErrBootstrapRefused says that a node refused to bootstrap etcd, or to take a
	// database for that, before it has touched it: it is not so far yet, or the caller may
	// not.
	ErrBootstrapRefused = errors.New("bootstrap refused")
	// ErrMemberNotFound says that etcd has no member of that ID.
	ErrMemberNotFound = errors.New("etcd has no such member")
	// ErrInvalidConfiguration says that Talos refused a machine configuration;
	// its message carries Talos' own words.
	ErrInvalidConfiguration = errors.New("machine configuration refused")
	// ErrRefused says that Talos has answered, and does not do what it was told; its
	// message carries Talos' own words.
	ErrRefused = errors.New("refused by Talos")
)

// Credentials authenticate against the Talos API of a configured node. All
// fields are PEM.
type Credentials struct {
	CA   []byte
	Cert []byte
	Key  []byte
}

// Dialer opens connections, each to one node. Whoever is given a Node closes it:
// that ends the connection, or gives it back where others use it, too.
type Dialer interface {
	// Maintenance connects anonymously to a machine in maintenance mode at
	// address (host without port). fingerprint, when not empty, must equal the
	// SHA-256 fingerprint of the server's certificate (see Fingerprint).
	// Errors: ErrNotInMaintenance, ErrFingerprintMismatch, or a transport error.
	Maintenance(ctx context.Context, address, fingerprint string) (Node, error)
	// Secure connects by mutual TLS to a configured node at address. The
	// connection is verified before it is returned: the node has a certificate of
	// the CA of creds. Which node of that cluster it is the caller finds out, for
	// the certificate need not name the address. Errors: ErrUntrusted, ErrClock, or
	// a transport error.
	Secure(ctx context.Context, address string, creds Credentials) (Node, error)
}

// Node is a connection to exactly one Talos node. Unary calls are bounded by
// DefaultCallTimeout when ctx has no earlier deadline.
type Node interface {
	// Fingerprint is the SHA-256 fingerprint of the certificate that the node
	// presented, as talosctl prints it (base64). A maintenance service makes a
	// new certificate at each boot, so there it identifies the boot.
	Fingerprint() string

	// Version is the Talos release that the node runs, with its "v".
	Version(ctx context.Context) (string, error)
	// MachineStatus is the stage of the node and what keeps it from being ready.
	MachineStatus(ctx context.Context) (MachineStatus, error)
	// WatchMachineStatus calls fn with the present status and then at each
	// change, until ctx ends or the connection breaks (the error says which).
	// It has no deadline of its own.
	WatchMachineStatus(ctx context.Context, fn func(MachineStatus)) error
	// Hardware is what the node found about itself. In a container disks and
	// SMBIOS are empty.
	Hardware(ctx context.Context) (Hardware, error)
	// Volumes are the volumes that Talos manages on this node, and what it has found
	// on its disks.
	Volumes(ctx context.Context) ([]Volume, error)
	// Addresses are the node's present addresses.
	Addresses(ctx context.Context) (Addresses, error)
	// ProviderID is the provider ID that the kubelet of the node is started with; empty
	// when it has none, or was not started yet. Only an administrator may read it.
	ProviderID(ctx context.Context) (string, error)
	// Hostname is the node's host name.
	Hostname(ctx context.Context) (string, error)

	// ApplyConfiguration hands a complete machine configuration over. In
	// maintenance mode it starts the installation. ErrInvalidConfiguration
	// wraps Talos' refusal.
	ApplyConfiguration(ctx context.Context, configuration []byte) error
	// Reset wipes the node and reboots it: always graceful=false, because a
	// graceful reset drains and leaves etcd by itself (design D8, D10).
	// ErrRefused when Talos answers that it does not; after every other error it
	// may do it nevertheless.
	Reset(ctx context.Context, options ResetOptions) error
	// WipeDevices wipes partitions and whole disks fast, and deletes the partitions
	// from the tables of their disks. devices are their paths. It is for maintenance mode,
	// where Talos permits it to everybody. ErrRefused wraps Talos' refusal: it
	// refuses a device that it uses as a volume, that is mounted, read-only, or part
	// of another device (Talos: internal/app/storaged/server.go, BlockDeviceWipe).
	WipeDevices(ctx context.Context, devices []string) error
	// Restart boots the node anew and wipes nothing. A container cannot boot: it ends,
	// and whoever runs it starts it again on its volumes.
	Restart(ctx context.Context) error

	// Bootstrap makes this node the first member of a new etcd cluster. It must
	// be called once in the life of a cluster; ErrAlreadyBootstrapped when
	// etcd's data directory has content, ErrBootstrapRefused when the node is not so
	// far. Talos does not protect against a second node. Each call that is not refused
	// stops etcd before it starts it anew; one that finds data only then leaves it
	// stopped until the next boot (internal/app/machined/pkg/system/services/etcd.go,
	// BootstrapEtcd). After any other error the call may have been carried out.
	Bootstrap(ctx context.Context) error
	// EtcdRecover sends a database of etcd to the node, which keeps it on EPHEMERAL, in
	// place of one that was sent before, for the next BootstrapFromSnapshot. The node does
	// not look at it. One that was not sent to its end, because it could not be read or ctx
	// has ended, is not kept (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go,
	// EtcdRecover). It has no deadline of its own, and ends with ctx. ErrBootstrapRefused
	// when the node is not so far, or the caller may not.
	EtcdRecover(ctx context.Context, database io.Reader) error
	// BootstrapFromSnapshot makes this node the first member of a new etcd cluster on the
	// database that EtcdRecover has sent. Its errors, and what is said there, are those of
	// Bootstrap. The hash check is skipped, because what is sent is a database that etcdutl
	// has made, which has no checksum at its end. Talos' service etcd restores it after
	// the call has answered, and deletes the file; when that fails, also because no file was
	// sent, etcd stays failed, and the file in place
	// (internal/app/machined/pkg/system/services/etcd.go, recoverFromSnapshot). It may be
	// called again then, unless the failed one has left data.
	BootstrapFromSnapshot(ctx context.Context) error
	// EtcdDataExists reports whether etcd's data directory has content.
	EtcdDataExists(ctx context.Context) (bool, error)
	// EtcdMembers is the member list as this node's etcd knows it.
	EtcdMembers(ctx context.Context) ([]EtcdMember, error)
	// EtcdStatus is the state of this node's own member.
	EtcdStatus(ctx context.Context) (EtcdStatus, error)
	// EtcdSpec is what the node starts etcd with. The zero value says that it does not
	// start one, or does not know its addresses (yet).
	EtcdSpec(ctx context.Context) (EtcdSpec, error)
	// EtcdAlarms are the alarms raised in the etcd cluster.
	EtcdAlarms(ctx context.Context) ([]EtcdAlarm, error)
	// EtcdForfeitLeadership has this node's member hand the leadership of etcd to
	// another one. It does nothing when the member does not lead.
	EtcdForfeitLeadership(ctx context.Context) error
	// EtcdLeave takes this node's own member out of etcd, stops etcd and wipes its
	// data; etcd is not started again before the next boot. Talos tries for up to
	// five minutes while etcd finds its cluster unhealthy
	// (internal/pkg/etcd/etcd.go, LeaveCluster), so the call is bounded by
	// LeaveTimeout instead of DefaultCallTimeout. Ending ctx ends the tries.
	EtcdLeave(ctx context.Context) error
	// EtcdRemoveMember takes another member out of etcd through this node's.
	// ErrMemberNotFound when there is no such member (any more).
	EtcdRemoveMember(ctx context.Context, id uint64) error
	// EtcdSnapshot streams the database of this node's own member as etcd gives it, with
	// the SHA-256 checksum of all before in the last 32 bytes. Where Talos cannot read on,
	// the stream ends as if it were complete
	// (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go, EtcdSnapshot):
	// the checksum alone tells. It has no deadline of its own, and ends with ctx. The
	// caller closes it, before the Node.
	EtcdSnapshot(ctx context.Context) (io.ReadCloser, error)
	// Services are the Talos system services of this node.
	Services(ctx context.Context) ([]Service, error)
	// StaticPods are the static Pods of this node as its kubelet reports them.
	StaticPods(ctx context.Context) ([]StaticPod, error)
	// Manifests are the Kubernetes objects that Talos itself brings into a cluster
	// (kube-proxy, CoreDNS, Flannel and what they need), as this control plane
	// node renders them: without Secrets, and without those of the user. Talos
	// makes what is missing of them, and never changes one that is there.
	Manifests(ctx context.Context) ([]map[string]any, error)

	// Close ends the connection, or gives it back where it is shared.
	Close() error
}

// Machine stages, as in runtime.MachineStatus of the Talos API.
const (
	StageUnknown      = "unknown"
	StageBooting      = "booting"
	StageInstalling   = "installing"
	StageMaintenance  = "maintenance"
	StageRunning      = "running"
	StageRebooting    = "rebooting"
	StageShuttingDown = "shutting down"
	StageResetting    = "resetting"
	StageUpgrading    = "upgrading"
)

// MachineStatus is runtime.MachineStatus of the Talos API.
type MachineStatus struct {
	// Stage is one of the Stage constants.
	Stage string
	// Ready reports whether nothing is unmet at this stage.
	Ready bool
	// Unmet names what is missing, as "name: reason", sorted.
	Unmet []string
}

// Hardware is what a machine tells about itself.
type Hardware struct {
	// Platform is the Talos platform ("metal", "container", …).
	Platform string
	// Mode is the platform's mode ("metal", "container", "cloud").
	Mode string
	// Architecture as in GOARCH; empty when the machine does not tell.
	Architecture string
	// SystemUUID and SerialNumber come from SMBIOS; empty in a container.
	SystemUUID   string
	SerialNumber string
	Manufacturer string
	ProductName  string
	// CPUs is the number of processor cores.
	CPUs int32
	// MemoryBytes is the main memory.
	MemoryBytes int64
	Disks       []Disk
	Links       []Link

	// Schematic is the ID of the Image Factory schematic of the image that the
	// machine has booted, 64 hexadecimal digits; empty when it tells none.
	Schematic string
	// ImageFactory is the host, and the port if any, of the factory that made that
	// image; empty when it tells none.
	ImageFactory string
	// SecureBoot reports whether the firmware has verified what it booted.
	SecureBoot bool
	// Installed reports whether Talos is installed on a disk; it is also true while the
	// machine does not know yet. Talos installs nothing then, whatever its configuration says.
	Installed bool
}

// Disk is a block device on which Talos could be installed.
type Disk struct {
	// DevPath is the path under /dev.
	DevPath string
	// SizeBytes is the capacity.
	SizeBytes  int64
	Model      string
	Serial     string
	WWID       string
	BusPath    string
	Transport  string
	Rotational bool
	ReadOnly   bool
	CDROM      bool
	Symlinks   []string
}

// Link is a physical network link.
type Link struct {
	Name string
	// HardwareAddress is the permanent address where there is one, else the
	// current one, in lower case.
	HardwareAddress string
	Up              bool
}

// Types of a Volume, as in block.VolumeStatus and block.DiscoveredVolume of the
// Talos API.
const (
	VolumePartition = "partition"
	VolumeDisk      = "disk"
)

// Volume is block.VolumeStatus of the Talos API, or block.DiscoveredVolume.
type Volume struct {
	// Discovered reports whether this was found on a disk, whether Talos manages it or
	// not; else it is a volume that Talos manages. What Talos manages on a disk is
	// there twice.
	Discovered bool
	// ID is the volume's ID; of a discovered one the label of the partition, empty
	// when it has none.
	ID string
	// Type is VolumePartition, VolumeDisk, or what else Talos calls it.
	Type string
	// Phase is the volume's phase ("ready", "waiting", "missing", …); empty for a
	// discovered one.
	Phase string
	// Location is the device or partition; empty for volumes that have none
	// (directories, tmpfs, everything in a container).
	Location string
	// ParentLocation is the disk of a partition; empty for a whole disk.
	ParentLocation string
	// PartitionIndex is the number of a partition on its disk, from 1; 0 for a whole
	// disk.
	PartitionIndex int
	// UUID is that of the partition in the partition table; of a whole disk it is
	// that of the content. Empty when there is none.
	UUID string
	// Filesystem is what was found on it; empty or "none" when nothing.
	Filesystem string
}

// ResetOptions say what a reset wipes.
type ResetOptions struct {
	// SystemLabels are the partitions to wipe, by the IDs of their volumes, in this
	// order (STATE, EPHEMERAL, user, raw and swap volumes). Empty wipes the whole
	// system disk on metal, and the whole disks of STATE and EPHEMERAL; a container
	// takes none. Talos refuses all of it when one volume has no location
	// (internal/app/machined/internal/server/v1alpha1/v1alpha1_server.go, Reset).
	SystemLabels []string
	// UserDisks are disks to wipe as a whole, by their paths. Talos refuses all of it
	// when one is unknown, read-only or the system disk.
	UserDisks []string
}

// EtcdMember is one entry of etcd's member list.
type EtcdMember struct {
	ID         uint64
	Hostname   string
	PeerURLs   []string
	ClientURLs []string
	Learner    bool
}

// IsAt reports whether one of the member's peer URLs has one of the hosts, however these
// write an address.
func (m EtcdMember) IsAt(hosts []string) bool {
	return slices.ContainsFunc(m.PeerURLs, func(peerURL string) bool {
		parsed, err := url.Parse(peerURL)
		return err == nil && slices.ContainsFunc(hosts, func(host string) bool { return SameHost(host, parsed.Hostname()) })
	})
}

// Addresses are the IP addresses of a node, each once: those at which it can be told
// from others. Left out are those that are link-local or loopback, that only the
// network of Talos (KubeSpan, SideroLink) or of Kubernetes knows (Pods, Services, links
// of the CNI and of kube-proxy), and virtual ones that wander from node to node.
type Addresses struct {
	// Node are those of the Node in Kubernetes, at most one of each family.
	Node []string
	// Internal are the others on its links.
	Internal []string
	// External are those that its surroundings translate to one of its own, as the
	// platform tells.
	External []string
}

// EtcdSpec is what a node starts etcd with.
type EtcdSpec struct {
	// Hostname is the host name of the node, which is the name of its member.
	Hostname string
	// AdvertisedAddresses are the hosts of the peer URLs with which the node joins,
	// those that cluster.etcd.advertisedSubnets of its configuration leaves. They need
	// not be addresses of the Node in Kubernetes.
	AdvertisedAddresses []string
	// QuotaBytes is the limit of the database in bytes: that of the machine
	// configuration (argument quota-backend-bytes of etcd), else DefaultEtcdQuota. 0 says
	// that there is none, or that it is unknown.
	QuotaBytes int64
	// Version is the version of etcd that the node runs or will run, without a "v": the tag
	// of its image. It is empty when that is unknown: the image is named by its digest alone,
	// or by a tag that is no version.
	Version string
}

// EtcdStatus is the state of one etcd member.
type EtcdStatus struct {
	MemberID         uint64
	Leader           uint64
	RaftTerm         uint64
	RaftIndex        uint64
	RaftAppliedIndex uint64
	DBSizeBytes      int64
	DBSizeInUseBytes int64
	Learner          bool
	Errors           []string
	// Version is the version of etcd that runs, without a "v".
	Version string
}

// EtcdAlarm is an alarm of one member ("NOSPACE", "CORRUPT").
type EtcdAlarm struct {
	MemberID uint64
	Alarm    string
}

// StaticPod is a static Pod of a control plane node.
type StaticPod struct {
	// Name is the Pod's name without namespace ("kube-apiserver-node1").
	Name string
	// Phase is the Pod's phase ("Running", …).
	Phase string
	// Ready is the Pod's Ready condition.
	Ready bool
}
