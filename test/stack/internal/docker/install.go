package docker

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// install installs Docker from Debian's packages.
func install(ctx context.Context) error {
	for _, args := range [][]string{
		{"update", "-qq"},
		{"install", "-y", "-qq", "--no-install-recommends", "docker.io", "iptables", "iproute2"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...) //nolint:gosec // fixed arguments
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.WaitDelay = stopDelay
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("installing Docker: apt-get %s: %w\n%s", args[0], err, tail(out))
		}
	}
	return nil
}

// tail is the end of what a program said.
func tail(out []byte) []byte {
	const enough = 1500
	if len(out) > enough {
		return out[len(out)-enough:]
	}
	return out
}
