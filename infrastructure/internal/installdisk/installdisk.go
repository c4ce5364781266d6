// Package installdisk finds the disk on which Talos would install itself, before
// it does: a disk is never guessed (design D5). It is pure.
package installdisk

import (
	"fmt"
	"slices"
	"strings"

	"github.com/siderolabs/talos/pkg/machinery/api/resource/definitions/block"
	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"k8s.io/utils/ptr"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// Wish says which disk Talos is to be installed on: the one of a path, or one
// that is like the selector says. The zero value names none.
type Wish struct {
	path     string
	selector cel.Expression
}

// IsZero reports whether no disk is named.
func (w Wish) IsZero() bool {
	return w.path == "" && w.selector.IsZero()
}

// OfHost is what a TalosHost says, as Talos reads it in a configuration of the given
// form. The error says what the form cannot state.
func OfHost(install infrav1.HostInstall, form configgen.InstallForm) (Wish, error) {
	if install.Disk != "" {
		return Wish{path: install.Disk}, nil
	}
	selector := SelectorOf(install.DiskSelector)
	if selector == nil {
		return Wish{}, nil
	}
	match, err := selector.Match(form)
	if err != nil {
		return Wish{}, fmt.Errorf("reading install.diskSelector: %w", err)
	}

	return Wish{selector: match}, nil
}

// SelectorOf is the selector of a host as the machine configuration takes it;
// nil when it selects nothing.
func SelectorOf(selector infrav1.HostDiskSelector) *configgen.DiskSelector {
	if selector == (infrav1.HostDiskSelector{}) {
		return nil
	}
	const gibibyte = 1 << 30

	return &configgen.DiskSelector{
		MinSizeBytes: int64(ptr.Deref(selector.MinSizeGiB, 0)) * gibibyte,
		MaxSizeBytes: int64(ptr.Deref(selector.MaxSizeGiB, 0)) * gibibyte,
		Model:        selector.Model, Serial: selector.Serial, WWID: selector.WWID, BusPath: selector.BusPath,
		Type: strings.ToLower(string(selector.Type)),
	}
}

// OfConfiguration is what a machine configuration says, in either of its forms.
func OfConfiguration(configuration []byte) (Wish, error) {
	config, err := configloader.NewFromBytes(configuration)
	if err != nil {
		return Wish{}, fmt.Errorf("reading the machine configuration: %w", err)
	}
	for _, document := range config.Documents() {
		if install, ok := document.(coreconfig.UnattendedInstallConfig); ok {
			return Wish{selector: install.VolumeSelector()}, nil
		}
	}
	legacy := config.RawV1Alpha1()
	if legacy == nil || legacy.MachineConfig == nil || legacy.MachineConfig.MachineInstall == nil { //nolint:staticcheck // The form before 1.14.
		return Wish{}, nil
	}
	install := legacy.MachineConfig.MachineInstall //nolint:staticcheck // As above.
	selector, err := install.DiskMatchExpression()
	switch {
	case err != nil:
		return Wish{}, fmt.Errorf("reading machine.install.diskSelector: %w", err)
	case selector != nil:
		return Wish{selector: *selector}, nil
	}

	return Wish{path: install.Disk()}, nil
}

// Among are the disks that are like the wish.
func (w Wish) Among(disks []infrav1.HostDisk) ([]infrav1.HostDisk, error) {
	var found []infrav1.HostDisk
	for _, disk := range disks {
		fits, err := w.fits(disk)
		if err != nil {
			return nil, err
		}
		if fits {
			found = append(found, disk)
		}
	}

	return found, nil
}

func (w Wish) fits(disk infrav1.HostDisk) (bool, error) {
	if w.path != "" {
		return disk.DevPath == w.path || slices.Contains(disk.Symlinks, w.path), nil
	}
	if w.selector.IsZero() {
		return false, nil
	}
	fits, err := w.selector.EvalBool(celenv.DiskLocator(), map[string]any{
		"disk": &block.DiskSpec{
			DevPath: disk.DevPath, Size: uint64(max(ptr.Deref(disk.SizeBytes, 0), 0)),
			Model: disk.Model, Serial: disk.Serial, Wwid: disk.WWID, BusPath: disk.BusPath, Transport: disk.Transport,
			Rotational: ptr.Deref(disk.Rotational, false), Symlinks: disk.Symlinks,
		},
		"system_disk": false,
	})
	if err != nil {
		return false, fmt.Errorf("asking whether %s is the disk to install on: %w", disk.DevPath, err)
	}

	return fits, nil
}

// List names disks, with what tells them apart.
func List(disks []infrav1.HostDisk) string {
	const gigabyte = 1e9
	texts := make([]string, 0, len(disks))
	for _, disk := range disks {
		parts := []string{fmt.Sprintf("%d GB", ptr.Deref(disk.SizeBytes, 0)/gigabyte)}
		for _, part := range []string{disk.Transport, disk.Model} {
			if part != "" {
				parts = append(parts, part)
			}
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", disk.DevPath, strings.Join(parts, ", ")))
	}

	return strings.Join(texts, ", ")
}
