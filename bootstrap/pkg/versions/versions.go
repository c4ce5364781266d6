// Package versions judges Kubernetes versions: whether a Talos release runs
// them, and whether a control plane may go from one to another.
package versions

import (
	"errors"
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
)

// ErrUnsupported says that a Talos release does not run a Kubernetes version.
var ErrUnsupported = errors.New("not supported")

// lastMinor bounds the search for the Kubernetes versions of a Talos release.
const lastMinor = 99

// Supports reports whether a Talos release runs a Kubernetes version, by the
// compatibility rules of the Talos machinery. The error is ErrUnsupported, and
// names the range that the release runs. A version that cannot be read, and a
// release that the machinery does not know, count as supported: somebody else
// judges them.
func Supports(talosRelease, kubernetes string) error {
	if IsSupported(talosRelease, kubernetes) {
		return nil
	}
	target, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: talosRelease})
	if err != nil {
		return nil //nolint:nilerr // See the comment above.
	}
	first, last := minors(target)

	return fmt.Errorf("kubernetes %s is %w by Talos %s, which runs v1.%d to v1.%d", kubernetes, ErrUnsupported, talosRelease, first, last)
}

// IsSupported is Supports for whoever asks about many machines, and does not need to
// know the range.
func IsSupported(talosRelease, kubernetes string) bool {
	target, err := compatibility.ParseTalosVersion(&machine.VersionInfo{Tag: talosRelease})
	return err != nil || supports(target, strings.TrimPrefix(kubernetes, "v")) || !isKnown(target)
}

// isKnown reports whether the machinery knows a release: it runs some version.
func isKnown(target *compatibility.TalosVersion) bool {
	for minor := range lastMinor {
		if supports(target, minorVersion(minor)) {
			return true
		}
	}

	return false
}

func minorVersion(minor int) string {
	return fmt.Sprintf("1.%d.0", minor)
}

// minors are the first and the last minor version of Kubernetes 1 that a known Talos
// release runs.
func minors(target *compatibility.TalosVersion) (first, last int) {
	first, last = -1, -1
	for minor := range lastMinor {
		if supports(target, minorVersion(minor)) {
			if first < 0 {
				first = minor
			}
			last = minor
		}
	}

	return first, last
}

func supports(target *compatibility.TalosVersion, kubernetes string) bool {
	version, err := compatibility.ParseKubernetesVersion(kubernetes)

	return err != nil || version.SupportedWith(target) == nil
}

// CheckChange judges the change of a control plane's Kubernetes version from
// old to new, with running as the lowest version that its machines run (empty
// when none does). Kubernetes upgrades minor by minor, and control planes do not
// go back to an earlier minor. A warning comes with a change to an earlier
// patch, which is allowed. Versions that cannot be read are not judged.
//
// The rules are those of the Kubernetes version skew policy.
func CheckChange(old, running, new string) (warning string, err error) {
	before, beforeErr := semver.ParseTolerant(old)
	after, afterErr := semver.ParseTolerant(new)
	if beforeErr != nil || afterErr != nil {
		return "", nil //nolint:nilerr // See the comment above.
	}
	base := before
	if lowest, err := semver.ParseTolerant(running); err == nil && lowest.LT(base) {
		base = lowest
	}
	switch {
	case after.Major != before.Major || after.Minor < before.Minor:
		return "", fmt.Errorf("must not go back to an earlier minor version: use v%d.%d.%d or later", before.Major, before.Minor, before.Patch)
	case after.Minor > base.Minor+1:
		return "", fmt.Errorf("must not skip a minor version: machines run v%s, so use a version of v%d.%d or v%d.%d",
			base, base.Major, base.Minor, base.Major, base.Minor+1)
	case after.LT(before):
		return fmt.Sprintf("version %s is earlier than %s", new, old), nil
	default:
		return "", nil
	}
}
