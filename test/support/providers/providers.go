// Package providers is the list of our providers, which clusterctl-settings.json has.
// What builds, installs or checks all of them reads it.
package providers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// ours is what all of our providers are called, or begin with.
const ours = "talos"

// Provider is one of our providers.
type Provider struct {
	// Name is its name in images, component files and manifests: control-plane.
	Name string
	// Label is its name in a repository of clusterctl, with its type: control-plane-talos.
	// A second one of a type has more in it: addon-talos-backup.
	Label string
	// Folder has its sources, and its program below cmd, and its manifests below config:
	// controlplane.
	Folder string
	// ComponentsFile is the file of a release with its manifests.
	ComponentsFile string
}

// Flag is the flag of "clusterctl init" that installs it: control-plane.
func (p Provider) Flag() string {
	flag, _, _ := strings.Cut(p.Label, "-"+ours)

	return flag
}

// Argument is what that flag is given: talos, or talos-backup.
func (p Provider) Argument() string { return strings.TrimPrefix(p.Label, p.Flag()+"-") }

// Kind is what clusterctl calls a provider of this type: ControlPlaneProvider.
func (p Provider) Kind() string {
	var kind strings.Builder
	for word := range strings.SplitSeq(p.Flag(), "-") {
		kind.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}

	return kind.String() + "Provider"
}

// Namespace is where its manager is installed.
func (p Provider) Namespace() string { return "capt-" + p.Name + "-system" }

// Deployment is that of its manager.
func (p Provider) Deployment() string { return "capt-" + p.Name + "-controller-manager" }

// Image is that of its manager, without a tag.
func (p Provider) Image() string { return "ghcr.io/capi-talos/" + p.Name + "-manager" }

// settings are our part of clusterctl-settings.json.
type settings struct {
	Providers []struct {
		Name   string `json:"name"`
		Config struct {
			ComponentsFile string `json:"componentsFile"`
			ConfigFolder   string `json:"configFolder"`
		} `json:"config"`
	} `json:"providers"`
}

// Read reads the list in the folder of the repository.
func Read(repository string) ([]Provider, error) {
	file := filepath.Join(repository, "clusterctl-settings.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the list of providers: %w", err)
	}
	list, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("reading the list of providers %s: %w", file, err)
	}

	return list, nil
}

func parse(raw []byte) ([]Provider, error) {
	var read settings
	if err := json.Unmarshal(raw, &read); err != nil {
		return nil, err
	}
	if len(read.Providers) == 0 {
		return nil, errors.New("it is empty")
	}
	list := make([]Provider, 0, len(read.Providers))
	for _, entry := range read.Providers {
		name := nameOf(entry.Name)
		folder := path.Base(path.Dir(entry.Config.ConfigFolder))
		switch {
		case name == "":
			return nil, fmt.Errorf("name %q is neither <type>-talos nor <type>-talos-<name>", entry.Name)
		case entry.Config.ConfigFolder != path.Join("config", folder, "default"):
			return nil, fmt.Errorf("configFolder %q of %s is not config/<folder>/default", entry.Config.ConfigFolder, entry.Name)
		case entry.Config.ComponentsFile != name+"-components.yaml":
			return nil, fmt.Errorf("componentsFile %q of %s is not %s-components.yaml", entry.Config.ComponentsFile, entry.Name, name)
		}
		list = append(list, Provider{
			Name: name, Label: entry.Name, Folder: folder, ComponentsFile: entry.Config.ComponentsFile,
		})
	}

	return list, nil
}

// nameOf is the name of the provider with a label: its type, or what follows where there
// is more. It is empty when the label is not one of ours.
func nameOf(label string) string {
	name, more, isOurs := strings.Cut(label, "-"+ours)
	if isOurs && more == "" {
		return name
	}
	more, hasMore := strings.CutPrefix(more, "-")
	if name == "" || !hasMore {
		return ""
	}

	return more
}
