// Package debian installs what the test bed needs and a bare Debian machine
// lacks.
package debian

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// stopDelay is how long a tool that was told to end may take for it.
const stopDelay = 10 * time.Second

// tailBytes is how much of what a tool says is in an error.
const tailBytes = 1500

// Possible reports whether Install can install something.
func Possible() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil && os.Geteuid() == 0
}

// Install installs those packages that are missing. Where it cannot, the error
// names them; a machine that is no Debian is taken to have them.
func Install(ctx context.Context, packages ...string) error {
	if _, err := exec.LookPath("dpkg-query"); err != nil {
		return nil //nolint:nilerr // not a Debian machine
	}
	packages = slices.DeleteFunc(slices.Clone(packages), func(name string) bool { return installed(ctx, name) })
	if len(packages) == 0 {
		return nil
	}
	if !Possible() {
		return fmt.Errorf("only root can install what is missing: %s", strings.Join(packages, ", "))
	}
	for _, args := range [][]string{
		{"update", "-qq"},
		append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...) //nolint:gosec // names of packages
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.WaitDelay = stopDelay
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("installing %s: apt-get %s: %w\n%s", strings.Join(packages, ", "), args[0], err, out[max(0, len(out)-tailBytes):])
		}
	}
	return nil
}

func installed(ctx context.Context, name string) bool {
	out, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat", "${db:Status-Status}", name).Output() //nolint:gosec // a package's name
	return err == nil && string(out) == "installed"
}
