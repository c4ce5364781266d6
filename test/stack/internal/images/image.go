// Package images makes container images out of folders, without a daemon, and
// hands them to daemons (as archives) and registries.
//
// An image of this package has one layer, which is not compressed: all of them
// stay on this machine.
package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

const (
	layerFile  = "layer.tar"
	configFile = "config.json"
	nameFile   = "name"

	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// Config says how containers of an image are started.
type Config struct {
	// Entrypoint is the program and its first arguments.
	Entrypoint []string `json:"Entrypoint,omitempty"`
	// Env is the environment, as KEY=value.
	Env []string `json:"Env,omitempty"`
	// User is the user that the program runs as; root when empty.
	User string `json:"User,omitempty"`
	// WorkingDir is the working folder.
	WorkingDir string `json:"WorkingDir,omitempty"`
	// StopSignal ends the program; SIGTERM when empty.
	StopSignal string `json:"StopSignal,omitempty"`
}

// Image is an image in a folder of this machine.
type Image struct {
	// Name is the image's name, with its tag.
	Name string

	dir    string
	config []byte
	layer  descriptor
}

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int64  `json:"size"`
}

type imageConfig struct {
	Created      time.Time `json:"created"`
	Architecture string    `json:"architecture"`
	OS           string    `json:"os"`
	Config       Config    `json:"config"`
	RootFS       rootFS    `json:"rootfs"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// Write makes an image of that name out of all files of a tree and keeps it in
// a folder.
func Write(tree *Tree, dir, name string, config Config) error {
	if err := tree.Err(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the folder of image %s: %w", name, err)
	}
	digest, err := writeLayer(tree.Root(), filepath.Join(dir, layerFile))
	if err != nil {
		return fmt.Errorf("packing image %s: %w", name, err)
	}
	content, err := json.Marshal(imageConfig{
		Created:      time.Unix(0, 0).UTC(),
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Config:       config,
		RootFS:       rootFS{Type: "layers", DiffIDs: []string{digest}},
	})
	if err != nil {
		return fmt.Errorf("describing image %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), content, Data); err != nil {
		return fmt.Errorf("writing image %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, nameFile), []byte(name), Data); err != nil {
		return fmt.Errorf("writing image %s: %w", name, err)
	}
	return nil
}

// Open reads the image that Write kept in a folder.
func Open(dir string) (*Image, error) {
	name, err := os.ReadFile(filepath.Join(dir, nameFile))
	if err != nil {
		return nil, fmt.Errorf("reading an image's name: %w", err)
	}
	content, err := os.ReadFile(filepath.Join(dir, configFile))
	if err != nil {
		return nil, fmt.Errorf("reading the description of image %s: %w", name, err)
	}
	var config imageConfig
	if err := json.Unmarshal(content, &config); err != nil {
		return nil, fmt.Errorf("reading the description of image %s: %w", name, err)
	}
	info, err := os.Stat(filepath.Join(dir, layerFile))
	if err != nil {
		return nil, fmt.Errorf("looking for the layer of image %s: %w", name, err)
	}
	if len(config.RootFS.DiffIDs) != 1 {
		return nil, fmt.Errorf("reading the description of image %s: it has not one layer", name)
	}
	return &Image{
		Name:   string(name),
		dir:    dir,
		config: content,
		layer:  descriptor{MediaType: typeLayer, Digest: config.RootFS.DiffIDs[0], Size: info.Size()},
	}, nil
}

// ID is the digest of the image's description, which is its ID in Docker.
func (i *Image) ID() string { return digestOf(i.config) }

// Archive writes the image as "docker load" and "ctr images import" read it.
func (i *Image) Archive(w io.Writer) error {
	manifest, err := json.Marshal([]map[string]any{{
		"Config": configFile, "RepoTags": []string{i.Name}, "Layers": []string{layerFile},
	}})
	if err != nil {
		return fmt.Errorf("describing image %s: %w", i.Name, err)
	}
	archive := tar.NewWriter(w)
	err = writeEntry(archive, "manifest.json", manifest)
	if err == nil {
		err = writeEntry(archive, configFile, i.config)
	}
	if err == nil {
		err = i.archiveLayer(archive)
	}
	if err == nil {
		err = archive.Close()
	}
	if err != nil {
		return fmt.Errorf("writing the archive of image %s: %w", i.Name, err)
	}
	return nil
}

func (i *Image) archiveLayer(archive *tar.Writer) error {
	layer, err := os.Open(filepath.Join(i.dir, layerFile))
	if err != nil {
		return err
	}
	defer func() { _ = layer.Close() }()
	if err := archive.WriteHeader(&tar.Header{Name: layerFile, Mode: 0o644, Size: i.layer.Size}); err != nil {
		return err
	}
	_, err = io.Copy(archive, layer)
	return err
}

func writeEntry(archive *tar.Writer, name string, content []byte) error {
	if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// split parts a name into host, repository and tag, with Docker's rule for what
// a host is. A name without one has an empty host.
func split(name string) (host, repository, tag string) {
	repository, tag = name, "latest"
	if before, after, ok := strings.Cut(repository, "/"); ok && (strings.ContainsAny(before, ".:") || before == "localhost") {
		host, repository = before, after
	}
	if at := strings.LastIndex(repository, ":"); at >= 0 {
		repository, tag = repository[:at], repository[at+1:]
	}
	return host, repository, tag
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}
