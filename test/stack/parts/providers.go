package parts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/capi-talos/capi-talos/test/support/providers"
)

// backupFolder is the folder of the provider whose manager runs the programs of etcd.
const backupFolder = "backup"

// etcdFolder is where the image of that manager has them.
const etcdFolder = "/etcd"

// Providers are ours, as the repository lists them.
func Providers() ([]providers.Provider, error) {
	source, err := SourceDir()
	if err != nil {
		return nil, err
	}
	return providers.Read(source)
}

// EtcdPrograms are the parts with the programs of etcd that the manager of backups runs.
func EtcdPrograms() []string {
	var names []string
	for _, release := range etcdReleases {
		names = append(names, EtcdProgramsPart(release.name))
	}
	return names
}

// Beside are the programs that are in the image of a provider's manager beside it. They
// are of the parts that EtcdPrograms lists.
func (b Built) Beside(provider providers.Provider) ([]string, error) {
	if provider.Folder != backupFolder {
		return nil, nil
	}
	var programs []string
	for _, part := range EtcdPrograms() {
		found, err := filepath.Glob(b.Path(part, "*"))
		if err != nil || len(found) == 0 {
			return nil, errors.Join(fmt.Errorf("part %s has no programs", part), err)
		}
		programs = append(programs, found...)
	}
	return programs, nil
}

// ArgsBeside puts the programs beside the manager of a provider that runs without its
// image into a folder, and returns the arguments that tell it so.
func (b Built) ArgsBeside(provider providers.Provider, folder string) ([]string, error) {
	programs, err := b.Beside(provider)
	if err != nil || len(programs) == 0 {
		return nil, err
	}
	etcd := filepath.Join(folder, "etcd")
	if err := os.MkdirAll(etcd, 0o755); err != nil {
		return nil, fmt.Errorf("making the folder of the programs of etcd: %w", err)
	}
	var failures []error
	for _, program := range programs {
		failures = append(failures, os.Symlink(program, filepath.Join(etcd, filepath.Base(program))))
	}
	// Whoever runs the bed says how full its disk may be.
	return []string{"--etcd-dir=" + etcd, "--scratch-dir=" + filepath.Join(folder, "scratch"), "--scratch-reserve-percent=0"}, errors.Join(failures...)
}
