package parts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
)

// debianPackages are what the node image of kind has of Debian. Some of its
// programs go into other images, too.
//
// The release is bookworm because its systemd still starts on version 1 of
// control groups.
var debianPackages = []string{
	"systemd", "systemd-sysv", "dbus", "conntrack", "iptables", "ipset", "nftables", "iproute2", "ethtool", "util-linux", "mount", "kmod",
	"libseccomp2", "pigz", "e2fsprogs", "bash", "ca-certificates", "curl", "jq", "procps", "socat", "hostname", "less",
	"busybox-static",
}

// debianRoot is the root of the system of part "debian".
func debianRoot(needs Built) string { return needs.Path(debianPart, "root") }

// buildDebian installs a small Debian into a folder. It needs root and
// debootstrap, and the mirror that this machine's own packages come from.
func buildDebian(ctx context.Context, w *Workspace) error {
	if os.Geteuid() != 0 {
		return errors.New("installing Debian into a folder: only root can do that")
	}
	if err := debian.Install(ctx, "debootstrap"); err != nil {
		return err
	}
	root := filepath.Join(w.Out, "root")
	err := w.Run(ctx, w.Scratch, "debootstrap", "--variant=minbase", "--include="+strings.Join(debianPackages, ","), debianRelease, root, debian.Mirror(ctx))
	if err != nil {
		return err
	}
	for _, pattern := range []string{
		"var/cache/apt/archives/*.deb", "var/lib/apt/lists/*",
		"usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/info/*",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return fmt.Errorf("looking for what nobody needs: %w", err)
		}
		for _, path := range found {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("removing what nobody needs: %w", err)
			}
		}
	}
	return nil
}
