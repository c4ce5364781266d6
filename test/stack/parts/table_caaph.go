package parts

import (
	"context"
	"os"
	"path/filepath"
)

const (
	// caaphVersion is the release of Cluster API's add-on provider for Helm beside which
	// make bench-addons measures ours.
	caaphVersion = "v0.5.3"

	caaphModule = "sigs.k8s.io/cluster-api-addon-provider-helm"
)

// caaphPart is its manager, and the folder crds with its kinds. The wrapper module
// requires nothing else: what it is made of, its own go.mod says.
func caaphPart() Part {
	return Part{
		Name:     "caaph",
		Version:  caaphVersion,
		Module:   "caaph",
		Commands: []Command{{Package: caaphModule, Binary: "caaph"}},
		Inputs:   []string{"1"},
		Build: func(ctx context.Context, w *Workspace) error {
			sources, err := w.ModuleDir(ctx, caaphModule)
			if err != nil {
				return err
			}
			return os.CopyFS(filepath.Join(w.Out, "crds"), os.DirFS(filepath.Join(sources, "config", "crd", "bases")))
		},
	}
}
