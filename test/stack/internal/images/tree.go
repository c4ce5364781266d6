package images

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Modes of files in images.
const (
	Program fs.FileMode = 0o755
	Data    fs.FileMode = 0o644
)

// Tree is a folder that becomes the file system of an image. Its methods make
// the folders that they need. The first error is kept and ends everything after
// it; Err returns it.
type Tree struct {
	root string
	err  error
}

// NewTree returns a tree in a folder, which is made when it is missing.
func NewTree(root string) *Tree {
	tree := &Tree{root: root}
	tree.Dir("/", 0o755)
	return tree
}

// Err is the first error of what was done with the tree.
func (t *Tree) Err() error { return t.err }

// Root is the folder of the tree.
func (t *Tree) Root() string { return t.root }

// Path is where a file of the tree is on this machine.
func (t *Tree) Path(path string) string { return filepath.Join(t.root, path) }

func (t *Tree) fail(doing, path string, err error) {
	if err != nil && t.err == nil {
		t.err = fmt.Errorf("%s %s in an image: %w", doing, path, err)
	}
}

// Dir makes a folder and those above it.
func (t *Tree) Dir(path string, mode fs.FileMode) {
	if t.err != nil {
		return
	}
	t.fail("making folder", path, os.MkdirAll(t.Path(path), 0o755))
	if mode.Perm() != 0o755 || mode&fs.ModeSticky != 0 {
		t.fail("setting the mode of folder", path, os.Chmod(t.Path(path), mode))
	}
}

// Dirs makes several folders of mode 0755.
func (t *Tree) Dirs(paths ...string) {
	for _, path := range paths {
		t.Dir(path, 0o755)
	}
}

// Write makes a file.
func (t *Tree) Write(path, content string, mode fs.FileMode) {
	t.Dir(filepath.Dir(path), 0o755)
	if t.err != nil {
		return
	}
	t.fail("replacing", path, removeFile(t.Path(path)))
	t.fail("writing", path, os.WriteFile(t.Path(path), []byte(content), mode))
	t.fail("setting the mode of", path, os.Chmod(t.Path(path), mode))
}

// Append adds to the end of a file that is there.
func (t *Tree) Append(path, content string) {
	if t.err != nil {
		return
	}
	before, err := os.ReadFile(t.Path(path))
	t.fail("reading", path, err)
	t.fail("writing", path, os.WriteFile(t.Path(path), append(before, content...), Data))
}

// Replace replaces a text that must be in a file, in all places.
func (t *Tree) Replace(path, before, after string) {
	if t.err != nil {
		return
	}
	content, err := os.ReadFile(t.Path(path))
	t.fail("reading", path, err)
	if t.err == nil && !strings.Contains(string(content), before) {
		t.fail("replacing text of", path, fmt.Errorf("%q is not in it", before))
	}
	if t.err == nil {
		t.fail("writing", path, os.WriteFile(t.Path(path), []byte(strings.ReplaceAll(string(content), before, after)), Data))
	}
}

// Copy copies a file of this machine into the tree. Symbolic links are
// followed.
func (t *Tree) Copy(from, path string, mode fs.FileMode) {
	t.Dir(filepath.Dir(path), 0o755)
	if t.err != nil {
		return
	}
	t.fail("copying", path, copyFile(from, t.Path(path), mode))
}

// CopyAll copies all regular files below a folder of this machine to the same
// places below a folder of the tree.
func (t *Tree) CopyAll(from, path string, mode fs.FileMode) {
	if t.err != nil {
		return
	}
	t.fail("copying a folder to", path, filepath.WalkDir(from, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		relative, err := filepath.Rel(from, file)
		if err != nil {
			return err
		}
		t.Copy(file, filepath.Join(path, relative), mode)
		return t.err
	}))
}

// Link makes a symbolic link.
func (t *Tree) Link(path, target string) {
	t.Dir(filepath.Dir(path), 0o755)
	if t.err != nil {
		return
	}
	t.fail("replacing", path, removeFile(t.Path(path)))
	t.fail("linking", path, os.Symlink(target, t.Path(path)))
}

// Remove removes files by patterns. A pattern that fits nothing is fine.
func (t *Tree) Remove(patterns ...string) {
	for _, pattern := range patterns {
		found, err := filepath.Glob(t.Path(pattern))
		t.fail("looking for", pattern, err)
		for _, file := range found {
			t.fail("removing", pattern, os.RemoveAll(file))
		}
	}
}

// Users writes the files that say who root and nobody are. Programs built
// without the C library read them.
func (t *Tree) Users() {
	t.Write("/etc/passwd", "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532::/:/sbin/nologin\nnobody:x:65534:65534::/:/sbin/nologin\n", Data)
	t.Write("/etc/group", "root:x:0:\nnonroot:x:65532:\nnobody:x:65534:\n", Data)
	t.Dir("/tmp", 0o777|fs.ModeSticky)
}

// Dynamic copies programs and libraries of another tree, which is that of a
// whole system, to the same places, together with the libraries they need.
func (t *Tree) Dynamic(ctx context.Context, system string, paths ...string) {
	for _, path := range paths {
		if t.err != nil {
			return
		}
		t.Copy(filepath.Join(system, path), path, Program)
		libraries, err := librariesOf(ctx, system, path)
		t.fail("looking for the libraries of", path, err)
		for _, library := range libraries {
			t.Copy(filepath.Join(system, library), library, Program)
		}
	}
}

// librariesOf asks the system's own loader which libraries a file needs.
func librariesOf(ctx context.Context, system, path string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "chroot", system, "ldd", path).Output() //nolint:gosec // a tree that was made here
	if err != nil {
		return nil, err
	}
	var libraries []string
	for field := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(field, "/") && strings.Contains(field, ".so") {
			libraries = append(libraries, field)
		}
	}
	return libraries, nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	if err := removeFile(to); err != nil {
		return err
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close()
		return err
	}
	if err := target.Close(); err != nil {
		return err
	}
	return os.Chmod(to, mode)
}
