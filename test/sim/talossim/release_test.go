package talossim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

const schematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// TestAnInstallationKeepsItsRelease: Talos installs nothing where META is, which a
// reset of the other volumes keeps.
func TestAnInstallationKeepsItsRelease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	m := w.add()
	w.Expect(told(w, m)).To(And(HaveField("Installed", false)))
	configure := func(release string) talosclient.Node {
		configuration := w.configuration(m, configgen.RoleControlPlane, func(o *configgen.HostOverlay) { o.InstallImage = "ghcr.io/siderolabs/installer:" + release })
		w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), configuration)).To(Succeed())
		w.status(m, talosclient.StageBooting, Not(BeEmpty()))
		return w.admin(m)
	}

	node := configure("v1.13.7")
	w.Expect(node.Version(t.Context())).To(Equal("v1.13.7"), "what was installed")
	w.Expect(node.Reset(t.Context(), volumes(w, t.Context(), node))).To(Succeed())
	w.Eventually(m.Wiped).Should(Succeed())
	w.Expect(w.maintenance(m).Version(t.Context())).To(Equal("v1.13.7"), "it boots from its disk")
	w.Expect(told(w, m).Installed).To(BeTrue())

	node = configure("v1.13.8")
	w.Expect(node.Version(t.Context())).To(Equal("v1.13.7"), "nothing is installed over it")
	w.Expect(node.Reset(t.Context(), talosclient.ResetOptions{})).To(Succeed())
	w.Eventually(m.Wiped).Should(Succeed())
	w.Expect(w.maintenance(m).Version(t.Context())).To(Equal(talossim.DefaultTalosVersion), "it boots from network")
	w.Expect(told(w, m).Installed).To(BeFalse())
}

func TestAMachineTellsTheSchematicThatItHasBooted(t *testing.T) {
	t.Parallel()
	for _, release := range []string{"v1.12.4", "v1.13.9", "v1.14.1"} {
		t.Run(release, func(t *testing.T) {
			w := newWorld(t, talossim.Options{Personality: talossim.Metal, TalosVersion: release})
			m, err := w.sim.Add(talossim.MachineSpec{
				Name: "m1", Address: w.subnet.Address(1), MAC: "52:54:00:00:00:01", UUID: "11111111-2222-4333-8444-555555555501", Schematic: schematic, SecureBoot: true,
			})
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(told(w, m)).To(And(HaveField("Schematic", schematic), HaveField("ImageFactory", "factory.talos.dev"), HaveField("SecureBoot", true)))
		})
	}
}

func told(w *world, m *talossim.Machine) talosclient.Hardware {
	found, err := w.maintenance(m).Hardware(w.t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	return found
}
