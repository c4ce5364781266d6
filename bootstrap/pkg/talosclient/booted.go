package talosclient

import (
	"context"
	"net/url"
	"regexp"
	"strings"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// schematicID is the form of a schematic's ID, a SHA-256 sum.
var schematicID = regexp.MustCompile("^[0-9a-f]{64}$")

// readSchematic reads the extension in which an Image Factory names the schematic
// of an image. Talos 1.14 makes its ImageFactorySchematic out of the same
// (internal/app/machined/pkg/controllers/runtime/image_factory_schematic.go).
func (n *node) readSchematic(ctx context.Context, found *Hardware) error {
	return each(ctx, n.COSI, func(res *talosruntime.ExtensionStatus) {
		metadata := res.TypedSpec().Metadata
		if metadata.Name == constants.ImageFactorySchematicExtensionName && schematicID.MatchString(metadata.Version) {
			found.Schematic, found.ImageFactory = metadata.Version, factoryOf(metadata.Author)
		}
	})
}

// factoryOf is the host in an author such as "Image Factory (https://factory.talos.dev)".
func factoryOf(author string) string {
	_, address, _ := strings.Cut(author, " (")
	parsed, err := url.Parse(strings.TrimSuffix(address, ")"))
	if err != nil || (parsed.Scheme != "https" && parsed.Scheme != "http") {
		return ""
	}

	return parsed.Host
}

func (n *node) readSecurity(ctx context.Context, found *Hardware) error {
	return each(ctx, n.COSI, func(res *talosruntime.SecurityState) { found.SecureBoot = res.TypedSpec().SecureBoot })
}

// readInstallation asks for META as Talos does before it installs
// (internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_state.go, Installed).
func (n *node) readInstallation(ctx context.Context, found *Hardware) error {
	res, err := safe.StateGetByID[*block.VolumeStatus](ctx, n.COSI, constants.MetaPartitionLabel)
	if state.IsNotFoundError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found.Installed = res.TypedSpec().Phase != block.VolumePhaseMissing

	return nil
}
