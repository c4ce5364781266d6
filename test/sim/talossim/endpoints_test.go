package talossim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

const (
	// withoutDiscovery turns the discovery service off.
	withoutDiscovery = `cluster:
  discovery:
    enabled: false
`
	apiPort = 6443
)

// configureWith makes a machine a control plane node, with patches of the host.
func (w *world) configureWith(m *talossim.Machine, patches ...string) {
	w.t.Helper()
	configuration := w.configuration(m, configgen.RoleControlPlane, func(overlay *configgen.HostOverlay) { overlay.StrategicPatches = patches })
	w.Expect(w.maintenance(m).ApplyConfiguration(w.t.Context(), configuration)).To(Succeed())
}

// balanced puts the endpoint before the API server of the first machine.
func (w *world) balanced() {
	w.t.Helper()
	w.endpoint = w.subnet.Address(200)
	w.translate(w.endpoint, w.subnet.Address(1), apiPort)
}

// TestWhoTellsANodeWhereEtcdIs: the discovery service, which is outside of the cluster,
// else an API server at the endpoint, unless the endpoint leads to a member of etcd.
func TestWhoTellsANodeWhereEtcdIs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		contract string
		patches  []string
		balanced bool
		waits    bool
	}{
		"the discovery service":                   {contract: "v1.13", balanced: true},
		"the discovery service, as of 1.14":       {contract: "v1.14", balanced: true},
		"an API server, without discovery":        {contract: "v1.13", balanced: true, patches: []string{withoutDiscovery}, waits: true},
		"the endpoint, which is that of a member": {contract: "v1.13", patches: []string{withoutDiscovery}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{TalosVersion: test.contract + ".0"})
			w.contract = test.contract
			if test.balanced {
				w.balanced()
			}
			first := w.bootstrapped()
			first.Break(talossim.Faults{DeadAPIServer: true})
			w.Eventually(first.ServesAPI).Should(BeFalse())
			second := w.add()
			w.configureWith(second, test.patches...)
			if test.waits {
				w.Eventually(func() string { return w.etcdService(second).State }).Should(Equal("Preparing"))
				w.Consistently(second.HasEtcdData).Should(BeFalse())
				w.voters(first, 1)
				first.Break(talossim.Faults{})
			}
			w.voters(first, 2)
			w.Expect(second.HasEtcdData()).To(BeTrue())
		})
	}
}

// TestARestartNeedsNoAPIServer: who has data has joined.
func TestARestartNeedsNoAPIServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	w.balanced()
	first := w.bootstrapped()
	second := w.add()
	w.configureWith(second, withoutDiscovery)
	w.voters(first, 2)
	for _, m := range []*talossim.Machine{first, second} {
		m.Break(talossim.Faults{DeadAPIServer: true})
	}
	boots := second.Boots()
	second.PowerCycle()
	w.Eventually(second.Boots).Should(Equal(boots + 1))
	w.voters(second, 2)
}

// TestAPartedNodeHearsOfNoEtcd: nor does it know later on what it could not hear then.
func TestAPartedNodeHearsOfNoEtcd(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{})
	w.balanced()
	first := w.bootstrapped()
	second := w.add()
	second.Break(talossim.Faults{Parted: true})
	w.configureWith(second, withoutDiscovery)
	w.Eventually(func() string { return w.etcdService(second).State }).Should(Equal("Preparing"))
	w.Consistently(second.HasEtcdData).Should(BeFalse())
	first.Break(talossim.Faults{DeadAPIServer: true})
	w.Eventually(first.ServesAPI).Should(BeFalse())
	second.Break(talossim.Faults{})
	w.Consistently(second.HasEtcdData).Should(BeFalse())
	first.Break(talossim.Faults{})
	w.voters(first, 2)
}
