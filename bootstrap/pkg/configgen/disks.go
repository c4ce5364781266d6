package configgen

import (
	"fmt"

	"github.com/siderolabs/talos/pkg/machinery/cel"
	"github.com/siderolabs/talos/pkg/machinery/cel/celenv"
)

// Match is the selector as an expression over a disk, as Talos evaluates it.
func (s *DiskSelector) Match() (cel.Expression, error) {
	match, err := cel.ParseBooleanExpression(s.expression(), celenv.DiskLocator())
	if err != nil {
		return cel.Expression{}, fmt.Errorf("building the disk selector: %w", err)
	}
	return match, nil
}
