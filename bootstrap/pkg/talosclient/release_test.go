package talosclient_test

import (
	"context"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	. "github.com/onsi/gomega"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/block"
	talosruntime "github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
)

const schematicID = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// talos112 is the maintenance service of Talos 1.12, which tells anonymous callers
// its version as a resource only (internal/app/maintenance/server.go).
type talos112 struct{ *talos }

func (talos112) Version(context.Context, *emptypb.Empty) (*machine.VersionResponse, error) {
	return nil, status.Error(codes.Unimplemented, "API is not implemented in maintenance mode")
}

func extension(id, name, version, author string) resource.Resource {
	res := talosruntime.NewExtensionStatus(talosruntime.NamespaceName, id)
	res.TypedSpec().Metadata.Name, res.TypedSpec().Metadata.Version, res.TypedSpec().Metadata.Author = name, version, author
	return res
}

func metaVolume(phase block.VolumePhase) resource.Resource {
	res := block.NewVolumeStatus(block.NamespaceName, constants.MetaPartitionLabel)
	res.TypedSpec().Phase = phase
	return res
}

func securityState(secureBoot bool) resource.Resource {
	res := talosruntime.NewSecurityStateSpec(talosruntime.NamespaceName)
	res.TypedSpec().SecureBoot = secureBoot
	return res
}

func TestAMachineTellsWhatItBooted(t *testing.T) {
	for sentence, tt := range map[string]struct {
		resources []resource.Resource
		want      talosclient.Hardware
	}{
		"nothing but a release": {},
		"an image of a factory, among extensions": {
			resources: []resource.Resource{
				extension("0", "iscsi-tools", "v0.2.0", "Sidero Labs"),
				extension("1", "schematic", schematicID, "Image Factory (https://factory.example.com:8443)"),
			},
			want: talosclient.Hardware{Schematic: schematicID, ImageFactory: "factory.example.com:8443"},
		},
		"an image of a factory that does not say which": {
			resources: []resource.Resource{extension("1", "schematic", schematicID, "Image Factory")},
			want:      talosclient.Hardware{Schematic: schematicID},
		},
		"an author that is no address": {
			resources: []resource.Resource{extension("1", "schematic", schematicID, "Image Factory (mine: and yours)")},
			want:      talosclient.Hardware{Schematic: schematicID},
		},
		"a schematic that is none": {
			resources: []resource.Resource{extension("1", "schematic", "../../evil", "Image Factory")},
		},
		"an extension with a sum for its version": {
			resources: []resource.Resource{extension("1", "firmware", schematicID, "Image Factory (https://factory.example.com)")},
		},
		"SecureBoot":              {resources: []resource.Resource{securityState(true)}, want: talosclient.Hardware{SecureBoot: true}},
		"no SecureBoot":           {resources: []resource.Resource{securityState(false)}},
		"an installation":         {resources: []resource.Resource{metaVolume(block.VolumePhaseReady)}, want: talosclient.Hardware{Installed: true}},
		"perhaps an installation": {resources: []resource.Resource{metaVolume(block.VolumePhaseWaiting)}, want: talosclient.Hardware{Installed: true}},
		"no installation":         {resources: []resource.Resource{metaVolume(block.VolumePhaseMissing)}},
	} {
		t.Run(sentence, func(t *testing.T) {
			g := NewWithT(t)
			ca := newAuthority(g)
			cert, _ := ca.issue(g)
			api := &talos{resources: state.WrapCore(namespaced.NewState(inmem.Build))}
			for _, res := range append(tt.resources, stage(talosruntime.MachineStageMaintenance)) {
				g.Expect(api.resources.Create(t.Context(), res)).To(Succeed())
			}
			serve(t, api, cert, nil)
			pool := talosclient.New()
			t.Cleanup(pool.Close)
			node, err := pool.Maintenance(t.Context(), address, "")
			g.Expect(err).NotTo(HaveOccurred())
			found, err := node.Hardware(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			tt.want.Architecture = "amd64"
			g.Expect(found).To(Equal(tt.want))
		})
	}
}

func TestTalos112TellsItsReleaseInMaintenanceMode(t *testing.T) {
	g := NewWithT(t)
	ca := newAuthority(g)
	cert, _ := ca.issue(g)
	api := talos112{&talos{resources: state.WrapCore(namespaced.NewState(inmem.Build))}}
	release := talosruntime.NewVersion()
	release.TypedSpec().Version = "v1.12.4"
	for _, res := range []resource.Resource{stage(talosruntime.MachineStageMaintenance), release} {
		g.Expect(api.resources.Create(t.Context(), res)).To(Succeed())
	}
	serveAPI(t, api, api.resources, cert, nil)
	pool := talosclient.New()
	t.Cleanup(pool.Close)
	node, err := pool.Maintenance(t.Context(), address, "")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(node.Version(t.Context())).To(Equal("v1.12.4"))
	found, err := node.Hardware(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found.Architecture).To(BeEmpty(), "it is not guessed")
}
