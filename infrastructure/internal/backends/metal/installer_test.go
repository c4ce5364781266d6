package metal

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	infrav1 "github.com/capi-talos/capi-talos/infrastructure/api/v1alpha1"
)

// ownSchematic is the one of an image with extensions.
const ownSchematic = "4a0d65c669d46663f377e7161e50cfd570c401f26fd9e7bda34a0216b6f1922b"

// TestTheDefaultInstaller is a table over releases, platforms, SecureBoot and schematics.
func TestTheDefaultInstaller(t *testing.T) {
	const (
		none = "factory.talos.dev/metal-installer/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba:"
		own  = "factory.talos.dev/metal-installer/" + ownSchematic + ":"
	)
	plain := talosclient.Hardware{Platform: "metal"}
	made := talosclient.Hardware{Platform: "metal", Schematic: ownSchematic}
	for sentence, tt := range map[string]struct {
		release, factory string
		booted           talosclient.Hardware
		image            string
		err              error
	}{
		"v1.12":                         {release: "v1.12.4", booted: plain, image: "ghcr.io/siderolabs/installer:v1.12.4"},
		"v1.13":                         {release: "v1.13.9", booted: plain, image: "ghcr.io/siderolabs/installer:v1.13.9"},
		"v1.14":                         {release: "v1.14.1", booted: plain, image: none + "v1.14.1"},
		"v1.14 before its release":      {release: "v1.14.0-beta.1", booted: plain, image: none + "v1.14.0-beta.1"},
		"v1.12 with a schematic":        {release: "v1.12.4", booted: made, image: own + "v1.12.4"},
		"v1.13 with a schematic":        {release: "v1.13.9", booted: made, image: own + "v1.13.9"},
		"v1.14 with a schematic":        {release: "v1.14.1", booted: made, image: own + "v1.14.1"},
		"v1.13 without its release":     {booted: made, err: errNoRelease},
		"another platform":              {release: "v1.13.9", booted: talosclient.Hardware{Platform: "nocloud", Schematic: ownSchematic}, image: "factory.talos.dev/nocloud-installer/" + ownSchematic + ":v1.13.9"},
		"a platform that is not told":   {release: "v1.14.1", image: none + "v1.14.1"},
		"v1.12 with SecureBoot":         {release: "v1.12.4", booted: secure(made), image: "factory.talos.dev/metal-installer-secureboot/" + ownSchematic + ":v1.12.4"},
		"v1.14 with SecureBoot":         {release: "v1.14.1", booted: secure(made), image: "factory.talos.dev/metal-installer-secureboot/" + ownSchematic + ":v1.14.1"},
		"SecureBoot of unknown keys":    {release: "v1.13.9", booted: secure(plain), err: errNoSigner},
		"an image of another factory":   {release: "v1.13.9", booted: talosclient.Hardware{Platform: "metal", Schematic: ownSchematic, ImageFactory: "factory.example.com"}, image: "factory.example.com/metal-installer/" + ownSchematic + ":v1.13.9"},
		"a factory that is named first": {release: "v1.13.9", factory: "mirror.example.com:5000", booted: talosclient.Hardware{Platform: "metal", Schematic: ownSchematic, ImageFactory: "factory.example.com"}, image: "mirror.example.com:5000/metal-installer/" + ownSchematic + ":v1.13.9"},
		"a factory for no schematic":    {release: "v1.14.1", factory: "mirror.example.com", booted: plain, image: "mirror.example.com/metal-installer/" + emptySchematic + ":v1.14.1"},
	} {
		t.Run(sentence, func(t *testing.T) {
			g := NewWithT(t)
			image, err := defaultInstaller(tt.release, toldBy(tt.booted, tt.release, tt.factory))
			if tt.err != nil {
				g.Expect(err).To(MatchError(tt.err))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(image).To(Equal(tt.image))
		})
	}
}

func secure(booted talosclient.Hardware) talosclient.Hardware {
	booted.SecureBoot = true

	return booted
}

// TestAnInstalledMachineNeedsNoInstaller shows that SecureBoot with unknown keys keeps
// nothing from being configured that is installed already.
func TestAnInstalledMachineNeedsNoInstaller(t *testing.T) {
	g := NewWithT(t)
	booted := talosclient.Hardware{Platform: "metal", SecureBoot: true}
	_, err := configure(render(t, configgen.RoleWorker, "v1.13"), metalHost(), &infrav1.TalosMachine{}, toldBy(booted, "v1.13.9", ""))
	g.Expect(err).To(MatchError(errNoSigner))
	booted.Installed = true
	configuration, err := configure(render(t, configgen.RoleWorker, "v1.13"), metalHost(), &infrav1.TalosMachine{}, toldBy(booted, "v1.13.9", ""))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(installedBy(configuration, booted)).To(BeEmpty())
}
