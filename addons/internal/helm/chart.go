package helm

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"

	addonv1 "github.com/capi-talos/capi-talos/addons/api/v1alpha1"
	"github.com/capi-talos/capi-talos/addons/internal/release"
)

// Metadata is what a chart says of itself.
type Metadata struct {
	Name, Version, AppVersion string
}

// maxUnpacked is how large a chart may be when it is unpacked, with the charts that are
// packed in it, in bytes. Helm stores it packed, together with what it makes of it, in a
// Secret of 1 MiB at most.
const maxUnpacked = 32 << 20

// Inspect reads the metadata of a chart archive. What is no chart that can be installed is
// an error that says why: it is no archive, is larger than 32 MiB or one of its files than
// 5 MiB, is a library, lacks charts that it depends on, or has a schema of its values that
// is not complete in itself.
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
	left := int64(maxUnpacked)
	err := checkUnpacked(archive, &left)
	if err != nil {
		return refuse(fmt.Errorf("reading the archive of the chart: %w", err))
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		return refuse(fmt.Errorf("reading the archive of the chart: %w", err))
	}
	if err := checkSchemas(loaded); err != nil {
		return refuse(err)
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

// checkUnpacked refuses an archive that is larger than what is left when it is unpacked,
// with the charts that are packed in it: Helm bounds each of them alone.
func checkUnpacked(archive []byte, left *int64) error {
	unpacked, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	size, err := io.Copy(io.Discard, io.LimitReader(unpacked, *left+1))
	if err != nil {
		return err
	}
	if *left -= size; *left < 0 {
		return fmt.Errorf("unpacked it is larger than %d MiB", maxUnpacked>>20)
	}
	files, err := loader.LoadArchiveFiles(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasPrefix(file.Name, "charts/") && path.Ext(file.Name) == ".tgz" {
			if err := checkUnpacked(file.Data, left); err != nil {
				return fmt.Errorf("%s: %w", file.Name, err)
			}
		}
	}

	return nil
}

// checkSchemas refuses a chart with a schema that refers to what is not in it. Helm would
// get that: from any server, and from the files of the manager.
func checkSchemas(loaded *chart.Chart) error {
	if wanted := missingOfSchema(loaded.Schema); wanted != "" {
		return fmt.Errorf("values.schema.json of chart %s refers to %s, which is not in it; put that into its $defs", loaded.Name(), wanted)
	}
	for _, dependency := range loaded.Dependencies() {
		if err := checkSchemas(dependency); err != nil {
			return err
		}
	}

	return nil
}

// missingOfSchema is what a schema refers to that is not in it; empty when there is
// nothing. What else is wrong with it Helm says where it is used.
func missingOfSchema(schema []byte) string {
	read, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if len(schema) == 0 || err != nil {
		return ""
	}
	// As pkg/chartutil/jsonschema.go does.
	const location = "file:///values.schema.json"
	loads := &refusedLoads{}
	compiler := jsonschema.NewCompiler()
	compiler.UseLoader(loads)
	if compiler.AddResource(location, read) == nil {
		_, _ = compiler.Compile(location)
	}

	return loads.first
}

// refusedLoads is a loader of schemas that loads none.
type refusedLoads struct{ first string }

// Load implements jsonschema.URLLoader.
func (l *refusedLoads) Load(url string) (any, error) {
	if strings.HasPrefix(url, "urn:") {
		// Helm takes any value then.
		return true, nil
	}
	l.first = cmp.Or(l.first, url)

	return nil, errors.New("it is not in the schema")
}
