package configgen

import (
	"fmt"
	"regexp"
	"strconv"

	"github.com/siderolabs/talos/pkg/machinery/config/config"
)

// coreconfigDocument is one document of a configuration.
type coreconfigDocument = config.Document

// PatchKind names the field that a patch came from.
type PatchKind string

const (
	// KindJSONPatch is an entry of configPatches.
	KindJSONPatch PatchKind = "configPatches"
	// KindStrategicPatch is an entry of strategicPatches.
	KindStrategicPatch PatchKind = "strategicPatches"
	// KindHostPatch is an entry of a host's strategicPatches.
	KindHostPatch PatchKind = "strategicPatches of the host"
)

// PatchError says which patch does not apply, or makes a configuration that
// Talos would refuse, and why in Talos' own words.
type PatchError struct {
	Kind PatchKind
	// Index counts from 0.
	Index int
	// Path is the JSON pointer of a JSON patch.
	Path string
	// Applies reports whether the patch applies, but what comes of it is refused.
	Applies bool
	Err     error
}

// Error implements error.
func (e *PatchError) Error() string {
	where := fmt.Sprintf("%s[%d]", e.Kind, e.Index)
	if e.Path != "" {
		where += " (path " + e.Path + ")"
	}
	if line := e.Line(); line > 0 {
		where += " line " + strconv.Itoa(line)
	}
	if e.Applies {
		return fmt.Sprintf("%s makes a machine configuration that is not valid: %v", where, e.Err)
	}
	return fmt.Sprintf("%s does not apply: %v", where, e.Err)
}

// Unwrap implements errors.Unwrap.
func (e *PatchError) Unwrap() error { return e.Err }

var lineNumber = regexp.MustCompile(`\b(?:line:? |L)(\d+)`)

// Line is the line of a strategic patch that the error speaks of, counted from
// 1; 0 when it does not say.
func (e *PatchError) Line() int {
	if e.Kind == KindJSONPatch || e.Applies {
		return 0
	}
	match := lineNumber.FindStringSubmatch(e.Err.Error())
	if match == nil {
		return 0
	}
	line, err := strconv.Atoi(match[1])
	if err != nil {
		return 0
	}
	return line
}

// InvalidError says that Talos would refuse the configuration.
type InvalidError struct {
	Err error
}

// Error implements error.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("the machine configuration is not valid: %v", e.Err)
}

// Unwrap implements errors.Unwrap.
func (e *InvalidError) Unwrap() error { return e.Err }

// platform is where a configuration is to run, as machinery's validation asks.
type platform interface {
	String() string
	RequiresInstall() bool
	InContainer() bool
}

// platformAny accepts what is right on any platform: the install disk comes
// with the host's overlay.
type platformAny struct{}

func (platformAny) String() string        { return "metal" }
func (platformAny) RequiresInstall() bool { return false }
func (platformAny) InContainer() bool     { return false }

// platformContainer is Talos in a container.
type platformContainer struct{}

func (platformContainer) String() string        { return "container" }
func (platformContainer) RequiresInstall() bool { return false }
func (platformContainer) InContainer() bool     { return true }
