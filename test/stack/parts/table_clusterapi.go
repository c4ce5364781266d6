package parts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// ClusterAPIVersion is the version of Cluster API's core provider and of
	// clusterctl.
	ClusterAPIVersion = "v1.14.2"
	// CertManagerVersion is the version of cert-manager.
	CertManagerVersion = "v1.21.2"
	// CoreImage is the image of Cluster API's core manager in the component
	// file of part "capi-components".
	CoreImage = "registry.local/cluster-api-controller:" + ClusterAPIVersion
)

// clusterAPIParts are Cluster API's manager, command line tool and component
// file, and what clusterctl wants of cert-manager.
func clusterAPIParts() []Part {
	const stamp = "sigs.k8s.io/cluster-api/version"
	flags := "-X " + stamp + ".gitVersion=" + ClusterAPIVersion +
		" -X " + stamp + ".gitMajor=1 -X " + stamp + ".gitMinor=14 -X " + stamp + ".gitTreeState=clean" +
		" -X " + stamp + ".gitCommit=0 -X " + stamp + ".buildDate=1970-01-01T00:00:00Z"
	return []Part{
		{
			Name:     "capi-core",
			Version:  ClusterAPIVersion,
			Module:   "capi",
			Commands: []Command{{Package: "sigs.k8s.io/cluster-api/core", Binary: "manager"}},
			LDFlags:  flags,
		},
		{
			Name:     "clusterctl",
			Version:  ClusterAPIVersion,
			Module:   "capi",
			Commands: []Command{{Package: "sigs.k8s.io/cluster-api/cmd/clusterctl", Binary: "clusterctl"}},
			LDFlags:  flags,
		},
		{
			Name:    "capi-components",
			Version: ClusterAPIVersion,
			Module:  "capi",
			Needs:   []string{"kubectl"},
			Inputs:  []string{CoreImage, "1"},
			Build:   buildCoreComponents,
		},
		{
			Name:    "cert-manager-crds",
			Version: CertManagerVersion,
			Module:  "cert-manager",
			Inputs:  []string{"1"},
			Build:   buildCertManagerCRDs,
		},
	}
}

// buildCoreComponents renders the core provider's component file as its
// release does: kustomize over the module's configuration. The part is a
// version folder of a clusterctl repository.
func buildCoreComponents(ctx context.Context, w *Workspace) error {
	module, err := w.ModuleDir(ctx, "sigs.k8s.io/cluster-api")
	if err != nil {
		return err
	}
	text, err := w.Output(ctx, w.Scratch, w.Needs.Path("kubectl"), "kustomize", filepath.Join(module, "core", "config", "default"))
	if err != nil {
		return err
	}
	const image = "gcr.io/k8s-staging-cluster-api/cluster-api-controller:main"
	if !bytes.Contains(text, []byte(image)) {
		return errors.New("finding the manager's image in the rendered components: it is not there")
	}
	text = bytes.ReplaceAll(text, []byte(image), []byte(CoreImage))
	text = bytes.ReplaceAll(text, []byte("imagePullPolicy: Always"), []byte("imagePullPolicy: IfNotPresent"))
	if err := os.WriteFile(filepath.Join(w.Out, "core-components.yaml"), text, 0o644); err != nil {
		return fmt.Errorf("writing the components: %w", err)
	}
	return copyFile(filepath.Join(module, "metadata.yaml"), filepath.Join(w.Out, "metadata.yaml"))
}

// buildCertManagerCRDs joins cert-manager's kinds into one file, which is what
// clusterctl installs as cert-manager where nothing issues certificates.
func buildCertManagerCRDs(ctx context.Context, w *Workspace) error {
	module, err := w.ModuleDir(ctx, "github.com/cert-manager/cert-manager")
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(module, "deploy", "crds", "*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("looking for the kinds of cert-manager: none found: %w", err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading a kind of cert-manager: %w", err)
		}
		all.WriteString("---\n")
		all.Write(text)
		all.WriteString("\n")
	}
	return os.WriteFile(filepath.Join(w.Out, "cert-manager-crds.yaml"), []byte(all.String()), 0o644)
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading a file to copy: %w", err)
	}
	if err := os.WriteFile(to, content, 0o644); err != nil {
		return fmt.Errorf("writing a copy: %w", err)
	}
	return nil
}
