package helm

import (
	"bytes"
	"fmt"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// Metadata is what a chart says of itself.
type Metadata struct {
	Name, Version, AppVersion string
}

// Inspect reads the metadata of a chart archive. What is no chart that can be installed is
// an error that says why: it is no archive, is larger than Helm takes (100 MiB, 5 MiB a
// file), is a library, or lacks charts that it depends on.
func Inspect(archive []byte) (Metadata, error) {
	loaded, err := load(archive)
	if err != nil {
		return Metadata{}, err
	}

	return Metadata{Name: loaded.Metadata.Name, Version: loaded.Metadata.Version, AppVersion: loaded.Metadata.AppVersion}, nil
}

// load reads a chart. It is read anew for each action, since Helm changes what it is given.
func load(archive []byte) (*chart.Chart, error) {
	refuse := func(err error) (*chart.Chart, error) {
		return nil, &release.RefusedError{Reason: addonv1.ChartInvalidReason, Message: err.Error()}
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		return refuse(fmt.Errorf("reading the archive of the chart: %w", err))
	}
	if err := loaded.Validate(); err != nil {
		return refuse(fmt.Errorf("the chart is invalid: %w", err))
	}
	if loaded.Metadata.Type != "" && loaded.Metadata.Type != "application" {
		return refuse(fmt.Errorf("a chart of type %q cannot be installed", loaded.Metadata.Type))
	}
	packed := map[string]bool{}
	for _, dependency := range loaded.Dependencies() {
		packed[dependency.Name()] = true
	}
	for _, wanted := range loaded.Metadata.Dependencies {
		if !packed[wanted.Name] {
			return refuse(fmt.Errorf("the archive lacks the chart %s, on which it depends; pack it with helm package --dependency-update", wanted.Name))
		}
	}

	return loaded, nil
}
