package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// writeLayer packs all that is below a folder into a file and returns the
// file's digest. Owners, modes and devices are kept; times are not, so that the
// same files make the same layer.
func writeLayer(root, file string) (string, error) {
	out, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	writer := &layerWriter{root: root, archive: tar.NewWriter(io.MultiWriter(out, sum)), seen: map[inode]string{}}
	err = filepath.WalkDir(root, writer.add)
	if err == nil {
		err = writer.archive.Close()
	}
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
}

type layerWriter struct {
	root    string
	archive *tar.Writer
	seen    map[inode]string
}

// inode identifies a file that has several names.
type inode struct{ device, number uint64 }

func (w *layerWriter) add(path string, entry fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	info, err := entry.Info()
	if err != nil || info.Mode()&fs.ModeSocket != 0 {
		return err
	}
	name, err := filepath.Rel(w.root, path)
	if err != nil || name == "." {
		return err
	}
	header, err := w.header(path, name, info)
	if err != nil {
		return err
	}
	if err := w.archive.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg || header.Size == 0 {
		return nil
	}
	content, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = content.Close() }()
	_, err = io.Copy(w.archive, content)
	return err
}

func (w *layerWriter) header(path, name string, info fs.FileInfo) (*tar.Header, error) {
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		var err error
		if target, err = os.Readlink(path); err != nil {
			return nil, err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return nil, err
	}
	header.Name = name
	if info.IsDir() {
		header.Name += "/"
	}
	header.Uname, header.Gname = "", ""
	header.ModTime, header.AccessTime, header.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
	header.Format = tar.FormatPAX
	if info.Mode().IsRegular() {
		w.link(name, info, header)
	}
	return header, nil
}

// link turns the second and further names of a file into hard links.
func (w *layerWriter) link(name string, info fs.FileInfo, header *tar.Header) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Nlink < 2 {
		return
	}
	id := inode{device: stat.Dev, number: stat.Ino}
	if first, ok := w.seen[id]; ok {
		header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
		return
	}
	w.seen[id] = name
}
