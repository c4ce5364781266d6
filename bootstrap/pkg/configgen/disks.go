package configgen

import (
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/types/v1alpha1"
)

// InstallForm is how a machine configuration states the disk to install on.
type InstallForm string

const (
	// InstallDocument is UnattendedInstallConfig, from contract v1.14 on.
	InstallDocument InstallForm = "Document"
	// InstallSection is machine.install. It takes one bound of the size, and its
	// type ssd is any disk that does not rotate.
	InstallSection InstallForm = "Section"
)

func installForm(cfg coreconfig.Provider) InstallForm {
	if usesDocuments(cfg) {
		return InstallDocument
	}
	return InstallSection
}

// Match is the selector as an expression over a disk, as Talos evaluates it in a
// configuration of the given form. The error says what the form cannot state.
func (s *DiskSelector) Match(form InstallForm) (cel.Expression, error) {
	if form == InstallSection {
		return s.matchOfSection()
	}
	match, err := cel.ParseBooleanExpression(s.expression(), celenv.DiskLocator())
	if err != nil {
		return cel.Expression{}, fmt.Errorf("building the disk selector: %w", err)
	}
	return match, nil
}

func (s *DiskSelector) matchOfSection() (cel.Expression, error) {
	selector, err := s.section()
	if err != nil {
		return cel.Expression{}, err
	}
	install := v1alpha1.InstallConfig{InstallDiskSelector: selector}
	match, err := install.DiskMatchExpression()
	if err != nil {
		return cel.Expression{}, fmt.Errorf("building machine.install.diskSelector: %w", err)
	}
	return *match, nil
}
