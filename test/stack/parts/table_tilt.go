package parts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/capi-talos/capi-talos/test/stack/internal/debian"
)

const (
	// TiltVersion is the version of Tilt.
	TiltVersion = "v0.37.1"

	tiltModule = "github.com/tilt-dev/tilt"
	// tiltPage is where the sources of Tilt have the page of its web server. Their
	// module has none, and without one Tilt does not start.
	tiltPage = "pkg/assets/build/index.html"
)

// tiltPart is Tilt, with a page of ours in place of its web interface, which is
// no part of its Go module: what people use is its terminal interface.
func tiltPart() Part {
	return Part{
		Name:    "tilt",
		Version: TiltVersion,
		Module:  "tilt",
		LDFlags: "-X main.version=" + TiltVersion[1:],
		// A library of its is C: the parser of its language server.
		Env:    []string{"CGO_ENABLED=1"},
		Inputs: []string{"1"},
		Build:  buildTilt,
	}
}

func buildTilt(ctx context.Context, w *Workspace) error {
	if err := debian.Install(ctx, "gcc", "libc6-dev"); err != nil {
		return err
	}
	sources, err := w.ModuleDir(ctx, tiltModule)
	if err != nil {
		return err
	}
	module := filepath.Join(w.Scratch, "module")
	copied := filepath.Join(module, "tilt")
	if err := os.CopyFS(copied, os.DirFS(sources)); err != nil {
		return fmt.Errorf("copying the sources of Tilt: %w", err)
	}
	page := filepath.Join(copied, tiltPage)
	for from, to := range map[string]string{"go.mod": filepath.Join(module, "go.mod"), "go.sum": filepath.Join(module, "go.sum"), "index.html": page} {
		if err := copyFile(filepath.Join(w.Module, from), to); err != nil {
			return err
		}
	}
	if err := w.Run(ctx, module, "go", "mod", "edit", "-replace="+tiltModule+"=./tilt"); err != nil {
		return err
	}
	return w.GoBuild(ctx, module, tiltModule+"/cmd/tilt", "tilt")
}
