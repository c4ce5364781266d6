package vms

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Disk is the image of a disk: 0 is that of /dev/vda.
func (m *Machine) Disk(number int) string {
	return filepath.Join(m.dir, fmt.Sprintf("disk-%d.img", number))
}

// DiskSerial is the serial number of a disk.
func (m *Machine) DiskSerial(disk int) string { return diskSerial(m.Serial, disk) }

func blank(name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(diskBytes), file.Close())
}

// image puts a copy of an image on the first disk, which is larger.
func (m *Machine) image(ctx context.Context, name string) error {
	if err := run(ctx, "cp", "--sparse=always", name, m.Disk(0)); err != nil {
		return err
	}
	return os.Truncate(m.Disk(0), diskBytes)
}

// Holds reports whether a text is anywhere on a disk. What was never written to, or was given
// back, is skipped.
func (m *Machine) Holds(disk int, text string) (bool, error) {
	found, err := holds(m.Disk(disk), text)
	if err != nil {
		return false, fmt.Errorf("searching disk %d of machine %s: %w", disk, m.Host.Name, err)
	}
	return found, nil
}

// holds searches a file that has holes. A text without zeros lies in none of them.
func holds(name, text string) (bool, error) {
	file, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }()
	for end := int64(0); ; {
		start, err := file.Seek(end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if end, err = file.Seek(start, unix.SEEK_HOLE); err != nil {
			return false, err
		}
		if found, err := contains(io.NewSectionReader(file, start, end-start), text); err != nil || found {
			return found, err
		}
	}
}

// contains reports whether a text is in what a reader returns.
func contains(reader io.Reader, text string) (bool, error) {
	const chunk = 1 << 20
	buffer, kept := make([]byte, len(text)+chunk), 0
	for {
		n, err := io.ReadFull(reader, buffer[kept:])
		got := buffer[:kept+n]
		if bytes.Contains(got, []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		// It may have begun.
		kept = copy(buffer, got[len(got)-len(text):])
	}
}

// Written is how many bytes of a disk were ever written to, and not given back.
func (m *Machine) Written(disk int) (int64, error) {
	var found unix.Stat_t
	if err := unix.Stat(m.Disk(disk), &found); err != nil {
		return 0, fmt.Errorf("looking at disk %d of machine %s: %w", disk, m.Host.Name, err)
	}
	const blockBytes = 512
	return found.Blocks * blockBytes, nil
}

// Partitions are the labels of the partitions of a disk, sorted; none when it has no table.
func (m *Machine) Partitions(ctx context.Context, disk int) ([]string, error) {
	out, _, err := m.ask(ctx, disk, "", "sfdisk", "--json")
	if err != nil {
		if strings.Contains(err.Error(), "does not contain a recognized partition table") {
			return nil, nil
		}
		return nil, fmt.Errorf("looking at disk %d of machine %s: %w", disk, m.Host.Name, err)
	}
	var found struct {
		PartitionTable struct {
			Partitions []struct {
				Name string `json:"name"`
			} `json:"partitions"`
		} `json:"partitiontable"`
	}
	if err := json.Unmarshal([]byte(out), &found); err != nil {
		return nil, fmt.Errorf("reading what sfdisk prints: %w", err)
	}
	labels := make([]string, 0, len(found.PartitionTable.Partitions))
	for _, partition := range found.PartitionTable.Partitions {
		labels = append(labels, partition.Name)
	}
	slices.Sort(labels)
	return labels, nil
}

// Systems are the releases of Talos that its boot loader has, on the disk that Talos is
// installed on.
func (m *Machine) Systems(ctx context.Context) ([]string, error) {
	// The partition of the boot loader is the first one, behind a free mebibyte.
	command := exec.CommandContext(ctx, "mdir", "-b", "-i", m.Disk(InstallDisk)+"@@1M", "::/EFI/Linux/") //nolint:gosec // a disk of ours
	out, err := command.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("listing the systems of machine %s: %w: %s", m.Host.Name, err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		found = append(found, strings.TrimSuffix(strings.TrimPrefix(path.Base(strings.TrimSpace(line)), "Talos-"), ".efi"))
	}
	slices.Sort(found)
	return found, nil
}

// Signature is what is recognized at the beginning of a disk: a file system, or a kind of
// partition table; empty means nothing.
func (m *Machine) Signature(ctx context.Context, disk int) (string, error) {
	const nothing = 2
	out, code, err := m.ask(ctx, disk, "", "blkid", "--probe", "--output", "value", "--match-tag", "TYPE", "--match-tag", "PTTYPE")
	if err != nil && code != nothing {
		return "", fmt.Errorf("looking at the beginning of disk %d of machine %s: %w", disk, m.Host.Name, err)
	}
	return strings.TrimSpace(out), nil
}

// AddPartition adds a partition to a disk of a machine without power.
func (m *Machine) AddPartition(ctx context.Context, disk int, label string) error {
	if _, _, err := m.ask(ctx, disk, "size=64MiB, name="+label+"\n", "sfdisk", "--append"); err != nil {
		return fmt.Errorf("adding partition %s to disk %d of machine %s: %w", label, disk, m.Host.Name, err)
	}
	return nil
}

// ask runs a program on the image of a disk, and returns what it printed and its exit code.
// All that it said is in the error. What it complains of without failing, as of the first of
// two partition tables, is left out.
func (m *Machine) ask(ctx context.Context, disk int, input, name string, args ...string) (string, int, error) {
	command := exec.CommandContext(ctx, name, append(args, m.Disk(disk))...) //nolint:gosec // programs of ours, on a disk of ours
	var complaints bytes.Buffer
	command.Stdin, command.Stderr = strings.NewReader(input), &complaints
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s%s", err, out, complaints.String())
	}
	return string(out), command.ProcessState.ExitCode(), err
}
