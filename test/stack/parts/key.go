package parts

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// recipe is raised when the way parts are built changes for all of them.
const recipe = 1

// keyLength is the number of hexadecimal digits of a key that are kept.
const keyLength = 16

// key is the hash of everything that the part depends on: the Go release and
// platform (toolchain), the wrapper module's files, the flags, and the keys of
// the parts it needs.
func key(part Part, modules, toolchain string, needs map[string]string) (string, error) {
	hash := sha256.New()
	field := func(name string, values ...string) {
		fmt.Fprintf(hash, "%s %d\n", name, len(values))
		for _, value := range values {
			fmt.Fprintf(hash, "%d %s\n", len(value), value)
		}
	}
	field("recipe", fmt.Sprint(recipe))
	field("toolchain", toolchain)
	field("part", part.Name, part.Version, part.Module)
	for _, command := range part.Commands {
		field("command", command.Package, command.Binary)
	}
	field("ldflags", part.LDFlags)
	field("tags", part.Tags...)
	field("env", part.Env...)
	field("inputs", part.Inputs...)
	for _, need := range slices.Sorted(slices.Values(part.Needs)) {
		field("need", need, needs[need])
	}
	if part.Module != "" {
		if err := hashFolder(hash, filepath.Join(modules, part.Module)); err != nil {
			return "", fmt.Errorf("reading the wrapper module of part %s: %w", part.Name, err)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:keyLength], nil
}

// hashFolder hashes names and contents of all regular files below a folder but
// the documentation.
func hashFolder(hash io.Writer, folder string) error {
	return filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || strings.HasSuffix(path, ".md") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(hash, "file %s %x\n", filepath.ToSlash(name), sha256.Sum256(content))
		return err
	})
}
