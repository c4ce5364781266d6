package archive

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/capi-talos/capi-talos/backup/internal/pipeline"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/condition"
)

// Format is what manifests are written in.
const Format = "capi-talos.backup/v1"

// The codecs.
const (
	// CodecZstd is compressed.
	CodecZstd = "zstd"
	// CodecZstdAge is compressed, and encrypted then.
	CodecZstdAge = "zstd+age"
)

const (
	// maxManifest and maxSecrets are the most that is read as a manifest and as secrets.
	maxManifest = 1 << 20
	maxSecrets  = 1 << 20
	// maxBytes is the most that a file of a backup has: a hundred times what etcd is meant for.
	maxBytes = 1 << 40
	// maxQuoted is how much of a string of a manifest an error repeats, in bytes.
	maxQuoted = 64
)

// Manifest says what a backup is. It holds nothing secret, and is readable without keys.
type Manifest struct {
	// Format is the version of this format.
	Format string `json:"format"`
	// Name and UID are those of the TalosEtcdBackup.
	Name string `json:"name"`
	UID  string `json:"uid"`
	// Cluster is whose etcd it is of.
	Cluster Cluster `json:"cluster"`
	// Schedule is the name of the TalosEtcdBackupSchedule that has had it made; empty when
	// somebody has made it by hand.
	Schedule string `json:"schedule,omitempty"`
	// TalosVersion, KubernetesVersion and EtcdVersion are those that ran.
	TalosVersion      string `json:"talosVersion"`
	KubernetesVersion string `json:"kubernetesVersion"`
	EtcdVersion       string `json:"etcdVersion"`
	// Member is the member of etcd that has given the snapshot, Machine its Machine, and
	// RaftIndex how far it had come before.
	Member    string `json:"member"`
	Machine   string `json:"machine"`
	RaftIndex uint64 `json:"raftIndex"`
	// Begun and Ended are when the snapshot was.
	Begun time.Time `json:"begun"`
	Ended time.Time `json:"ended"`
	// Codec is what was made of the snapshot, and Recipients the public keys of who can
	// read it.
	Codec      string   `json:"codec"`
	Recipients []string `json:"recipients,omitempty"`
	// Data is the snapshot, and Secrets the machine secrets bundle, which is always
	// encrypted.
	Data    File  `json:"data"`
	Secrets *File `json:"secrets,omitempty"`
	// Tool is what has made the backup.
	Tool string `json:"tool"`
}

// File is a file of a backup.
type File struct {
	// Name is its name in the folder of the backup, and VersionID the version.
	Name      string `json:"name"`
	VersionID string `json:"versionID"`
	// StoredBytes and StoredSHA256 are of what the store has, PlainBytes and PlainSHA256
	// of what was stored.
	StoredBytes  int64  `json:"storedBytes"`
	StoredSHA256 string `json:"storedSHA256"`
	PlainBytes   int64  `json:"plainBytes,omitempty"`
	PlainSHA256  string `json:"plainSHA256,omitempty"`
}

func (f *File) sums() pipeline.Sums {
	return pipeline.Sums{PlainBytes: f.PlainBytes, PlainSHA256: f.PlainSHA256, StoredBytes: f.StoredBytes, StoredSHA256: f.StoredSHA256}
}

// ErrManifest is a manifest that is none, or that of something else than its place says.
var ErrManifest = errors.New("the manifest is not that of this backup")

// readManifest reads the manifest at a place.
func readManifest(data []byte, at place) (*Manifest, error) {
	manifest := &Manifest{}
	if err := json.Unmarshal(data, manifest); err != nil {
		return nil, fmt.Errorf("%w: it is no JSON", ErrManifest)
	}
	if manifest.Format != Format {
		return nil, fmt.Errorf("%w: its format is %q, and this is %s", ErrManifest, condition.Cut(manifest.Format, maxQuoted), Format)
	}
	if manifest.Cluster != at.cluster || manifest.Name != at.backup {
		return nil, fmt.Errorf("%w: it is of backup %s of cluster %s/%s", ErrManifest,
			condition.Cut(manifest.Name, maxQuoted), condition.Cut(manifest.Cluster.Namespace, maxQuoted), condition.Cut(manifest.Cluster.Name, maxQuoted))
	}
	if !manifest.Data.belongs(dataFile) || manifest.Secrets != nil && !manifest.Secrets.belongs(secretsFile) {
		return nil, fmt.Errorf("%w: it names files elsewhere", ErrManifest)
	}
	if !manifest.Data.hasSize() || manifest.Secrets != nil && !manifest.Secrets.hasSize() {
		return nil, fmt.Errorf("%w: it names sizes that no backup has", ErrManifest)
	}

	return manifest, nil
}

// belongs reports whether a file is one in the folder of its backup.
func (f *File) belongs(kind string) bool {
	return strings.HasPrefix(f.Name, kind) && !strings.Contains(f.Name, "/")
}

// hasSize reports whether a file has sizes that can be, and be calculated with.
func (f *File) hasSize() bool {
	return f.StoredBytes >= 0 && f.StoredBytes <= maxBytes && f.PlainBytes >= 0 && f.PlainBytes <= maxBytes
}
