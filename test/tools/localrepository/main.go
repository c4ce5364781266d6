// The localrepository program lays a release out as a local repository of
// clusterctl, for all providers that clusterctl-settings.json lists.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// settings are our part of clusterctl-settings.json. Cluster API's own script
// for local repositories reads the first level alone, which is one provider.
type settings struct {
	Providers []struct {
		Name   string `json:"name"`
		Config struct {
			ComponentsFile string `json:"componentsFile"`
			NextVersion    string `json:"nextVersion"`
		} `json:"config"`
	} `json:"providers"`
}

func main() {
	file := flag.String("settings", "clusterctl-settings.json", "The list of the providers.")
	release := flag.String("release", "out/release", "The folder with the files of the release.")
	repository := flag.String("repository", "out/repository", "The folder to lay out. What is in it goes.")
	version := flag.String("version", "", "The version of the release.")
	flag.Parse()
	if err := layOut(*file, *release, *repository, *version); err != nil {
		fmt.Fprintf(os.Stderr, "localrepository: %v\n", err)
		os.Exit(1)
	}
}

// layOut makes <repository>/<provider label>/<version>/ for each provider, with
// its components, the metadata, and the templates for infrastructure providers.
func layOut(file, release, repository, version string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the list of providers: %w", err)
	}
	var list settings
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("reading the list of providers %s: %w", file, err)
	}
	if len(list.Providers) == 0 {
		return fmt.Errorf("reading the list of providers %s: it is empty", file)
	}
	// A test that reads the old one meanwhile finds it or the new one whole.
	fresh := repository + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("removing a half-made repository: %w", err)
	}
	for _, provider := range list.Providers {
		if version == "" {
			version = provider.Config.NextVersion
		}
		files := []string{provider.Config.ComponentsFile, "metadata.yaml"}
		if strings.HasPrefix(provider.Name, "infrastructure-") {
			templates, err := filepath.Glob(filepath.Join(release, "cluster*.yaml"))
			if err != nil {
				return fmt.Errorf("looking for templates: %w", err)
			}
			for _, template := range templates {
				files = append(files, filepath.Base(template))
			}
		}
		if err := copyFiles(release, filepath.Join(fresh, provider.Name, version), files); err != nil {
			return fmt.Errorf("laying out %s: %w", provider.Name, err)
		}
	}
	if err := os.RemoveAll(repository); err != nil {
		return fmt.Errorf("removing the old repository: %w", err)
	}
	return os.Rename(fresh, repository)
}

func copyFiles(from, to string, files []string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	var failures []error
	for _, name := range files {
		raw, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), raw, 0o644)
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
