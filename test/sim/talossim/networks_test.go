package talossim_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/capi-talos/capi-talos/bootstrap/pkg/configgen"
	"github.com/capi-talos/capi-talos/bootstrap/pkg/talosclient"
	"github.com/capi-talos/capi-talos/test/sim/talossim"
)

// TestEtcdIsInAnotherNetwork: etcd advertises the address that its configuration chooses,
// else the first of the machine's.
func TestEtcdIsInAnotherNetwork(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		patch string
		// etcd is where it is; empty is the address of the node.
		etcd string
	}{
		"nothing is configured":      {"cluster: {etcd: {extraArgs: {max-txn-ops: \"9\"}}}", ""},
		"its own network":            {"cluster: {etcd: {advertisedSubnets: [203.0.113.0/24]}}", "203.0.113.9"},
		"the network of the machine": {"cluster: {etcd: {advertisedSubnets: [127.0.0.0/8]}}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, talossim.Options{Personality: talossim.Metal})
			m := w.add(func(spec *talossim.MachineSpec) { spec.OtherAddresses = []string{"203.0.113.9"} })
			at := m.Spec().Address
			if tc.etcd != "" {
				at = tc.etcd
			}
			patch := func(overlay *configgen.HostOverlay) { overlay.StrategicPatches = []string{tc.patch} }
			w.Expect(w.maintenance(m).ApplyConfiguration(t.Context(), w.configuration(m, configgen.RoleControlPlane, patch))).To(Succeed())
			w.Eventually(func() error { return w.admin(m).Bootstrap(t.Context()) }).Should(Succeed())
			w.ready(m)

			node := w.admin(m)
			w.Expect(node.Addresses(t.Context())).To(Equal(talosclient.Addresses{Node: []string{m.Spec().Address}, Internal: []string{"203.0.113.9"}}))
			w.Expect(node.EtcdSpec(t.Context())).To(Equal(talosclient.EtcdSpec{
				Hostname: "m1", AdvertisedAddresses: []string{at}, QuotaBytes: talosclient.DefaultEtcdQuota, Version: "3.6.12",
			}))
			w.Expect(node.EtcdMembers(t.Context())).To(ConsistOf(HaveField("PeerURLs", []string{"https://" + at + ":2380"})))
		})
	}
}

// TestAMachineThatIsRenumberedAnswersAtItsOtherAddressAlone: it is the same machine, with
// what it had.
func TestAMachineThatIsRenumberedAnswersAtItsOtherAddressAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, talossim.Options{Personality: talossim.Metal})
	w.bootstrapped()
	worker := w.add()
	w.configure(worker, configgen.RoleWorker)
	w.ready(worker)
	before, configuration := worker.Spec(), worker.Configuration()
	after := w.subnet.Address(99)
	worker.Renumber(after)
	w.Eventually(worker.Spec).Should(HaveField("Address", after))
	w.ready(worker)
	w.Expect(w.admin(worker).Addresses(t.Context())).To(Equal(talosclient.Addresses{Node: []string{after}}))
	w.Expect(w.admin(worker).Hardware(t.Context())).To(HaveField("SystemUUID", before.UUID))
	w.Expect(worker.Configuration()).To(Equal(configuration))
	_, err := w.pool.Maintenance(t.Context(), before.Address, "")
	w.Expect(err).To(MatchError(ContainSubstring("connection refused")))
	worker.PowerCycle()
	w.ready(worker)
	w.Expect(worker.Spec().Address).To(Equal(after), "it stays there")
}
