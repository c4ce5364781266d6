package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// keyring has the keys of Debian's archive.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// Mirror is where this machine's own packages come from, or the mirror of all where it has
// none of Debian's.
func Mirror(ctx context.Context) string {
	const fallback = "http://deb.debian.org/debian"
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL)").Output()
	if err != nil {
		return fallback
	}
	for line := range strings.Lines(string(out)) {
		if uri, source, ok := strings.Cut(strings.TrimSpace(line), " "); ok && source == "Debian Debian" {
			return uri
		}
	}
	return fallback
}

// Unpack downloads packages of suites of Debian, with all that they need, and unpacks them
// into a folder, whatever release this machine is of. Nothing is installed, and no script of
// a package runs. A package is named as for apt-get, with "/suite" where it is in several.
// scratch is an empty folder.
func Unpack(ctx context.Context, root, scratch string, suites []string, packages ...string) error {
	a := archive{scratch: scratch}
	if err := a.prepare(Mirror(ctx), suites); err != nil {
		return fmt.Errorf("preparing the download of packages: %w", err)
	}
	install := append([]string{"install", "--download-only", "--no-install-recommends", "-y", "-qq"}, packages...)
	for _, args := range [][]string{{"update", "-qq"}, install} {
		if err := a.apt(ctx, args...); err != nil {
			return fmt.Errorf("downloading %s: %w", strings.Join(packages, ", "), err)
		}
	}
	if err := mergeUsr(root); err != nil {
		return err
	}
	found, err := filepath.Glob(a.path("cache", "archives", "*.deb"))
	if err != nil || len(found) == 0 {
		return errors.Join(errors.New("looking for the packages that were downloaded: there are none"), err)
	}
	for _, file := range found {
		if err := unpack(ctx, file, root); err != nil {
			return err
		}
	}
	return nil
}

// archive is what apt keeps, in a folder of its own.
type archive struct{ scratch string }

func (a archive) path(parts ...string) string {
	return filepath.Join(append([]string{a.scratch}, parts...)...)
}

func (a archive) prepare(mirror string, suites []string) error {
	for _, folder := range []string{a.path("lists", "partial"), a.path("cache", "archives", "partial")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	sources := &strings.Builder{}
	for _, suite := range suites {
		fmt.Fprintf(sources, "deb [signed-by=%s] %s %s main\n", keyring, mirror, suite)
	}
	if err := os.WriteFile(a.path("sources.list"), []byte(sources.String()), 0o600); err != nil {
		return err
	}
	// No package is installed, as far as apt is told.
	return os.WriteFile(a.path("status"), nil, 0o600)
}

func (a archive) apt(ctx context.Context, args ...string) error {
	settings := []string{
		"-o", "Dir::Etc::SourceList=" + a.path("sources.list"), "-o", "Dir::Etc::SourceParts=-", "-o", "Dir::State::Lists=" + a.path("lists"),
		"-o", "Dir::State::Status=" + a.path("status"), "-o", "Dir::Cache=" + a.path("cache"), "-o", "APT::Sandbox::User=root",
	}
	cmd := exec.CommandContext(ctx, "apt-get", append(settings, args...)...) //nolint:gosec // names of packages
	cmd.WaitDelay = stopDelay
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, out[max(0, len(out)-tailBytes):])
	}
	return nil
}

// mergeUsr makes the links that a Debian has since bookworm.
func mergeUsr(root string) error {
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", name), 0o755); err != nil {
			return fmt.Errorf("making the folders of a Debian: %w", err)
		}
		if err := os.Symlink("usr/"+name, filepath.Join(root, name)); err != nil && !os.IsExist(err) {
			return fmt.Errorf("making the folders of a Debian: %w", err)
		}
	}
	return nil
}

func unpack(ctx context.Context, file, root string) error {
	// dpkg-deb itself would replace the links to folders.
	script := `set -o pipefail; dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink --no-same-owner -C "$2"`
	cmd := exec.CommandContext(ctx, "bash", "-c", script, "unpack", file, root) //nolint:gosec // files that were downloaded
	cmd.WaitDelay = stopDelay
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w\n%s", filepath.Base(file), err, out[max(0, len(out)-tailBytes):])
	}
	return nil
}
