package vms

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestHolds(t *testing.T) {
	const text, size = "a token", 64 << 20
	for name, at := range map[string]int64{
		"the beginning": 0, "a chunk's end": 1 << 20, "across a chunk's end": 1<<20 + 3, "behind a hole": 40<<20 + 5, "the end": size - int64(len(text)),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			path := filepath.Join(t.TempDir(), "disk")
			g.Expect(blank(path)).To(Succeed())
			g.Expect(os.Truncate(path, size)).To(Succeed())
			file, err := os.OpenFile(path, os.O_WRONLY, 0)
			g.Expect(err).NotTo(HaveOccurred())
			defer func() { g.Expect(file.Close()).To(Succeed()) }()
			_, err = file.WriteAt(make([]byte, 3<<20), 0)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(holds(path, text)).To(BeFalse())
			_, err = file.WriteAt([]byte(text), at)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(holds(path, text)).To(BeTrue())
			g.Expect(holds(path, text+" of another")).To(BeFalse())
		})
	}
}

// noDisk is none.
const noDisk = -1

// volumes are two of a machine on the disk for data.
func volumes(m *Machine) []string {
	const document = "apiVersion: v1alpha1\nkind: %s\nname: %s\nprovisioning: {diskSelector: {match: disk.serial == %q}, minSize: 300MiB, maxSize: 400MiB}\n"
	return []string{
		fmt.Sprintf(document, "UserVolumeConfig", "data", m.DiskSerial(DataDisk)),
		fmt.Sprintf(document, "RawVolumeConfig", "raw", m.DiskSerial(DataDisk)),
	}
}

// inUse are the partitions of a machine with those volumes, by disk.
func inUse() [disks][]string {
	return [disks][]string{InstallDisk: {"EFI", "EPHEMERAL", "META", "STATE"}, DataDisk: {"r-raw", "u-data"}}
}

// expectPartitions compares the partitions of all disks of a machine.
func expectPartitions(ctx context.Context, m *Machine, wanted [disks][]string) error {
	for disk, labels := range wanted {
		found, err := m.Partitions(ctx, disk)
		if err != nil {
			return err
		}
		if !slices.Equal(found, labels) {
			return fmt.Errorf("disk %d of %s has partitions %q instead of %q", disk, m.Host.Name, found, labels)
		}
	}
	return nil
}

// contents tells what lies on the disks of a machine, a line each. What cannot be read is in the
// error, and left out of the line.
func contents(ctx context.Context, m *Machine) ([]string, error) {
	const mebibyte = 1 << 20
	var (
		lines    []string
		failures []error
	)
	for disk := range disks {
		partitions, err := m.Partitions(ctx, disk)
		failures = append(failures, err)
		signature, err := m.Signature(ctx, disk)
		failures = append(failures, err)
		written, err := m.Written(disk)
		failures = append(failures, err)
		lines = append(lines, fmt.Sprintf("disk %d: %q, partitions %s, %d MiB written", disk, signature, strings.Join(partitions, " "), written/mebibyte))
	}
	return lines, errors.Join(failures...)
}

// expectText wants a text on one disk of a machine, and on no other one.
func expectText(m *Machine, text string, only int) error {
	for disk := range disks {
		found, err := m.Holds(disk, text)
		if err != nil {
			return err
		}
		if found != (disk == only) {
			return fmt.Errorf("disk %d of %s has the secret: %t", disk, m.Host.Name, found)
		}
	}
	return nil
}
